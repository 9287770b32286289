"""Jobs: what callers asked for, their lifecycle and its only writer."""

"""API keys: shown once, stored hashed, with one of four roles."""

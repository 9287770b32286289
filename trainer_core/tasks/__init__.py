"""Tasks: what is learned; siblings do not know each other."""

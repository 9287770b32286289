"""Secrets: write-only values by name, encrypted with a key file."""

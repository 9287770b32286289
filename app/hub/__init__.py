"""Pushes to a hub: what is wanted, who is at it, and how far it came."""

"""Sweeps: one spec with some fields varied, run as jobs, and the best of them."""

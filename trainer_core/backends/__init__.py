"""Backends: libraries that load a model and attach adapters; siblings do not know each other."""

"""Presets: parts of specs that a project keeps by name."""

"""Devices of hosts that are kept for the next job of a project."""

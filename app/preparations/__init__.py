"""Preparations: a job's data being made ready, before any device is taken."""

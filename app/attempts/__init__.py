"""Attempts: one try of a job on one machine, its lease, its facts and its end."""

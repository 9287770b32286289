"""Logs of a job as text."""

"""Metrics of a job as series of points."""

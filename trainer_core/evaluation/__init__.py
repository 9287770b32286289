"""Evaluation: what rows give, metrics on them, what changed against another model, a report."""

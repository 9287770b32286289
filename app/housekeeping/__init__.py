"""Retention: what nobody needs any more goes, under an advisory lock, once an hour."""

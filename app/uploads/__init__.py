"""Uploads of data sets that can be taken up again: tus 1.0 (https://tus.io/protocols)."""

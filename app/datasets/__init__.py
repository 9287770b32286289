"""Data sets: uploaded files and named places elsewhere, in numbered versions."""

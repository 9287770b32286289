"""Data: from sources through rows, formats and templates to tokens with a loss mask."""

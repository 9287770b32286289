"""Jobs side by side: fields that differ, metrics, curves."""

"""What can be combined, and the schema of each task."""

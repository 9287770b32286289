"""Back-ups of an installation: taken while it works, restored into an empty folder."""

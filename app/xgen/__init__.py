"""XGen's training page: its flat form, its words and its calls, on top of ordinary jobs."""

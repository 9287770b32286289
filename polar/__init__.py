"""The user's side: command line, embedded stack, doctor, sample job."""

"""The embedded stack: real services and our own processes under one supervisor."""

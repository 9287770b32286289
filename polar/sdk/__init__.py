"""The SDK: one description of each call, and two drivers that send it, with and without await."""

"""Published models: their versions, files and pointers."""

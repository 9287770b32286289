"""Publishing, local part: the model folder, its card and its manifest."""

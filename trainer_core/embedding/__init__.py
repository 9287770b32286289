"""Embeddings of texts: losses, the model around a transformer, batches, measures."""

"""Finds machines for jobs and keeps hold of them: reconciler, handlers, supervisor, targets."""

"""The trainer: spec in; events, checkpoints, a model folder and an exit code out."""

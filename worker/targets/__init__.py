"""Targets: each a file of the same shape; the contract is `worker.target`."""

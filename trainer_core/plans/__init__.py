"""Plans: what a run of a spec will do and need, before it begins; previews: what it learns from."""

"""Plans: what a job will do and need, before it is submitted; previews of its rows."""

"""What a back-up must hold, and what a restored database must forget."""

"""`python -m polar`: the command line."""

from polar.cli import main

main()

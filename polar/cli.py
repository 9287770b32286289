"""The `polar` command."""


def main() -> None:
    """Run the command line."""

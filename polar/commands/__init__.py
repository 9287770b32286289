"""The subcommands of `polar`, by subject."""

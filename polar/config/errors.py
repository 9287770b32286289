"""What is wrong with a configuration, and where it came from."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class ConfigProblem:
    """One wrong thing: `pointer` is its place in the spec (RFC 6901), `origin` a file or override;
    both are empty where there is none."""

    message: str
    pointer: str = ""
    origin: str = ""

    def __str__(self) -> str:
        return f"{self.message} ({self.origin})" if self.origin else self.message


class ConfigError(Exception):
    """A configuration that is no spec; the text has one line for each problem."""

    def __init__(self, problems: Sequence[ConfigProblem]) -> None:
        self.problems = list(problems)
        super().__init__("\n".join(str(problem) for problem in problems))


def wrong(message: str, origin: str = "") -> ConfigError:
    """Return the error of a single problem that has no place in the spec."""
    return ConfigError([ConfigProblem(message, origin=origin)])

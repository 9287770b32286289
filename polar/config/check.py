"""The composed document against the one JobSpec."""

from collections.abc import Iterator, Sequence
from typing import Any

from pydantic import ValidationError

from polar.config.errors import ConfigError, ConfigProblem
from polar.config.origins import Source, origin
from polar.config.overrides import Override
from trainer_core.problems import Problem, explain, to_dotted, to_pointer
from trainer_core.spec import JobSpec

_OPEN = "???"  # Hydra's word for what must be given
Place = tuple[str | int, ...]


def checked(
    document: dict[str, Any], overrides: Sequence[Override], sources: Sequence[Source]
) -> JobSpec:
    """Return the spec; raises ConfigError with each wrong field and where it came from."""
    if open_places := list(_open_places(document)):
        raise ConfigError([_still_open(place, overrides, sources) for place in open_places])
    try:
        return JobSpec.model_validate(document)
    except ValidationError as error:
        problems = explain(error, model=JobSpec)
        raise ConfigError([_told(each, overrides, sources) for each in problems]) from None


def _still_open(
    place: Place, overrides: Sequence[Override], sources: Sequence[Source]
) -> ConfigProblem:
    name = ".".join(map(str, place))
    message = f"`{to_dotted(place)}` is still open: give {name}=…"
    return ConfigProblem(message, to_pointer(place), origin(place, overrides, sources))


def _told(
    problem: Problem, overrides: Sequence[Override], sources: Sequence[Source]
) -> ConfigProblem:
    place = _place(problem.pointer)
    message, came_from = problem.message, origin(place, overrides, sources)
    if "must be a string" in message and any(each.text == came_from for each in overrides):
        message += f"; quotes make it one: {'.'.join(map(str, place))}='\"…\"'"
    return ConfigProblem(message, problem.pointer, came_from)


def _place(pointer: str) -> Place:
    parts = (part.replace("~1", "/").replace("~0", "~") for part in pointer.split("/")[1:])
    return tuple(int(part) if part.isdigit() else part for part in parts)


def _open_places(value: Any, place: Place = ()) -> Iterator[Place]:
    if value == _OPEN:
        yield place
    elif isinstance(value, dict):
        for name, member in value.items():
            yield from _open_places(member, (*place, name))
    elif isinstance(value, list):
        for index, member in enumerate(value):
            yield from _open_places(member, (*place, index))

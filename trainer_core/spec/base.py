"""What every block of the spec shares: strictness, names, secrets by name."""

from functools import reduce
from operator import getitem
from typing import Annotated, Any, ClassVar

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
    model_validator,
)
from pydantic_core import InitErrorDetails, PydanticCustomError

Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$")]
MOST = 1_000_000_000  # of steps and rows: beyond it there is a slip of the keyboard
HOLDS_NUL = "holds_nul"  # type of an error whose place is the document's, without union members
_DEEPEST = 100  # levels; whoever writes a document recurses, and gives up at 255
_NOT_IN_REVISIONS = {*map(chr, range(33)), *"~^:?*[\\\x7f"}


def _names_a_revision(given: str) -> str:
    """Refuse what git takes for no name: it becomes a part of addresses and of file names."""
    parts = given.split("/")
    odd = ".." in given or "@{" in given or any(not p or p.startswith(".") for p in parts)
    if odd or _NOT_IN_REVISIONS & set(given):
        raise ValueError(f"{given!r} is no revision: give a commit, a tag, a branch or a version")
    return given


Revision = Annotated[str, Field(max_length=256), AfterValidator(_names_a_revision)]


class Strict(BaseModel):
    """A block of the spec: unknown fields are refused, values are not coerced from strings."""

    model_config = ConfigDict(
        extra="forbid", strict=True, frozen=True, validate_default=True, allow_inf_nan=False
    )

    @model_validator(mode="before")
    @classmethod
    def _can_be_stored(cls, given: Any) -> Any:
        place = _nul_in(given)
        if place is None:
            return given
        if len(place) > _DEEPEST:
            deep = f"it is nested more than {_DEEPEST} levels deep"
            problem = PydanticCustomError(HOLDS_NUL, deep)
            details = InitErrorDetails(type=problem, loc=place[:1], input=None)
            raise ValidationError.from_exception_data(cls.__name__, [details])
        problem = PydanticCustomError(HOLDS_NUL, "it holds a NUL character: take it out")
        found = reduce(getitem, place, given)
        details = InitErrorDetails(type=problem, loc=place, input=found)
        raise ValidationError.from_exception_data(cls.__name__, [details])


_Way = tuple[Any, ...]  # (name, way to the one around it), from the inside out


def _nul_in(document: Any) -> tuple[int | str, ...] | None:
    """Where a document has the character that no store takes, or is nested more deeply than its
    writers go; None: nowhere.

    One walk over what was given is much cheaper than to ask every field by itself. No recursion:
    a document may be nested as deeply as its parser takes it.
    """
    waiting: list[tuple[Any, _Way, int]] = [(document, (), 0)]
    while waiting:
        value, way, depth = waiting.pop()
        if depth > _DEEPEST:
            return _outward(way)
        if isinstance(value, str):
            if "\0" in value:
                return _outward(way)
        elif isinstance(value, dict):
            if any(isinstance(name, str) and "\0" in name for name in value):
                return _outward(way)
            waiting += [(member, (name, way), depth + 1) for name, member in value.items()]
        elif isinstance(value, list):
            waiting += [(member, (index, way), depth + 1) for index, member in enumerate(value)]
    return None


def _outward(way: _Way) -> tuple[int | str, ...]:
    names = []
    while way:
        name, way = way
        names.append(name)
    return tuple(reversed(names))


class SecretRef(Strict):
    """A secret by name; the value never stands in a spec."""

    secret: Name


class TaskBlock(Strict):
    """What the blocks of all task types share; `type` tells them apart."""

    without_effect_on_rows: ClassVar[frozenset[str]] = frozenset()
    """Fields that change the training alone: prepared data are used again when they differ."""

    def differs(self, name: str) -> bool:
        """Whether a field has another value than its default.

        What a spec says itself cannot be told: a resolved one says everything.
        """
        field = type(self).model_fields[name]
        return bool(getattr(self, name) != field.get_default(call_default_factory=True))

    @property
    def row_length(self) -> int | None:
        """The most tokens of a row, where the task has such a limit; None while it is open."""
        found: int | None = getattr(self, "max_length", None)
        return found

    @property
    def template(self) -> str | None:
        """The wanted chat template; None for tasks that train without one."""
        found: str | None = getattr(self, "chat_template", None)
        return found

    @property
    def end_token(self) -> str | None:
        """The token that is to end texts and turns; None: the tokenizer's own."""
        found: str | None = getattr(self, "eos_token", None)
        return found

    @property
    def is_packed(self) -> bool:
        """Whether a row holds several samples."""
        return getattr(self, "packing", False) not in (False, "none")

"""Labels: from what rows say to ids, and the map from ids to names that a model keeps."""

import math
from collections.abc import Sequence
from typing import Any

from trainer_core.data.messages import checked, kind, listed, nearest, parsed
from trainer_core.data.numbers import SMALL_ENOUGH, held
from trainer_core.data.rows import BadRow

_MOST = 10_000


class LabelMap:
    """Numbers label names in the order in which they are seen; `names` has the final order.

    With declared names their order is final and no other name is taken. Whole numbers are then
    positions in the list, unless names are numbers themselves. The validation rows may bring no
    new name: a model would never have seen it.
    """

    def __init__(self, declared: Sequence[str] | None) -> None:
        self._declared = declared is not None
        self._ids = {name: i for i, name in enumerate(declared or ())}
        self._flags: int | None = len(self._ids) if self._declared else None
        self._positions = self._declared and not any(_is_number(n) for n in declared or ())

    def number(self, label: Any, *, may_be_new: bool) -> int:
        """The provisional id of one label; raises BadRow for what is no label."""
        name = self._name(label)
        if name in self._ids:
            return self._ids[name]
        if self._declared:
            raise BadRow(
                f"`label` is '{name}', which is not in task.label_names"
                f"{nearest(name, list(self._ids))}: they are {listed(self._ids)}"
            )
        if not may_be_new:
            raise BadRow(
                f"`label` is '{name}', which no training row has: add such rows, or declare it in "
                "task.label_names"
            )
        if len(self._ids) >= _MOST:
            raise BadRow(
                f"`label` is '{name}', and there are {_MOST} other labels already: is this a "
                "label? For numbers set task.problem_type to 'regression'"
            )
        return self._ids.setdefault(name, len(self._ids))

    def names(self) -> list[str]:
        """All names in their final order: as declared, else sorted (numbers by their value)."""
        if self._declared:
            return list(self._ids)
        numeric = all(_is_number(name) for name in self._ids)
        return sorted(self._ids, key=int if numeric else None)

    def final_ids(self) -> list[int]:
        """Provisional id → final id."""
        final = {name: i for i, name in enumerate(self.names())}
        return [final[name] for name in self._ids]

    def _name(self, label: Any) -> str:
        if isinstance(label, bool):
            return str(label).lower()
        if isinstance(label, int):
            if not self._positions:
                return str(label)
            if 0 <= label < len(self._ids):
                return list(self._ids)[label]
            raise BadRow(f"`label` is {label}, but task.label_names has {len(self._ids)} names")
        if isinstance(label, str) and label.strip():
            return checked(label, "label")
        if isinstance(label, float):
            raise BadRow(
                f"`label` is {label:g}, a decimal number: set task.problem_type to "
                "'regression', or write labels as whole numbers or names"
            )
        if isinstance(label, list):
            raise BadRow("`label` is a list: set task.problem_type to 'multi_label_classification'")
        shown = "empty" if isinstance(label, str) else kind(label)
        raise BadRow(f"`label` is {shown}: it must be a name or a whole number")

    def numbers(self, labels: Any, separator: str | None, *, may_be_new: bool) -> list[int]:
        """The provisional ids of several labels, each once; raises BadRow."""
        found = self._listed(labels, separator)
        if found and all(_is_hot(value) for value in found):
            found = self._of_hot(found)
        ids = [self.number(label, may_be_new=may_be_new) for label in found]
        if len(set(ids)) < len(ids):
            raise BadRow(
                "`label` names one label twice: for a 0 or 1 per label write booleans, such as "
                "[false, true]"
            )
        return ids

    def _listed(self, labels: Any, separator: str | None) -> list[Any]:
        labels = parsed(labels)
        if isinstance(labels, list):
            return labels
        if not isinstance(labels, str):
            raise BadRow(f"`label` is {kind(labels)}: it must be a list of labels")
        if separator is None:
            raise BadRow(
                "`label` is a text: write a list of labels, or say in task.label_separator what "
                "stands between them"
            )
        return [part.strip() for part in labels.split(separator) if part.strip()]

    def _of_hot(self, flags: list[Any]) -> list[Any]:
        names = list(self._ids) if self._declared else [str(i) for i in range(len(flags))]
        self._flags = self._flags or len(flags)
        if self._flags != len(flags):
            raise BadRow(
                f"`label` has {len(flags)} flags, but there are {self._flags} labels: write one "
                "for each label"
            )
        for name in names:  # so that a label that no row has keeps its place
            self.number(name, may_be_new=True)
        return [name for name, flag in zip(names, flags, strict=True) if flag]


def as_number(label: Any) -> float:
    """The number of a regression row, also written as text (CSV); raises BadRow."""
    try:
        number = held(float(label) if isinstance(label, str) else label)
    except ValueError:
        number = math.nan
    if math.isnan(number):
        shown = f"'{label}'" if isinstance(label, str) else kind(label)
        wanted = f"task.problem_type 'regression' needs {SMALL_ENOUGH}"
        raise BadRow(f"`label` is {shown}: {wanted}")
    return number


def _is_number(name: str) -> bool:
    return name.removeprefix("-").isdecimal() and name.isascii()


def _is_hot(value: Any) -> bool:
    return isinstance(value, bool) or (isinstance(value, float) and value in (0.0, 1.0))

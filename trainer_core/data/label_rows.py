"""What rows with labels share, whatever is labelled: ids that all rows together decide."""

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from trainer_core.data.arrow import ArrowRows
from trainer_core.data.labels import LabelMap
from trainer_core.data.row_encoder import Numbered, Outcomes
from trainer_core.data.rows import BadRow, Place, PreparedRow


class LabelRows:
    """The part of a `RowEncoder` that knows labels; they are known when all training rows are."""

    def __init__(self, names: Sequence[str] | None) -> None:
        self._map = LabelMap(names)

    def encode(self, samples: Numbered, format_: str, field: str) -> Outcomes:  # noqa: ARG002 - the protocol's
        """Each sample with a provisional label; validation rows may bring no new one."""
        may_be_new = field.startswith("data.train")
        for place, sample in samples:
            try:
                yield place, self._row(place, sample, may_be_new=may_be_new)
            except BadRow as problem:
                yield place, problem

    def split(self, row: Any) -> Sequence[Any]:
        """Never asked for: a part need not have the label of the whole."""
        raise NotImplementedError

    def arrange(self, rows: ArrowRows, chosen: Sequence[int]) -> Iterator[Mapping[str, Any]]:
        """The rows with their final label ids."""
        ids = self._map.final_ids()
        for number in chosen:
            row = rows[number]
            yield row | {"labels": self._final(row["labels"], ids)}

    def facts(self) -> dict[str, Any]:
        """The names of the labels in the order of their ids."""
        return {"labels": self._map.names()}

    @abstractmethod
    def _row(self, place: Place, sample: Any, *, may_be_new: bool) -> PreparedRow:
        """One sample with its provisional label; raises BadRow."""

    def _final(self, label: Any, ids: list[int]) -> Any:
        return ids[label]

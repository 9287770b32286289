"""Staging: the usable rows of all sources, a file for each part, before they are laid out."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path

from trainer_core.data.arrow import ArrowWriter
from trainer_core.data.ledger import Ledger
from trainer_core.data.mixture import interleaved, nothing_to_mix, weights_of
from trainer_core.data.pipeline import Pipeline
from trainer_core.data.row_encoder import RowEncoder
from trainer_core.data.rows import PreparedRow
from trainer_core.data.sources import Source
from trainer_core.data.stream import Need
from trainer_core.spec import TrainSpec


@dataclass
class Staged:
    """A file of staged rows; `origins` holds the number of the source of each."""

    path: Path
    origins: bytearray = field(default_factory=bytearray)
    ended: list[int] = field(default_factory=list)
    """Sources of which nothing is left."""

    @property
    def by_source(self) -> Counter[int]:
        """How many rows each source has."""
        return Counter(self.origins)


class Staging:
    """Stages the parts of one spec; `see` gets each row of the training part."""

    def __init__(
        self,
        spec: TrainSpec,
        pipeline: Pipeline,
        encoder: RowEncoder,
        ledger: Ledger,
        see: Callable[[PreparedRow], None],
    ) -> None:
        self._spec = spec
        self._pipeline = pipeline
        self._encoder = encoder
        self._ledger = ledger
        self._see = see

    def train(self, path: Path, sources: Sequence[Source]) -> Staged:
        """Source after source, or in turns by weight; of a stream as much as the run takes."""
        data, staged = self._spec.data, Staged(path)
        weights = weights_of(self._spec) if data.stopping_strategy == "first_exhausted" else None
        need = Need.of(self._spec, self._encoder) if data.streaming else None
        with ArrowWriter(path, self._encoder.staged) as writer:
            wanted = None if need is None else partial(need.rows_left, writer)
            for number, row in self._rows(sources, staged, weights, wanted):
                writer.write(row.values)
                staged.origins.append(number)
                self._see(row)
                if need is not None and need.is_met(writer):
                    return staged
        if weights is not None:
            if staged.by_source[staged.ended[-1]] == 0:
                raise nothing_to_mix(sources[staged.ended[-1]].field)
            self._tell_what_is_left(staged, sources)
        if need is not None:
            self._tell_of_the_end(staged, sources)
        return staged

    def validation(self, path: Path, sources: Sequence[Source]) -> Staged:
        """Source after source, no more rows than are measured."""
        staged, most = Staged(path), self._spec.evaluation.max_samples
        with ArrowWriter(path, self._encoder.staged) as writer:
            for number, row in self._rows(sources, staged):
                writer.write(row.values)
                staged.origins.append(number)
                if self._spec.data.streaming and writer.rows == most:
                    break
        return staged

    def _rows(
        self,
        sources: Sequence[Source],
        staged: Staged,
        weights: list[float] | None = None,
        wanted: Callable[[], int] | None = None,
    ) -> Iterator[tuple[int, PreparedRow]]:
        streams = [self._noted(n, source, staged, wanted) for n, source in enumerate(sources)]
        if weights is not None:
            return interleaved(streams, weights)
        return ((number, row) for number, stream in zip(count(), streams) for row in stream)

    def _noted(
        self, number: int, source: Source, staged: Staged, wanted: Callable[[], int] | None
    ) -> Iterator[PreparedRow]:
        encode = self._pipeline.encode
        yield from encode(source) if wanted is None else encode(source, wanted)
        staged.ended.append(number)

    def _tell_what_is_left(self, staged: Staged, sources: Sequence[Source]) -> None:
        last = sources[staged.ended[-1]].field
        for number, source in enumerate(sources):
            if number not in staged.ended:
                text = (
                    f"{staged.by_source[number]} rows are in the mixture, which ended with {last};"
                    " those behind them are left out"
                )
                self._ledger.mixed(source.field, source.spec.path, "left", text)

    def _tell_of_the_end(self, staged: Staged, sources: Sequence[Source]) -> None:
        field = sources[staged.ended[-1]].field
        text = (
            f"the stream ended with {field} after {len(staged.origins)} usable rows, fewer than"
            " training.max_steps takes: they come more than once"
        )
        self._pipeline.counts.warnings.append(("stream_ended", text))

"""Rules about samples of sources, their mixture, bad rows, and streams, that hold for every task
type."""

from collections.abc import Callable, Iterator

from trainer_core.hardware import Hardware
from trainer_core.problems import Problem
from trainer_core.spec import DataSource, SplitRatio, TrainSpec
from trainer_core.task import TASKS, task_of
from trainer_core.task_rules import dotted, sources_with_pointers


def _samples(spec: TrainSpec, _: Hardware | None) -> Iterator[Problem]:
    """Two ways of saying how many rows of a source are taken, and a seed where none is drawn."""
    for pointer, source in sources_with_pointers(spec):
        if source.num_samples is not None and source.fraction is not None:
            text = "and num_samples both say how many rows are taken: keep one of them"
            yield _problem(f"{pointer}/fraction", text, source.fraction)
        if source.seed is not None and source.num_samples is None and source.fraction is None:
            text = "has no effect without num_samples or fraction: add one, or leave it out"
            yield _problem(f"{pointer}/seed", text, source.seed)


def _mixture(spec: TrainSpec, _: Hardware | None) -> Iterator[Problem]:
    """A weight where nothing is mixed, and an end of a mixture that is none."""
    alone = len(spec.data.train) == 1
    for pointer, source in sources_with_pointers(spec):
        held = pointer.startswith("/data/validation/")
        if source.weight is not None and (alone or held):
            why = "on validation rows, which are all measured" if held else "on a source alone"
            yield _problem(f"{pointer}/weight", f"has no effect {why}: leave it out", source.weight)
    mixed = any(source.weight is not None for source in spec.data.train)
    strategy = spec.data.stopping_strategy
    if strategy != "first_exhausted" and not mixed:
        text = f"is '{strategy}', which has no effect without the weight of a source: add weights"
        yield _problem("/data/stopping_strategy", text, strategy)


def _bad_rows(spec: TrainSpec, _: Hardware | None) -> Iterator[Problem]:
    """A share of bad rows that may be dropped, where none is."""
    data = spec.data
    usual = type(data).model_fields["max_bad_ratio"].default
    if data.on_bad_row == "error" and data.max_bad_ratio != usual:
        text = "has no effect without data.on_bad_row 'drop': set it, or leave this out"
        yield _problem("/data/max_bad_ratio", text, data.max_bad_ratio)


def streaming_problems(spec: TrainSpec, _: Hardware | None) -> Iterator[Problem]:
    """What does not go with `data.streaming`: whatever would have to know the end of the stream."""
    if not spec.data.streaming:
        return
    if not task_of(spec).FACTS.streams:
        known = " and ".join(name for name, task in TASKS.items() if task.FACTS.streams)
        text = (
            f"is for tasks {known}, whose rows are prepared one by one; what task"
            f" '{spec.task.type}' makes of a row depends on all of them: leave it out, or take"
            " data.train[].num_samples"
        )
        yield _problem("/data/streaming", text, value=True)
        return
    if spec.training.max_steps is None:
        text = (
            "is missing: with data.streaming nobody knows how long an epoch is; say how many steps"
            " are made, or leave data.streaming out"
        )
        yield _problem("/training/max_steps", text)
    yield from _without_an_end(spec)
    if spec.distributed.strategy == "ddp" and spec.distributed.processes is None:
        text = (
            "is missing: with data.streaming as many rows are prepared as all processes take, and"
            " that is before any device is known"
        )
        yield _problem("/distributed/processes", text)


def _without_an_end(spec: TrainSpec) -> Iterator[Problem]:
    data = spec.data
    for pointer, source in sources_with_pointers(spec):
        yield from _of_whole_source(pointer, source)
    if isinstance(data.validation, SplitRatio):
        text = (
            "needs all rows to hold some out, and data.streaming reads a part of them: list sources"
            " in data.validation, or leave data.streaming out"
        )
        yield _problem("/data/validation/split_ratio", text, data.validation.split_ratio)
    if len(data.train) > 1 and all(source.weight is None for source in data.train):
        text = (
            "is missing: with data.streaming a source may have no end, and those behind it would"
            " never be read; say in which shares they are mixed"
        )
        yield _problem("/data/train/0/weight", text)
    if data.stopping_strategy == "all_exhausted":
        text = "is 'all_exhausted', but with data.streaming no source is read to its end: leave it"
        yield _problem("/data/stopping_strategy", f"{text} out", data.stopping_strategy)


def _of_whole_source(pointer: str, source: DataSource) -> Iterator[Problem]:
    for name in ("fraction", "seed"):
        if (value := getattr(source, name)) is not None:
            text = (
                "needs to know all rows of its source, and data.streaming reads a part of them:"
                " leave it out, or use num_samples alone"
            )
            yield _problem(f"{pointer}/{name}", text, value)


def _problem(pointer: str, text: str, value: object = None) -> Problem:
    shown = None if value is None else repr(value)
    return Problem(pointer=pointer, message=f"{dotted(pointer)} {text}", value=shown)


DATA_RULES: tuple[Callable[[TrainSpec, Hardware | None], Iterator[Problem]], ...] = (
    _samples,
    _mixture,
    _bad_rows,
    streaming_problems,
)

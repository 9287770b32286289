"""Each field of the schema arrives, or is refused with a reason.

For every field the table in `fields.py` and `shared_fields.py` has another value than the default,
and says which tasks refuse it: there `check` names the field, or what it stands in. In the others
it is consumed: with it and without it a trainer can be built, and what it is built of differs
(`observed.py`); or it stops the run with an error that names the field. Nothing in between: a field
that is silently ignored fails, one that makes something else fail does too, and so does a new field
until it has a place in the table.
"""

import gc
import importlib
import inspect
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from tests.trainer_core.field_documents import Bench, Models, stirred
from tests.trainer_core.fields import (
    OWN,
    VALIDATES,
    Field,
    OfTheService,
    OneChoice,
    Place,
    shared_leaves,
    task_leaves,
)
from tests.trainer_core.observed import (
    Seen,
    observe,
    observe_location,
    observe_measuring,
    observe_publication,
    observe_report,
    observe_resume,
    observe_run,
    observe_source,
)
from tests.trainer_core.shared_fields import SHARED
from tests.trainer_core.small_tasks import Small
from tests.trainer_core.test_task_table import blocks
from trainer_core.capabilities import check
from trainer_core.errors import TrainerError
from trainer_core.problems import Problem
from trainer_core.resolve import Hardware
from trainer_core.spec import Training, TrainSpec
from trainer_core.task_rules import dotted
from trainer_core.warm import preload

pytestmark = pytest.mark.train
Look = Callable[[dict[str, Any]], Seen]
OBSERVERS: dict[str, Look] = {
    "trainer": observe,
    "report": observe_report,
    "publication": observe_publication,
    "resume": observe_resume,
    "location": observe_location,
    "source": observe_source,
    "run": observe_run,
    "measuring": observe_measuring,
}


def place_of(task: str, path: str) -> Place | None:
    """A field's line in the table; sources of validation are read as those of training are."""
    if path.startswith("task."):
        return OWN[task].get(path.removeprefix("task."))
    alike = path.replace("data.validation[]", "data.train[]")
    return SHARED.get(path, SHARED.get(alike))


def fault(bench: Bench, task: str, path: str) -> str | None:
    """What is wrong with a field of a task; None: it is refused with its name, or consumed."""
    place = place_of(task, path)
    if place is None:
        return f"{path} has no place in the table"
    if isinstance(place, OfTheService):
        read = place.words in inspect.getsource(importlib.import_module(place.reader))
        return None if read else f"{path} is not read by {place.reader}"
    return None if isinstance(place, OneChoice) else _fault(bench, task, path, place)


def _fault(bench: Bench, task: str, path: str, place: Field) -> str | None:
    wish = place.of.get(task, place)
    base, changed, pointer = bench.pair(task, path, wish)
    if task in place.refused_by:
        return _not_refused(changed, pointer)
    for document, what in ((base, "what it needs"), (changed, f"{wish.value!r}")):
        if problems := _problems(document):
            return f"{path}: {what} is refused: {[p.message for p in problems]}"
    if place.on is not None and task not in place.on:
        return None
    by = "run" if task == "evaluation" and wish.by in ("trainer", "report") else wish.by
    return _unseen(bench, OBSERVERS[by], (base, changed), wish, pointer)


def _problems(document: dict[str, Any]) -> list[Problem]:
    return check(TrainSpec.model_validate(document["spec"]), Hardware())


def _not_refused(changed: dict[str, Any], pointer: str) -> str | None:
    problems = _problems(changed)
    if any(_is_about(problem, pointer) for problem in problems):
        return None
    return f"{dotted(pointer)} is not refused, or not by its name: {[p.message for p in problems]}"


def _is_about(problem: Problem, pointer: str) -> bool:
    """Whether a refusal names the field, what it stands in, or the combination of adapter, base and
    processes that the table refuses."""
    parts, told = pointer.split("/"), problem.pointer.split("/")
    combined = problem.pointer == "/task/type" and parts[1] in (
        "adapter",
        "quantization",
        "distributed",
    )
    shorter = min(len(parts), len(told))
    return combined or parts[:shorter] == told[:shorter]


def _unseen(
    bench: Bench, look: Look, pair: tuple[dict[str, Any], dict[str, Any]], wish: Field, pointer: str
) -> str | None:
    """Why a value counts as ignored; None where both launches work and differ, or where the value
    is one that stops a run."""
    name = f"{dotted(pointer)} = {wish.value!r}"
    try:
        before = bench.looked(look, pair[0])
    except TrainerError as error:
        return f"{name}: what it needs does not work: {error.message}"
    try:
        after = look(pair[1])
    except TrainerError as error:
        named = dotted(pointer) in (error.field, *error.message.split())
        return None if wish.stops and named else f"{name} does not work: {error.message}"
    if wish.stops:
        return f"{name} does not stop the run"
    return f"{name} changes nothing that is observed" if before == after else None


@pytest.fixture(scope="module")
def bench(small: Small, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    folder = tmp_path_factory.mktemp("fields")
    inner = {name: getattr(small, name) for name in ("bert", "llama", "vit", "llava")}
    own = {name: folder / name for name in inner}
    for name, model in inner.items():
        shutil.copytree(model, own[name])
        stirred(model, own[name] / "inner")
    preload()  # runs collect garbage: they need not walk through all libraries each time
    yield Bench(Models(replace(small, **own), folder))
    gc.unfreeze()


@pytest.mark.parametrize("task", OWN)
def test_every_field_of_the_task_arrives_or_is_refused(task: str, bench: Bench) -> None:
    found = (fault(bench, task, path) for path in task_leaves(blocks()[task]))
    assert [each for each in found if each] == []


@pytest.mark.parametrize("path", shared_leaves())
def test_every_shared_field_arrives_or_is_refused_by_each_task(path: str, bench: Bench) -> None:
    found = {task: fault(bench, task, path) for task in OWN}
    assert {task: each for task, each in found.items() if each} == {}


SETTINGS = [name for name in Training.model_fields if name != "logging_steps"]
"""Those that Trainers have by the same names."""


@pytest.mark.parametrize("task", [task for task in OWN if task != "evaluation"])
def test_every_task_hands_all_settings_of_the_loop_on(task: str, bench: Bench) -> None:
    """The single settings are looked at in one task alone."""
    document = bench.document(task, Field(None))
    wanted = {}
    for name in SETTINGS:
        place = SHARED[f"training.{name}"]
        assert isinstance(place, Field)
        wish = place.of.get(task, place)
        if task not in place.refused_by and not wish.stops:
            wanted[name] = wish.value
    document["spec"]["training"] = wanted
    seen = observe(document)
    assert {name: seen[f"args.{name}"] for name in wanted} == wanted


def test_what_is_observed_is_the_same_twice(bench: Bench) -> None:
    """Else everything would seem to change something."""
    plain = Field(None)
    for task in OWN:
        look = observe_run if task == "evaluation" else observe
        document = bench.document(task, plain)
        assert bench.looked(look, document) == look(document)
    for look in (observe_report, observe_publication):
        document = bench.document("sft", Field(None, VALIDATES))
        assert bench.looked(look, document) == look(document)


def test_the_table_has_every_field_and_no_other() -> None:
    """A new field fails here until somebody says where it goes; one that is gone, too."""
    assert OWN.keys() == blocks().keys()
    for task, block in blocks().items():
        assert {path.removeprefix("task.") for path in task_leaves(block)} == OWN[task].keys()
    assert [path for path in shared_leaves() if place_of("sft", path) is None] == []
    assert SHARED.keys() <= {*shared_leaves()}
    lonely = [path for path, place in SHARED.items() if isinstance(place, OneChoice)]
    for path in lonely:
        model: Any = TrainSpec
        for name in path.split(".")[:-1]:
            model = model.model_fields[name].annotation
        choices = model.model_fields[path.split(".")[-1]].annotation.__args__
        assert {*choices} <= {"auto", "hf"}

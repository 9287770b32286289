"""Each field of the schema arrives, or is refused with a reason.

For every field the table in `fields.py` has another value than the default. Either `check` refuses
it and names the field (or what it stands in), or what a trainer is built of differs with it
(`observed.py`). Nothing in between: a field that is silently ignored fails, and so does a new field
until it has a place in the table. `GONE_THROUGH` says for which tasks the values are set.
"""

import copy
import importlib
import inspect
import random
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from tests.trainer_core.equivalence.variants import conversations
from tests.trainer_core.fields import (
    OWN,
    SHARED,
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
from tests.trainer_core.small_images import encoded, labelled_images, picture, visual_questions
from tests.trainer_core.small_tasks import Small, documents, opinions, preferences, questions
from tests.trainer_core.small_texts import answers, pairs, triplets
from tests.trainer_core.test_task_table import blocks
from trainer_core.capabilities import check
from trainer_core.problems import Problem
from trainer_core.resolve import Hardware
from trainer_core.spec import TrainSpec

pytestmark = pytest.mark.train
Rows = list[dict[str, Any]]
COUNT = 16


# ---- rows and base specs of every task ----

PLAIN: dict[str, Rows] = {
    "sft": conversations(COUNT),
    "evaluation": conversations(COUNT),
    "clm": documents(COUNT),
    "mlm": documents(COUNT),
    "dpo": preferences(COUNT),
    "kto": answers(COUNT),
    "grpo": [
        row | {"other": "fast", "shouted": "FAST", "number": "x 5"} for row in questions(COUNT)
    ],
    "text_classification": opinions(COUNT),
    "image_classification": labelled_images(COUNT),
    "multimodal": visual_questions(COUNT),
    "sentence_transformer": pairs(COUNT),
}
TASKS: dict[str, dict[str, Any]] = {
    "grpo": {"max_length": 48, "max_completion_length": 8, "num_generations": 4},
    "clm": {"max_length": 64},
    "mlm": {"max_length": 48},
}


def rows_of(task: str, kind: str) -> Rows:
    """Rows of a task in which a kind of field can be seen."""
    return _ROWS[kind](task, copy.deepcopy(PLAIN[task]))


def _renamed(_: str, rows: Rows) -> Rows:
    name = next(iter(rows[0]))
    return [{"ours" if key == name else key: value for key, value in row.items()} for row in rows]


def _bad(_: str, rows: Rows) -> Rows:
    name = next(iter(rows[0]))
    return [*rows[:-1], rows[-1] | {name: 7}]


def _long(task: str, rows: Rows) -> Rows:
    """One row of 16 is short enough for the length that `fields.py` sets, all others are not."""
    return [*rows[:-1], _SHORT[task](rows[-1])]


def _large(_: str, rows: Rows) -> Rows:
    data = encoded(picture("cat", random.Random(0), (64, 64)))  # noqa: S311 - test data
    return [row | {"files": dict.fromkeys(row["files"], data)} for row in rows]


_SHORT: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "sft": lambda row: {"messages": [{"role": "user", "content": "x"}, *row["messages"][1:2]]},
    "evaluation": lambda row: row,
    "clm": lambda _: {"text": "a"},
    "mlm": lambda _: {"text": "a"},
    "dpo": lambda _: {
        "prompt": [{"role": "user", "content": "x"}],
        "chosen": [{"role": "assistant", "content": "a"}],
        "rejected": [{"role": "assistant", "content": "b"}],
    },
    "kto": lambda _: {
        "prompt": [{"role": "user", "content": "x"}],
        "completion": [{"role": "assistant", "content": "a"}],
        "label": True,
    },
    "grpo": lambda row: row | {"prompt": [{"role": "user", "content": "x"}]},
    "text_classification": lambda row: row | {"text": "a"},
    "image_classification": lambda row: row,
    "multimodal": lambda row: row,
    "sentence_transformer": lambda _: {"anchor": "a", "positive": "b"},
}
_ROWS: dict[str, Callable[[str, Rows], Rows]] = {
    "plain": lambda _, rows: rows,
    "renamed": _renamed,
    "bad": _bad,
    "long": _long,
    "large": _large,
    "listed": lambda _, rows: [row | {"label": [row["label"]]} for row in rows],
    "several": lambda _, rows: [row | {"label": f"{row['label']}|x"} for row in rows],
    "joined": lambda _, rows: [row | {"label": f"{row['label']}+x"} for row in rows],
    "triplets": lambda _, __: triplets(COUNT),
}


@dataclass(frozen=True)
class Models:
    """Further models that values and needs stand for, by their sign."""

    small: Small
    folder: Path
    made: dict[str, Path] = field(default_factory=dict)

    def named(self, sign: str, task: str) -> Any:
        """What a sign such as `<another model>` stands for."""
        own = {"image_classification": self.small.vit, "multimodal": self.small.llava}
        encoders = ("text_classification", "mlm", "sentence_transformer")
        model = self.small.bert if task in encoders else own.get(task, self.small.llama)
        if sign == "<the model>":
            return str(model)
        key = f"{sign} {model.name}"
        if key not in self.made:
            self.made[key] = self._make(sign, model)
        return str(self.made[key])

    def _make(self, sign: str, model: Path) -> Path:
        path = self.folder / f"{sign.strip('<>')} {model.name}"
        if sign == "<judge>":
            return _judge(path, self.small.llama)
        if sign == "<headed>":
            return _headed(path, model)
        return _stirred(model, path)


def _stirred(model: Path, path: Path) -> Path:
    """A copy whose weights differ."""
    from safetensors.torch import load_file, save_file

    shutil.copytree(model, path)
    weights = load_file(path / "model.safetensors")
    moved = {name: value * 1.25 for name, value in weights.items()}
    save_file(moved, path / "model.safetensors", {"format": "pt"})
    return path


def _judge(path: Path, llama: Path) -> Path:
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    torch.manual_seed(0)
    model = AutoModelForSequenceClassification.from_pretrained(llama, num_labels=1)
    model.save_pretrained(path)
    AutoTokenizer.from_pretrained(llama).save_pretrained(path)
    return path


def _headed(path: Path, model: Path) -> Path:
    """A classifier of five labels."""
    import transformers

    kind = "Image" if model.name == "vit" else "Sequence"
    auto = getattr(transformers, f"AutoModelFor{kind}Classification")
    shutil.copytree(model, path)
    auto.from_pretrained(model, num_labels=5).save_pretrained(path)
    return path


# ---- documents ----


@dataclass(frozen=True)
class Bench:
    """Puts launches together; what was observed once is not observed again."""

    models: Models
    seen: dict[str, Seen] = field(default_factory=dict)

    def document(self, task: str, wish: Field) -> dict[str, Any]:
        """A launch of a task with what the field needs, without its value."""
        small = self.models.small
        block = {"type": task, **TASKS.get(task, {})}
        name = f"{task}-{wish.rows}"
        launch = small.launch(f"fields-{name}", block, rows_of(task, wish.rows))
        if task == "evaluation":
            for block_name in ("training", "checkpoint"):
                del launch["spec"][block_name]
            launch["spec"]["model"]["name_or_path"] = str(small.llama)
        merge(launch["spec"], self.filled(wish.needs, task))
        return launch

    def filled(self, value: Any, task: str) -> Any:
        """Values with models in place of their signs."""
        if isinstance(value, dict):
            return {name: self.filled(each, task) for name, each in value.items()}
        if isinstance(value, list):
            return [self.filled(each, task) for each in value]
        if value == "<other rows>":
            other = self.models.small.launch(f"other-{task}", {"type": task}, PLAIN[task][::2])
            return other["spec"]["data"]["train"][0]["path"]
        if isinstance(value, str) and value in _SIGNS:
            return self.models.named(value, task)
        return value

    def value_of(self, wish: Field, task: str) -> Any:
        if wish.value == "<renamed>":
            return {next(iter(PLAIN[task][0])): "ours"}
        if wish.value == "<parts>":
            return _PARTS
        return self.filled(wish.value, task)


_SIGNS = ("<the model>", "<another model>", "<headed>", "<judge>")
_PARTS = (
    "{% for message in messages %}{{ message['role'] + ': ' }}{% for part in message['content'] %}"
    "{{ '<image>' if part['type'] == 'image' else part['text'] }}{% endfor %}"
    "{{ '<|im_end|>' }}{% endfor %}{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}"
)


def merge(given: dict[str, Any], more: dict[str, Any]) -> None:
    """Deeply; of lists item by item."""
    for name, value in more.items():
        old = given.get(name)
        if isinstance(old, dict) and isinstance(value, dict) and "type" not in value:
            merge(old, value)
        elif isinstance(old, list) and isinstance(value, list) and isinstance(old[0], dict):
            for number, each in enumerate(value):
                if number < len(old) and "type" not in each:
                    merge(old[number], each)
                else:
                    old[number:] = [each]
        else:
            given[name] = copy.deepcopy(value)


def put(document: Any, path: str, value: Any) -> str:
    """Set the value at a path of the schema; returns its JSON pointer."""
    pointer = ""
    names = [part for name in path.split(".") for part in _parts(name)]
    for name in names[:-1]:
        if isinstance(document, dict) and document.get(name) is None:
            document[name] = {}
        document = document[name]
        pointer += f"/{name}"
    document[names[-1]] = value
    return f"{pointer}/{names[-1]}"


def _parts(name: str) -> Iterator[Any]:
    """`train[]` is the first of a list; what stands in further brackets is a tag."""
    yield name.partition("[")[0]
    if "[]" in name:
        yield 0


# ---- the test ----

OBSERVERS: dict[str, Callable[[dict[str, Any]], Seen]] = {
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
    return SHARED.get(path.replace("data.validation[]", "data.train[]"))


def failures(bench: Bench, task: str, paths: list[str]) -> Iterator[str]:
    for path in paths:
        place = place_of(task, path)
        if place is None:
            yield f"{path} has no place in tests/trainer_core/fields.py"
        elif isinstance(place, OfTheService):
            if place.words not in inspect.getsource(importlib.import_module(place.reader)):
                yield f"{path} is not read by {place.reader}"
        elif isinstance(place, Field) and (wrong := _ignored(bench, task, path, place)):
            yield wrong


def _ignored(bench: Bench, task: str, path: str, place: Field) -> str | None:
    """What is wrong with a field: None where it is refused with its name, or changes something."""
    wish = place.of.get(task, place)
    if wish.once and task != "sft" and not path.startswith("task."):
        return None
    if path.startswith("data.validation[]") and wish.by == "source":
        return None  # the same function reads both
    base = bench.document(task, wish)
    if path.startswith("data.validation[]"):
        base["spec"]["data"]["validation"] = copy.deepcopy(base["spec"]["data"]["train"])
    changed = copy.deepcopy(base)
    pointer = _set(bench, (task, path, wish), changed["spec"])
    if problems := check(TrainSpec.model_validate(changed["spec"]), Hardware()):
        if any(_is_about(problem, pointer) for problem in problems):
            return None
        return f"{path}: refused for something else: {[p.message for p in problems]}"
    by = "run" if task == "evaluation" and wish.by in ("trainer", "report") else wish.by
    look = OBSERVERS[by]
    if _looked(bench, look, base) == look(changed):
        return f"{path}: {wish.value!r} changes nothing that is observed, and is not refused"
    return None


def _set(bench: Bench, what: tuple[str, str, Field], spec: dict[str, Any]) -> str:
    """Put the value into a spec; returns the JSON pointer of what was put there."""
    task, path, wish = what
    if path.endswith("].type"):  # the kind of an adapter or a reward comes with what it needs
        one = bench.filled({"type": wish.value, **_REQUIRED.get(wish.value, {})}, task)
        return put(spec, path.removesuffix(".type"), one)
    return put(spec, path, bench.value_of(wish, task))


_REQUIRED: dict[str, dict[str, Any]] = {
    "regex": {"pattern": "[0-9]"},
    "length": {"max": 3},
    "freeze": {"trainable_patterns": ["*.weight"]},
    "reward_model": {"model": {"source": "folder", "name_or_path": "<judge>"}},
}


def _looked(bench: Bench, look: Callable[[dict[str, Any]], Seen], base: dict[str, Any]) -> Seen:
    key = f"{look.__name__} {base}"
    if key not in bench.seen:
        bench.seen[key] = look(base)
    return bench.seen[key]


def _is_about(problem: Problem, pointer: str) -> bool:
    """Whether a refusal names the field, what it stands in, or the combination of adapter, base and
    processes that the table refuses."""
    combined = problem.pointer == "/task/type" and pointer.split("/")[1] in (
        "adapter",
        "quantization",
        "distributed",
    )
    return combined or pointer.startswith(problem.pointer) or problem.pointer.startswith(pointer)


@pytest.fixture(scope="module")
def bench(small: Small, tmp_path_factory: pytest.TempPathFactory) -> Bench:
    folder = tmp_path_factory.mktemp("fields")
    inner = {name: getattr(small, name) for name in ("bert", "llama", "vit", "llava")}
    own = {name: folder / name for name in inner}
    for name, model in inner.items():
        shutil.copytree(model, own[name])
        _stirred(model, own[name] / "inner")
    return Bench(Models(replace(small, **own), folder))


GONE_THROUGH = tuple(task for task in OWN if task != "evaluation")
"""Task types whose own fields are set one by one so far; every field of all has its place."""


@pytest.mark.parametrize("task", GONE_THROUGH)
def test_every_field_of_the_task_arrives_or_is_refused(task: str, bench: Bench) -> None:
    assert [*failures(bench, task, task_leaves(blocks()[task]))] == []


def test_what_is_observed_is_the_same_twice(bench: Bench) -> None:
    """Else everything would seem to change something."""
    for task in ("text_classification", "grpo"):
        document = bench.document(task, Field(None))
        assert observe(document) == observe(document)


def test_the_table_has_every_field_and_no_other() -> None:
    """A new field fails here until somebody says where it goes; one that is gone, too."""
    assert OWN.keys() == blocks().keys()
    for task, block in blocks().items():
        assert {path.removeprefix("task.") for path in task_leaves(block)} == OWN[task].keys()
    paths = {path.replace("data.validation[]", "data.train[]") for path in shared_leaves()}
    assert paths == SHARED.keys()
    lonely = [path for path, place in SHARED.items() if isinstance(place, OneChoice)]
    for path in lonely:
        model: Any = TrainSpec
        for name in path.split(".")[:-1]:
            model = model.model_fields[name].annotation
        choices = model.model_fields[path.split(".")[-1]].annotation.__args__
        assert {*choices} <= {"auto", "hf"}

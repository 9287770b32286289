"""Launches of every task in which a single field can be seen: rows, models, and how a value is put
into a spec."""

import copy
import random
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.trainer_core.equivalence.variants import conversations
from tests.trainer_core.fields import Field
from tests.trainer_core.observed import Seen
from tests.trainer_core.small_images import encoded, labelled_images, picture, visual_questions
from tests.trainer_core.small_tasks import Small, documents, opinions, preferences, questions
from tests.trainer_core.small_texts import answers, pairs, triplets

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
    return ROWS[kind](task, copy.deepcopy(PLAIN[task]))


def _renamed(_: str, rows: Rows) -> Rows:
    """The first column once more under another name, of the row before."""
    name = next(iter(rows[0]))
    return [
        row | {"ours": other[name]} for row, other in zip(rows, [rows[-1], *rows], strict=False)
    ]


def _bad(_: str, rows: Rows) -> Rows:
    name = next(iter(rows[0]))
    return [*rows[:-1], rows[-1] | {name: 7}]


def _long(task: str, rows: Rows) -> Rows:
    """Two rows of 16 are short enough for the length that `fields.py` sets, all others are not."""
    return [*rows[:-2], *map(_SHORT[task], rows[-2:])]


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
    "sentence_transformer": lambda row: {"anchor": row["anchor"][-1], "positive": "b"},
}
ROWS: dict[str, Callable[[str, Rows], Rows]] = {
    "plain": lambda _, rows: rows,
    "renamed": _renamed,
    "bad": _bad,
    "long": _long,
    "large": _large,
    "both": lambda _, rows: [row | {"text": f"number {i}"} for i, row in enumerate(rows)],
    "numbered": lambda _, rows: [row | {"label": i % 3} for i, row in enumerate(rows)],
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
        if sign == "<another judge>":
            return stirred(Path(self.named("<judge>", "grpo")), path)
        if sign == "<headed>":
            return _headed(path, model)
        if sign == "<masked>":
            return _masked(path, model)
        return stirred(model, path)


def stirred(model: Path, path: Path) -> Path:
    """A copy of a model whose weights differ."""
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
    stirred(path, path / "inner")
    return path


def _headed(path: Path, model: Path) -> Path:
    """A classifier of five labels."""
    import transformers

    kind = "Image" if model.name == "vit" else "Sequence"
    auto = getattr(transformers, f"AutoModelFor{kind}Classification")
    shutil.copytree(model, path)
    auto.from_pretrained(model, num_labels=5).save_pretrained(path)
    return path


def _masked(path: Path, model: Path) -> Path:
    """An encoder that has a head for masked tokens."""
    from transformers import AutoModelForMaskedLM

    shutil.copytree(model, path)
    AutoModelForMaskedLM.from_pretrained(model).save_pretrained(path)
    return path


# ---- documents ----


Look = Callable[[dict[str, Any]], Seen]


@dataclass(frozen=True)
class Bench:
    """Puts launches together; what was observed once is not observed again."""

    models: Models
    seen: dict[str, Seen] = field(default_factory=dict)
    launches: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)

    def pair(self, task: str, path: str, wish: Field) -> tuple[dict[str, Any], dict[str, Any], str]:
        """Launches of a task without and with a field's value, and the field's JSON pointer."""
        base = self.document(task, wish)
        if path.startswith("data.validation[]"):
            base["spec"]["data"]["validation"] = copy.deepcopy(base["spec"]["data"]["train"])
        changed = copy.deepcopy(base)
        return base, changed, self._set(task, path, wish, changed["spec"])

    def document(self, task: str, wish: Field) -> dict[str, Any]:
        """A launch of a task with what the field needs, without its value."""
        if (task, wish.rows) not in self.launches:
            self.launches[task, wish.rows] = self._launch(task, wish.rows)
        launch = copy.deepcopy(self.launches[task, wish.rows])
        merge(launch["spec"], self._filled(wish.needs, task))
        return launch

    def looked(self, look: Look, document: dict[str, Any]) -> Seen:
        """What is seen of a launch."""
        key = f"{look.__name__} {document}"
        if key not in self.seen:
            self.seen[key] = look(document)
        return self.seen[key]

    def _launch(self, task: str, rows: str) -> dict[str, Any]:
        block = {"type": task, **TASKS.get(task, {})}
        launch = self.models.small.launch(f"fields-{task}-{rows}", block, rows_of(task, rows))
        if task == "evaluation":
            for name in ("training", "checkpoint"):
                del launch["spec"][name]
        return launch

    def _set(self, task: str, path: str, wish: Field, spec: dict[str, Any]) -> str:
        """Put the value into a spec, with what comes along; returns the JSON pointer."""
        along = self._filled(wish.along, task)
        holder = path.rpartition(".")[0]
        if path.endswith("].type"):  # the kind of an adapter or a reward: a block of its own
            return put(spec, holder, {"type": wish.value, **along})
        for other, value in along.items():
            put(spec, f"{holder}.{other}", value)
        return put(spec, path, self._value_of(wish, task))

    def _filled(self, value: Any, task: str) -> Any:
        """Values with models and files in place of their signs."""
        if isinstance(value, dict):
            return {name: self._filled(each, task) for name, each in value.items()}
        if isinstance(value, list):
            return [self._filled(each, task) for each in value]
        if value == "<other rows>":
            return self._other_rows(task)
        if isinstance(value, str) and value in _SIGNS:
            return self.models.named(value, task)
        return value

    def _other_rows(self, task: str) -> str:
        if (task, "other") not in self.launches:
            other = self.models.small.launch(f"other-{task}", {"type": task}, PLAIN[task][::2])
            self.launches[task, "other"] = other
        path: str = self.launches[task, "other"]["spec"]["data"]["train"][0]["path"]
        return path

    def _value_of(self, wish: Field, task: str) -> Any:
        if wish.value == "<renamed>":
            return {next(iter(PLAIN[task][0])): "ours"}
        if wish.value == "<parts>":
            return _PARTS
        return self._filled(wish.value, task)


_SIGNS = ("<the model>", "<another model>", "<headed>", "<masked>", "<judge>", "<another judge>")
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

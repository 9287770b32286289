"""Wrong fields are explained with a pointer, the value, the nearest name and the way out."""

import copy
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from trainer_core.problems import Problem, explain
from trainer_core.spec import TrainSpec

SPEC: dict[str, Any] = {
    "task": {"type": "sft"},
    "model": {"name_or_path": "owner/model"},
    "data": {"train": [{"source": "folder", "path": "shop.jsonl"}]},
}


def problems(changes: dict[str, Any], prefix: tuple[str, ...] = ()) -> list[Problem]:
    """What is wrong with the spec after `changes` (dotted path → value)."""
    document = copy.deepcopy(SPEC)
    for path, value in changes.items():
        *parents, last = (int(p) if p.isdigit() else p for p in path.split("."))
        here: Any = document
        for parent in parents:
            here = here[parent] if isinstance(here, list) else here.setdefault(parent, {})
        here[last] = value
    with pytest.raises(ValidationError) as wrong:
        TrainSpec.model_validate(document)
    return explain(wrong.value, prefix)


@pytest.mark.parametrize(
    ("path", "value", "pointer", "message"),
    [
        (
            "training.learning_rate",
            "fast",
            "/training/learning_rate",
            "`training.learning_rate` is 'fast', but it must be a number",
        ),
        (
            "training.learning_rate",
            "1e-4",
            "/training/learning_rate",
            "`training.learning_rate` is '1e-4', but it must be a number",
        ),
        (
            "training.max_steps",
            True,
            "/training/max_steps",
            "`training.max_steps` is true, but it must be a whole number",
        ),
        (
            "training.max_steps",
            10**12,
            "/training/max_steps",
            "`training.max_steps` is 1000000000000, but it must be at most 1000000000",
        ),
        (
            "model.subfolder",
            "a/../../b",
            "/model/subfolder",
            "`model.subfolder`: 'a/../../b' leads out of the model: name a folder inside of it",
        ),
        (
            "data.train.0.columns",
            {"prompt": "a\0"},
            "/data/train/0/columns/prompt",
            "`data.train[0].columns.prompt`: it holds a NUL character: take it out",
        ),
        ("training.seed", -1, "/training/seed", "`training.seed` is -1, but it must be at least 0"),
        (
            "training.optim",
            "adamw",
            "/training/optim",
            "`training.optim` is 'adamw', but it must be 'adamw_torch', 'adamw_torch_fused', "
            "'adamw_8bit', 'paged_adamw_8bit', 'stable_adamw', 'adafactor' or 'sgd' (did you mean "
            "'adamw_8bit'?)",
        ),
        (
            "data.validation",
            {"split_ratio": 2},
            "/data/validation/split_ratio",
            "`data.validation.split_ratio` is 2, but it must be less than 1",
        ),
        (
            "data.validation",
            3,
            "/data/validation",
            "`data.validation` is 3, but it must be a list or an object with `split_ratio`",
        ),
        (
            "checkpoint.save_steps",
            0,
            "/checkpoint/save_steps",
            "`checkpoint.save_steps` is 0, but it must be 'auto' or at least 1",
        ),
        (
            "data.train",
            [],
            "/data/train",
            "`data.train` is a list, but it must be a list of 1 items or more",
        ),
        (
            "evaluation",
            {"strategy": "steps"},
            "/evaluation",
            "`evaluation`: strategy 'steps' needs `steps`",
        ),
        (
            "data.train.0.columns",
            {"a/b": 3},
            "/data/train/0/columns/a~1b",
            "`data.train[0].columns.a/b` is 3, but it must be a string",
        ),
        ("task", 3, "/task", "`task` is 3, but it must be an object with `type`"),
    ],
)
def test_wrong_value(path: str, value: Any, pointer: str, message: str) -> None:
    [problem] = problems({path: value})
    assert (problem.pointer, problem.message) == (pointer, message)


@pytest.mark.parametrize(
    ("path", "message"),
    [
        (
            "training.lerning_rate",
            "there is no field `lerning_rate` in `training`: did you mean `learning_rate`?",
        ),
        (
            "data.train.0.pth",
            "there is no field `pth` in `data.train[0]`: did you mean `path`?",
        ),
        (
            "learning_rate",
            "there is no field `learning_rate` at the top: did you mean `training.learning_rate`?",
        ),
        (
            "task.bananas",
            "there is no field `bananas` in `task`: take it out; known are `chat_template`, "
            "`default_system`, `eos_token`, `kl_beta`, `loss_on`, `loss_type`, `max_length`, "
            "`packing`, `packing_strategy`, `pad_to_multiple_of`, `padding_free`, "
            "`train_on_eot`, `type`",
        ),
    ],
)
def test_a34_unknown_field_names_the_nearest(path: str, message: str) -> None:
    [problem] = problems({path: "x"})
    assert problem.message == message
    assert problem.pointer == "/" + path.replace(".", "/")


def test_missing_field() -> None:
    document = {k: v for k, v in SPEC.items() if k != "model"}
    with pytest.raises(ValidationError) as wrong:
        TrainSpec.model_validate(document)
    assert explain(wrong.value) == [Problem(pointer="/model", message="`model` is missing: add it")]


def test_each_wrong_field_is_told_once() -> None:
    wrong = {"training.seed": "x", "training.weight_decay": -1, "data.validation": [{"path": "a"}]}
    pointers = [p.pointer for p in problems(wrong)]
    assert sorted(pointers) == [
        "/data/validation/0/source",
        "/training/seed",
        "/training/weight_decay",
    ]


def test_no_secret_is_repeated() -> None:
    found = problems({"model.token": "hf_abcdef", "hub_token": "hf_ghijkl"})
    assert {p.pointer for p in found} == {"/model/token", "/hub_token"}
    assert all(p.value is None and "hf_" not in p.message for p in found)


def test_values_are_short() -> None:
    [problem] = problems({"training.learning_rate": "x" * 1000})
    assert problem.value is not None
    assert len(problem.value) < 100


def test_prefix_is_put_before_pointers() -> None:
    [problem] = problems({"training.seed": -1}, prefix=("items", "0"))
    assert problem.pointer == "/items/0/training/seed"


class Cat(BaseModel):
    lives: int


class Dog(BaseModel):
    tricks: list[str]


class Owner(BaseModel):
    pet: Cat | Dog | None = None


def test_unions_of_other_models_are_walked() -> None:
    with pytest.raises(ValidationError) as wrong:
        Owner.model_validate({"pet": {"tricks": [1]}})
    pointers = [p.pointer for p in explain(wrong.value)]
    assert "/pet/tricks/0" in pointers
    assert all("Cat" not in p and "Dog" not in p for p in pointers)


@pytest.mark.parametrize(
    ("task", "pointer", "message"),
    [
        ({}, "/task/type", "`task.type` is missing: add it"),
        ({"type": "sfft"}, "/task/type", "`task.type` is 'sfft', but it must be 'sft' or "),
        ({"type": "sfft"}, "/task/type", "(did you mean 'sft'?)"),
        ("sft", "/task", "`task` is 'sft', but it must be an object"),
        (
            {"type": "text_classification", "packing": True},
            "/task/packing",
            "there is no field `packing` in `task`: take it out; known are `class_weights`, ",
        ),
        ({"type": "sft", "max_lenght": 8}, "/task/max_lenght", "did you mean `max_length`?"),
        ({"type": "text_classification", "threshold": 2.0}, "/task/threshold", "less than 1"),
    ],
)
def test_the_type_of_a_task_decides_its_fields(task: Any, pointer: str, message: str) -> None:
    [problem] = problems({"task": task})
    assert problem.pointer == pointer
    assert message in problem.message

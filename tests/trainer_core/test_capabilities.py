"""Combinations that cannot work are refused with their field and the way out."""

from pathlib import Path
from typing import Any

import pytest

from trainer_core.capabilities import NEEDS_GPU, RULES, TABLE, check, combination
from trainer_core.capabilities_page import page
from trainer_core.resolve import Hardware
from trainer_core.spec import TrainSpec

REPOSITORY = Path(__file__).parents[2]
CPU = Hardware()
OLD_GPU = Hardware(gpus=1, gpu_memory_gb=16, bf16=False)
SOURCE = {"source": "folder", "path": "shop.jsonl"}


def spec(**blocks: Any) -> TrainSpec:
    document = {
        "task": {"type": "sft"},
        "model": {"name_or_path": "owner/model"},
        "data": {"train": [SOURCE]},
    }
    return TrainSpec.model_validate(document | blocks)


def train_on(**source: Any) -> dict[str, Any]:
    return {"data": {"train": [SOURCE | source]}}


@pytest.mark.parametrize("adapter", [None, {"type": "lora"}])
def test_the_tables_rows_pass(adapter: dict[str, str] | None) -> None:
    assert check(spec(adapter=adapter), CPU) == []
    assert combination(spec(adapter=adapter)) in TABLE


@pytest.mark.parametrize(
    ("blocks", "hardware", "pointer", "message"),
    [
        ({"precision": "fp16"}, CPU, "/precision", "needs a GPU: use 'auto' or 'fp32'"),
        ({"precision": "bf16"}, OLD_GPU, "/precision", "does not have: use 'auto' or 'fp16'"),
        (
            {"model": {"name_or_path": "a/b", "attn_implementation": "flash_attention_2"}},
            CPU,
            "/model/attn_implementation",
            "needs a GPU: use 'auto'",
        ),
        ({"publish": {"merge": "always"}}, None, "/publish/merge", "nothing is merged"),
        (
            {"model": {"name_or_path": "/models/x"}},
            None,
            "/model/name_or_path",
            "use source 'folder'",
        ),
        (
            {"model": {"source": "folder", "name_or_path": "/m", "revision": "main"}},
            None,
            "/model/revision",
            "has no effect with source 'folder': leave it out",
        ),
        (
            train_on(split="train"),
            None,
            "/data/train/0/split",
            "data.train[0].split has no effect with source 'folder': leave it out",
        ),
        (
            train_on(source="s3", path="bucket/key"),
            None,
            "/data/train/0/path",
            "not of the form s3://bucket/key",
        ),
        (
            train_on(columns={"promt": "question"}),
            None,
            "/data/train/0/columns",
            "is 'prompt' meant?",
        ),
        (
            {"task": {"type": "sft", "loss_on": "assistant"}, **train_on(format="text")},
            None,
            "/task/loss_on",
            "plain text, which has no turns",
        ),
        (
            {"task": {"type": "sft", "chat_template": "chatnl"}},
            None,
            "/task/chat_template",
            "neither 'auto', 'tokenizer', a name",
        ),
        (
            {"training": {"lr_scheduler_type": "constant", "warmup_steps": 5}},
            None,
            "/training/warmup_steps",
            "has no effect with lr_scheduler_type 'constant': use 'constant_with_warmup'",
        ),
        (
            {"checkpoint": {"save_strategy": "epoch", "save_steps": 5}},
            None,
            "/checkpoint/save_steps",
            "has no effect with save_strategy 'epoch': use 'steps'",
        ),
    ],
)
def test_refusal(
    blocks: dict[str, Any], hardware: Hardware | None, pointer: str, message: str
) -> None:
    [problem] = check(spec(**blocks), hardware)
    assert problem.pointer == pointer
    assert message in problem.message


@pytest.mark.parametrize(
    "blocks",
    [
        {"training": {"lr_scheduler_type": "constant", "warmup_steps": 0}},
        {"training": {"lr_scheduler_type": "constant_with_warmup", "warmup_steps": 5}},
        {"checkpoint": {"save_strategy": "epoch"}},
    ],
)
def test_what_a_schedule_does_anyway_is_taken(blocks: dict[str, Any]) -> None:
    assert check(spec(**blocks)) == []


def test_a_secret_is_not_repeated() -> None:
    [problem] = check(spec(**train_on(token={"secret": "hub"})), None)
    assert problem.value is None


def test_the_page_is_that_of_the_table() -> None:
    """`make docs` writes it; every reason, every GPU-only value and every rule stands in it."""
    committed = (REPOSITORY / "docs/capabilities.md").read_text(encoding="utf-8")
    assert committed == page(), "stale: run `make docs`"
    said = " ".join(committed.split())
    assert {row.reason for row in TABLE if row.reason and row.reason not in said} == set()
    assert [need.why for need in NEEDS_GPU if need.why not in said] == []
    wordless = [rule.__name__ for rule in RULES if not (rule.__doc__ or "").strip()]
    assert wordless == [], "a rule says in its docstring what it refuses, and why"
    assert all(" ".join((rule.__doc__ or "").split()) in said for rule in RULES)


def test_a_refusal_gives_the_tables_reason() -> None:
    """The page, the API (`tests/app/test_http.py`) and what `check` says have one source."""
    for row in TABLE:
        if row.task != "multimodal" or row.reason is None:
            continue
        adapter = None if row.adapter == "none" else {"type": row.adapter}
        if row.adapter == "freeze":
            adapter = {"type": "freeze", "trainable_patterns": ["x"]}
        base = None if row.quantization == "none" else {"bits": int(row.quantization[0])}
        given = spec(task={"type": "multimodal"}, adapter=adapter, quantization=base)
        messages = [problem.message for problem in check(given)]
        assert any(row.reason in message for message in messages), row

"""Combinations that cannot work are refused with their field and the way out."""

from typing import Any

import pytest

from trainer_core.capabilities import TABLE, check, combination
from trainer_core.resolve import Hardware
from trainer_core.spec import TrainSpec

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
    ],
)
def test_refusal(
    blocks: dict[str, Any], hardware: Hardware | None, pointer: str, message: str
) -> None:
    [problem] = check(spec(**blocks), hardware)
    assert problem.pointer == pointer
    assert message in problem.message


def test_a_secret_is_not_repeated() -> None:
    [problem] = check(spec(**train_on(token={"secret": "hub"})), None)
    assert problem.value is None

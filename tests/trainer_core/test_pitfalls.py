"""Known faults of other trainers, A1 to A38: each has a test that is named after its number.

Here are those that no task and no stage of a run is about.
"""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from tests.trainer_core.test_capabilities import CPU, SOURCE, spec
from trainer_core.capabilities import STRATEGIES, TABLE, check
from trainer_core.problems import explain

ROWS = range(1, 39)
_TEST = re.compile(r"def test_((?:[ab]\d+_)+)")


def covered() -> set[int]:
    """Numbers that a test's name begins with, such as `test_a8_a27_…`."""
    found = set[int]()
    for path in Path(__file__).parents[1].rglob("test_*.py"):
        for numbers in _TEST.findall(path.read_text(encoding="utf-8")):
            found |= {int(number) for number in re.findall(r"a(\d+)_", numbers)}
    return found


def test_every_fault_has_a_test() -> None:
    assert [f"A{row}" for row in ROWS if row not in covered()] == []


def unknown(**blocks: Any) -> tuple[str, str]:
    """Pointer and words of the one problem of a document that the schema does not take."""
    with pytest.raises(ValidationError) as wrong:
        spec(**blocks)
    [problem] = explain(wrong.value)
    return problem.pointer, problem.message


@pytest.mark.parametrize("strategy", ["zero2", "zero3", "fsdp2"])
def test_a13_no_answers_are_written_by_a_model_in_pieces(strategy: str) -> None:
    """Ranks that hold a part of the weights each must all generate together, or they hang: there
    is no such strategy. With `ddp` rank 0, which has all of them, writes alone at the end."""
    assert STRATEGIES == ("none", "ddp")
    generation = {"validation": {"split_ratio": 0.1}, "train": [SOURCE]}
    pointer, message = unknown(
        distributed={"strategy": strategy}, data=generation, evaluation={"generation": {}}
    )
    assert pointer == "/distributed/strategy"
    assert f"is '{strategy}', but it must be 'auto', 'none' or 'ddp'" in message
    spread = spec(distributed={"strategy": "ddp"}, data=generation, evaluation={"generation": {}})
    assert check(spread, CPU) == []


@pytest.mark.parametrize("wish", [{}, {"distributed": {"strategy": "ddp", "processes": 2}}])
def test_a17_a18_a19_a_backend_that_is_not_there(wish: dict[str, Any]) -> None:
    """Unsloth's versions, masks and several GPUs cannot trouble a run: no spec reaches it."""
    pointer, message = unknown(backend="unsloth", **wish)
    assert pointer == "/backend"
    assert "is 'unsloth', but it must be 'auto' or 'hf'" in message
    assert {row.backend for row in TABLE} == {"hf"}


@pytest.mark.parametrize(
    ("blocks", "package"),
    [
        ({}, "peft"),
        ({"adapter": {"type": "lora"}, "quantization": {"bits": 4}}, "bitsandbytes"),
        ({"training": {"optim": "paged_adamw_8bit"}}, "bitsandbytes"),
        ({"task": {"type": "sentence_transformer"}}, "sentence_transformers"),
    ],
)
def test_a17_a_package_that_is_not_there_is_named(blocks: dict[str, Any], package: str) -> None:
    """In a process that cannot import it: an error in words, and no ImportError."""
    code = (
        "import sys\n"
        "sys.modules[sys.argv[1]] = None\n"
        "from trainer_core.backend import require_packages\n"
        "from trainer_core.errors import TrainerError\n"
        "from trainer_core.spec import TrainSpec\n"
        "try:\n"
        "    require_packages(TrainSpec.model_validate_json(sys.argv[2]))\n"
        "except TrainerError as error:\n"
        "    print(error.message)\n"
    )
    document = spec(**blocks).model_dump_json()
    said = subprocess.run(
        [sys.executable, "-c", code, package, document],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    ).stdout
    assert "backend 'hf' needs " in said
    assert f"{package} for this spec, which is not installed on this host" in said

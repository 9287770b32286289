"""The hash of a spec: it stays what it was, or checkpoints of older versions are refused.

The frozen values are `spec_hash` of these specs, resolved, as commit 830516c computed it. A field
added to a hashed block changes them until `trainer_core.identity._LATER` names it.
"""

from typing import Any

import pytest
from pydantic import ValidationError

from trainer_core.identity import as_begun, spec_hash, trained_fields
from trainer_core.resolve import Hardware, resolve
from trainer_core.spec import TrainSpec

TASKS = {
    "sft": "556463f97b86d5cd81ed372e272f22e6ad4a56c1237fd41bf88bba30dea52ced",
    "text_classification": "678cb1148d4f79a5467b3fb390445351470ba19497942c2dce06f38a79abc73a",
    "clm": "7a049ab988cc3701cc7c27883fdd9dbe02be450cf2544137bfcc6da78a2e7317",
    "dpo": "b0dfadb0ed65ba7c817b17ab00fa22a2fab71baabcc6b666427de10c962dcc14",
    "mlm": "bd592ac15389c4098d4566f9c088b6884cda4a1a57867f55e2012122fc4a886b",
    "sentence_transformer": "0bc06483d080221bb39fad7373e7c79dfa0a0633ac8244f9656a3f3befbe41f4",
    "kto": "17a8290dfa40549bfb032c09249c91647aea9a4419c0f09970ec781631c7055b",
    "grpo": "3d03a8e812392dd6830a4c2983af0035070051ced6a953fbca45eebfdb408ea3",
}
ADAPTERS = {
    "lora": "381d10a45a2f2395a44602f350cc6ed2f6faa103643481ddccda8b9c6951cfdf",
    "adalora": "b72a64c3c5920e074b52ffb311ea341a845cbbdf65d3eeae358afac1c98044ee",
    "ia3": "3a9493742ca1eaeaf633388d243c3f6990d37d4df88691e4f452d94f06f630f7",
    "vera": "b72dc6e68964dfb649be2fa759552b5ce603ec63e03e268cbd571aeec62e40c9",
    "layernorm": "ec28eeebe227e20245306f9b1cec2f1d6f9e36770dc9b8c428fcdbfd12f17fa6",
}


THEN = {"training": {"per_device_train_batch_size": 4}}
"""What `resolve` filled in on a CPU for tasks that accumulate; it is 8 by now."""


def hashed(**blocks: Any) -> str:
    given = {
        "task": {"type": "sft"},
        "model": {"name_or_path": "acme/tiny-0.5B"},
        "data": {"train": [{"source": "hub", "path": "acme/rows"}]},
    }
    spec = TrainSpec.model_validate(given | blocks)
    return spec_hash(resolve(spec, Hardware(cpu_threads=2)).spec)


@pytest.mark.parametrize("task", TASKS)
def test_the_hash_of_a_task_is_that_of_older_versions(task: str) -> None:
    then = {} if task in ("clm", "sentence_transformer") else THEN
    assert hashed(task={"type": task}, **then) == TASKS[task]


@pytest.mark.parametrize("adapter", ADAPTERS)
def test_the_hash_of_an_adapter_in_4_bits_is_that_of_older_versions(adapter: str) -> None:
    assert hashed(adapter={"type": adapter}, quantization={"bits": 4}, **THEN) == ADAPTERS[adapter]


def test_another_number_of_processes_is_another_training() -> None:
    """Neither goes on with the other's checkpoint; one process is what it was without the field."""
    two, three = ({"strategy": "ddp", "processes": count} for count in (2, 3))
    assert len({hashed(), hashed(distributed=two), hashed(distributed=three)}) == 3
    assert hashed(distributed={"strategy": "none", "processes": 1}) == hashed()


@pytest.mark.parametrize("strategy", ["auto", "ddp"])
@pytest.mark.parametrize("adapter", [None, {"type": "lora"}])
def test_an_open_spec_goes_on_as_it_began_on_other_machines(
    adapter: dict[str, Any] | None, strategy: str
) -> None:
    """Whatever one machine made of it, each other machine makes the same training of it again."""
    given = {
        "task": {"type": "sft"},
        "model": {"name_or_path": "acme/tiny-0.5B"},
        "data": {"train": [{"source": "hub", "path": "acme/rows"}]},
        "adapter": adapter,
        "distributed": {"strategy": strategy},
    }
    spec = TrainSpec.model_validate(given)
    machines = [Hardware(cpu_threads=2)]
    machines += [Hardware(gpus=1, gpu_memory_gb=gb, bf16=True) for gb in (8, 24)]
    for first in machines:
        begun = resolve(spec, first).spec
        for second in machines:
            again = as_begun(spec, resolve(spec, second).spec, trained_fields(begun))
            assert spec_hash(resolve(again, second).spec) == spec_hash(begun)


def test_documents_are_not_nested_without_end() -> None:
    """Whoever writes them recurses: 100 levels are let be, 300 are told and not a traceback."""

    def rewarded(levels: int) -> None:
        schema: dict[str, Any] = {}
        for _ in range(levels):
            schema = {"properties": schema}
        reward = {"type": "json_schema", "json_schema": schema}
        hashed(task={"type": "grpo", "rewards": [reward]})

    rewarded(80)
    with pytest.raises(ValidationError, match="nested more than 100 levels deep"):
        rewarded(300)

"""What may leave a checkpoint for a hub: what a model is loaded from, and nothing of the data."""

from typing import Any

import pytest

from tests.trainer_core.runs import Outcome, World, Zygote
from tests.trainer_core.small_tasks import Small, questions
from trainer_core.publish.hub_files import goes_with_a_checkpoint, is_of_the_model
from trainer_core.publish.manifest import read_manifest

NEW_STATE = ("notes_of_a_new_task.json", "buffer.safetensors", "prompts.txt", "model_answers.json")


def test_what_a_model_is_loaded_from_is_of_the_model() -> None:
    names = [
        *("model.safetensors", "model-00001-of-00002.safetensors", "model.safetensors.index.json"),
        *("adapter_model.safetensors", "adapter_config.json", "config.json"),
        *("generation_config.json", "preprocessor_config.json", "processor_config.json"),
        *("video_preprocessor_config.json", "tokenizer.json", "tokenizer_config.json"),
        *("special_tokens_map.json", "added_tokens.json", "vocab.txt", "vocab.json", "merges.txt"),
        *("spiece.model", "sentencepiece.bpe.model", "source.spm", "chat_template.jinja"),
        *("modules.json", "config_sentence_transformers.json", "sentence_bert_config.json"),
        *("1_Pooling/config.json", "2_Dense/model.safetensors", "2_Dense/config.json"),
    ]
    assert [name for name in names if not is_of_the_model(name)] == []


def test_whatever_else_lies_there_is_not() -> None:
    names = [
        *("optimizer.pt", "scheduler.pt", "rng_state.pth", "trainer_state.json", "manifest.json"),
        *("loop_state.json", "reference.safetensors", "README.md", "training_args.bin"),
        *("best/weights/adapter_model.safetensors", "best/weights/config.json", "x/config.json"),
        *("run_lock.json", *NEW_STATE),
    ]
    assert [name for name in names if is_of_the_model(name)] == []


# ---- checkpoints as they are ----

LORA = {"type": "lora", "r": 4}
STATE = {"optimizer.pt", "scheduler.pt", "rng_state.pth", "trainer_state.json", "loop_state.json"}
TOKENIZER = {"tokenizer.json", "tokenizer_config.json", "chat_template.jinja"}
WEIGHTS = {"adapter_model.safetensors", "adapter_config.json"}
VARIANTS: dict[str, tuple[dict[str, Any], set[str]]] = {
    "adalora": (
        {"adapter": {"type": "adalora", "init_r": 4, "target_r": 2}},
        {"rank_budget.json", "rank_budget.safetensors"},
    ),
    "pissa": (
        {"adapter": {**LORA, "init_lora_weights": "pissa_niter_4"}},
        {"adapter_init.safetensors"},
    ),
    "best": (
        {
            "adapter": LORA,
            "evaluation": {"strategy": "steps", "steps": 2},
            "checkpoint": {"save_steps": 4, "load_best_model_at_end": True},
        },
        {"best/weights/adapter_model.safetensors"},
    ),
}


def _check(run: Outcome, beside: set[str]) -> None:
    assert run.code == 0, run.log
    newest = max((run.work / "checkpoints").glob("step-*"))
    files = {entry.path for entry in read_manifest(newest).files}
    assert beside <= files  # or this shows nothing
    leaving = {path for path in files if is_of_the_model(path)}
    assert WEIGHTS <= leaving <= WEIGHTS | TOKENIZER
    stays = {path for path in files - leaving if not path.startswith("best/")}
    assert stays == STATE | {"README.md"} | {path for path in beside if "/" not in path}


@pytest.mark.train
@pytest.mark.parametrize("name", VARIANTS)
def test_nothing_but_the_model_leaves(name: str, world: World, zygote: Zygote) -> None:
    changes, beside = VARIANTS[name]
    _check(zygote.run(world.launch(f"leaves-{name}", training={"max_steps": 8}, **changes)), beside)


@pytest.mark.train
def test_no_answers_leave(small: Small, zygote: Zygote) -> None:
    rows = [
        {"prompt": row["prompt"], "completion": [{"role": "assistant", "content": "great"}]}
        for row in questions(20)
    ]
    launch = small.launch(
        "leaves-base",
        {"type": "sft"},
        rows,
        rows[:4],
        training={"max_steps": 4},
        adapter=LORA,
        evaluation={"compare_base": True, "generation": {"max_new_tokens": 4, "num_samples": 3}},
    )
    _check(zygote.run(launch), {"base_evaluation.json"})
    assert not goes_with_a_checkpoint("base_evaluation.json")


@pytest.mark.train
def test_no_prompts_leave(small: Small, zygote: Zygote) -> None:
    rewards = [{"type": "length", "max": 4}]
    task = {"type": "grpo", "max_length": 64, "max_completion_length": 8, "rewards": rewards}
    prompts = [{"prompt": row["prompt"]} for row in questions(16)]
    training = {"max_steps": 4, "per_device_train_batch_size": 8}
    launch = small.launch("leaves-grpo", task, prompts, training=training, adapter=LORA)
    _check(zygote.run(launch), {"answers.json", "answers.safetensors"})

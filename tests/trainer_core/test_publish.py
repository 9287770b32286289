"""The model folder: whole, loadable, the same numbers, told honestly."""

import hashlib
import json
import shutil
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.trainer_core.runs import World, Zygote
from tests.trainer_core.small_tasks import Small
from trainer_core.errors import Diverged
from trainer_core.events import EventWriter
from trainer_core.publish.manifest import canonical_hash, verify
from trainer_core.publish.model import check_weights
from trainer_core.report import Reporter
from trainer_core.stop import StopSignal

pytestmark = pytest.mark.train

LORA = {"type": "lora", "r": 4, "lora_dropout": 0.0}
IDS = [[9, 40, 41, 7, 100]]


def _logits(model: Any) -> Any:
    import torch

    with torch.no_grad():
        return model.eval()(input_ids=torch.tensor(IDS)).logits


def _base(folder: Path) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder)


def test_events_of_a_run_in_order(world: World, zygote: Zygote) -> None:
    run = zygote.run(world.launch("ordered", adapter=LORA))
    assert run.code == 0, run.log
    assert run.exit == {"code": 0, "reason": None, "message": "", "retryable": False}
    assert [e.n for e in run.events] == list(range(1, len(run.events) + 1))
    assert [p["phase"] for p in run.of("phase")] == [
        "loading",
        "training",
        "evaluating",
        "training",
        "evaluating",
        "publishing",
    ]
    assert run.result == {"status": "succeeded", "reason": None, "message": "", "step": 30}
    assert run.events[-1].type == "result"
    metrics = run.of("metrics")[0]
    wanted = {"step", "epoch", "loss", "learning_rate", "grad_norm"}
    assert wanted | {"tokens_per_second", "samples_per_second"} <= metrics.keys()
    assert run.of("progress")[-1]["step"] == run.of("progress")[-1]["total_steps"] == 30
    assert run.told["late"] == []


def test_an_adapter_is_published_whole(world: World, zygote: Zygote) -> None:
    from peft import AutoPeftModelForCausalLM
    from transformers import AutoTokenizer

    run = zygote.run(world.launch("adapter", adapter=LORA))
    folder = run.work / "model"
    manifest = verify(folder)
    assert (manifest.kind, manifest.step) == ("model", 30)
    assert run.of("artifact") == [{"path": "model", "kind": "model", "bytes": manifest.total_bytes}]
    assert {entry.path for entry in manifest.files} == {
        "README.md",
        "adapter_config.json",
        "adapter_model.safetensors",
        "chat_template.jinja",
        "run_lock.json",
        "tokenizer.json",
        "tokenizer_config.json",
    }
    config = json.loads((folder / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == str(world.model)
    tuned = AutoPeftModelForCausalLM.from_pretrained(folder)
    assert (_logits(tuned) - _logits(_base(world.model))).abs().max() > 1e-3
    tokenizer = AutoTokenizer.from_pretrained(folder)
    messages = [{"role": "user", "content": "환불?"}]
    expected = "<|im_start|>user\n환불?<|im_end|>\n"
    assert tokenizer.apply_chat_template(messages, tokenize=False) == expected


def test_a12_a_trained_adapter_is_not_zero(world: World, zygote: Zygote) -> None:
    from safetensors.torch import load_file

    run = zygote.run(world.launch("nonzero", adapter=LORA))
    weights = load_file(run.work / "model/adapter_model.safetensors")
    assert any("lora_B" in name for name in weights)
    assert all(w.abs().max() > 0 and w.numel() for n, w in weights.items() if "lora_B" in n)
    assert run.of("warning") == []


def test_a12_an_untrained_adapter_is_told(world: World, zygote: Zygote) -> None:
    """One step at the beginning of a warm-up has a learning rate of 0."""
    run = zygote.run(world.launch("zero", adapter=LORA, training={"max_steps": 1}))
    assert run.code == 0
    assert "adapter_unchanged" in {w["code"] for w in run.of("warning")}


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_weights_that_the_last_step_broke_are_not_published(tmp_path: Path, number: float) -> None:
    """No loss comes after the last step, so that only the weights can tell."""
    import torch
    from safetensors.torch import save_file

    weights = {"a": torch.ones(3), "b": torch.tensor([1.0, number])}
    save_file(weights, tmp_path / "model.safetensors")
    with closing(EventWriter(tmp_path / "events.jsonl")) as writer:
        report = Reporter(writer, StopSignal())
        with pytest.raises(Diverged, match=r"not finite \(b\): lower training.learning_rate"):
            check_weights(tmp_path, torch.nn.Linear(1, 1), report)


def test_a21_merged_equals_base_and_adapter(world: World, zygote: Zygote) -> None:
    from peft import AutoPeftModelForCausalLM

    adapter = zygote.run(world.launch("apart", adapter=LORA))
    merged = zygote.run(world.launch("merged", adapter=LORA, publish={"merge": "always"}))
    assert merged.code == 0, merged.log
    folder = merged.work / "model"
    assert not (folder / "adapter_config.json").exists()
    assert json.loads((folder / "config.json").read_text())["use_cache"] is True
    together = _logits(AutoPeftModelForCausalLM.from_pretrained(adapter.work / "model"))
    assert (_logits(_base(folder)) - together).abs().max() <= 1e-5
    assert "Merging changed the logits by at most" in (folder / "README.md").read_text()


@pytest.mark.parametrize("call", [1, 2], ids=["before", "after"])
def test_where_merging_needs_too_much_memory_the_adapter_is_published(
    world: World, zygote: Zygote, call: int
) -> None:
    """The model is asked before its weights are merged, and after: either may be too much. What was
    trained is there in any case, whole, and the run says why it is not merged."""
    from peft import AutoPeftModelForCausalLM

    launch = world.launch(
        f"merge-short-{call}",
        adapter=LORA,
        publish={"merge": "always"},
        evaluation={"strategy": "no"},
        training={"num_train_epochs": 1},
    )
    run = zygote.run(launch, short={"evaluating": True, "calls": [call]})
    assert run.code == 0, run.log
    assert run.result["status"] == "succeeded"
    assert run.of("warning") == [
        {
            "code": "merge_refused",
            "message": "merging needs more memory than there is (CUDA out of memory. Tried to"
            " allocate 2.00 GiB.): the adapter is published alone",
        }
    ]
    folder = run.work / "model"
    assert "adapter_model.safetensors" in {entry.path for entry in verify(folder).files}
    assert not (folder / "model.safetensors").exists()
    assert "merge" not in json.loads((folder / "run_lock.json").read_text())
    assert "Merging changed" not in (folder / "README.md").read_text()
    tuned = AutoPeftModelForCausalLM.from_pretrained(folder)
    assert (_logits(tuned) - _logits(_base(world.model))).abs().max() > 1e-3


def test_a_published_adapter_can_be_trained_further(world: World, zygote: Zygote) -> None:
    """A folder with an adapter is merged into its base first: training starts where it ended."""
    first = zygote.run(world.launch("first", adapter=LORA))
    model = {"source": "folder", "name_or_path": str(first.work / "model")}
    training = {"max_steps": 1, "learning_rate": 1e-9}
    second = zygote.run(world.launch("second", model=model, training=training))
    assert second.code == 0, second.log
    assert second.of("metrics")[-1]["eval_loss"] == pytest.approx(
        first.of("metrics")[-1]["eval_loss"], abs=1e-5
    )


def test_contradicting_generation_settings_do_not_spoil_a_run(world: World, zygote: Zygote) -> None:
    """Sampling settings without `do_sample` mean sampling; the library would refuse to save."""
    folder = world.folder / "sampling"
    shutil.copytree(world.model, folder)
    path = folder / "generation_config.json"
    path.write_text(json.dumps({"do_sample": False, "temperature": 0.6, "top_p": 0.9}))
    model = {"source": "folder", "name_or_path": str(folder)}
    run = zygote.run(world.launch("sampled", model=model, training={"max_steps": 2}))
    assert run.code == 0, run.log
    published = json.loads((run.work / "model/generation_config.json").read_text())
    assert (published["do_sample"], published["temperature"]) == (True, 0.6)


def test_modules_to_save_are_trained_and_kept(world: World, zygote: Zygote) -> None:
    """The fused loss goes through the trained copy of the LM head."""
    from peft import AutoPeftModelForCausalLM

    adapter = LORA | {"target_modules": ["q_proj"], "modules_to_save": ["lm_head"]}
    run = zygote.run(world.launch("heads", adapter=adapter, publish={"merge": "never"}))
    assert run.code == 0, run.log
    tuned = AutoPeftModelForCausalLM.from_pretrained(run.work / "model")
    head = tuned.get_base_model().lm_head.modules_to_save["default"].weight
    original = _base(world.model).lm_head.weight
    assert (head - original).abs().max() > 1e-3


def test_a35_the_run_lock_says_what_was_run(world: World, zygote: Zygote) -> None:
    import torch

    run = zygote.run(world.launch("locked", adapter=LORA))
    lock = json.loads((run.work / "model/run_lock.json").read_text())
    manifest = verify(run.work / "model")
    assert lock["spec"]["training"]["learning_rate"] == 0.01
    assert lock["spec"]["precision"] == "fp32"
    assert lock["packages"]["torch"] == torch.__version__
    assert lock["packages"]["trl"].split(".")[0] == "1"
    assert lock["hashes"]["spec"] == manifest.spec_hash
    assert lock["hashes"]["data"] == manifest.data_hash
    assert lock["seeds"] == {"seed": 42, "data_seed": 42}
    assert lock["hardware"]["threads"] == 1
    assert lock["base_model"]["architecture"] == "LlamaForCausalLM"
    assert lock["base_model"]["reference"] == str(world.model)
    assert len(lock["base_model"]["config_hash"]) == len(canonical_hash({})) == 64


def test_the_card_reports_the_run(world: World, zygote: Zygote) -> None:
    run = zygote.run(world.launch("carded", adapter=LORA))
    card = (run.work / "model/README.md").read_text()
    loss = run.losses[30]
    evaluation = [m["eval_loss"] for m in run.of("metrics") if "eval_loss" in m][-1]
    assert card.startswith("---\nlibrary_name: peft\n")
    assert f"| training loss (last) | {loss:.4f} |" in card
    assert f"| validation loss | {evaluation:.4f} |" in card
    assert str(world.model) in card
    assert "AutoPeftModelForCausalLM" in card
    assert "chat template hash" in card


ROLES = (
    "{% for m in messages %}[{{ m['role'] }}] {{ m['content'] }}{{ eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}[assistant] {% endif %}"
)


def test_a22_the_published_tokenizer_renders_what_was_trained(small: Small, zygote: Zygote) -> None:
    """With a template of the spec's own; its hash in the card is that of the published file."""
    import pyarrow.ipc
    from transformers import AutoTokenizer

    rows = [{"messages": messages} for messages in dialogues(12)]
    run = zygote.run(small.launch("rendered", {"type": "sft", "chat_template": ROLES}, rows))
    assert run.code == 0, run.log
    tokenizer = AutoTokenizer.from_pretrained(run.work / "model")
    [trained] = (run.work / "prepared").glob("*/train.arrow")
    ids = pyarrow.ipc.open_file(trained).read_all()["input_ids"].to_pylist()
    expected = [
        tokenizer.apply_chat_template(row["messages"], return_dict=True)["input_ids"]
        for row in rows
    ]
    assert sorted(ids) == sorted(expected)
    template = (run.work / "model/chat_template.jinja").read_text()
    assert template == ROLES
    card = (run.work / "model/README.md").read_text()
    assert hashlib.sha256(template.encode()).hexdigest() in card


def dialogues(count: int) -> list[list[dict[str, str]]]:
    """A question and an answer each."""
    return [
        [
            {"role": "user", "content": f"Where is parcel {number}?"},
            {"role": "assistant", "content": f"The parcel {number} is on its way."},
        ]
        for number in range(count)
    ]

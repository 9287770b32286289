"""Adapters of every kind: what they train, that PEFT alone loads them, and merging."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.trainer_core.equivalence.variants import conversations
from tests.trainer_core.runs import Outcome, World, Zygote
from tests.trainer_core.small_images import labelled_images
from tests.trainer_core.small_tasks import Small, opinions
from tests.trainer_core.tiny import make_tiny_model
from trainer_core.data.prepared import open_prepared
from trainer_core.publish.manifest import verify

pytestmark = pytest.mark.train

LORA = {"type": "lora", "r": 4}
KINDS: dict[str, dict[str, Any]] = {
    "rslora": LORA | {"use_rslora": True, "bias": "all"},
    "dora": LORA | {"use_dora": True},
    "adalora": {"type": "adalora", "init_r": 4, "target_r": 1},
    "ia3": {"type": "ia3"},
    "ia3_named": {
        "type": "ia3",
        "target_modules": ["q_proj", "up_proj"],
        "feedforward_modules": ["up_proj"],
    },
    "vera": {"type": "vera", "r": 16},
    "layernorm": {"type": "layernorm"},
    "head": LORA | {"target_modules": ["q_proj"], "modules_to_save": ["lm_head"]},
}
BEGINNINGS = (False, "gaussian", "orthogonal", "olora", "pissa", "pissa_niter_4", "eva", "corda")
TALK = [
    {"prompt": f"<tool> {n}?", "completion": f"<end_tool> {n * 7 % 10}. thanks"} for n in range(24)
]
ALONE = {"merge": "never"}
SHORT = {"max_steps": 6, "learning_rate": 0.02}


def _eval_loss(model: Any, prepared: Path) -> float:
    """The mean loss over all trained tokens of the validation rows, a row at a time."""
    import torch

    total = tokens = 0.0
    model.eval()
    for row in open_prepared(prepared).validation or []:
        ids, labels = (torch.tensor([row[n]]) for n in ("input_ids", "labels"))
        with torch.no_grad():
            logits = model(input_ids=ids).logits[0, :-1].float()
        losses = torch.nn.functional.cross_entropy(logits, labels[0, 1:], reduction="none")
        total += losses.sum().item()
        tokens += (labels[0, 1:] != -100).sum().item()
    return total / tokens


def _alone(folder: Path) -> Any:
    """The published adapter, loaded by PEFT alone."""
    from peft import AutoPeftModelForCausalLM

    return AutoPeftModelForCausalLM.from_pretrained(folder)


def _whole(folder: Path) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder)


def _measured(run: Outcome) -> float:
    assert run.code == 0, run.log
    return float([m["eval_loss"] for m in run.of("metrics") if "eval_loss" in m][-1])


@pytest.mark.parametrize("name", KINDS)
def test_it_learns_and_peft_alone_loads_it(name: str, small: Small, zygote: Zygote) -> None:
    """12 steps lower the loss; what the run measured last is the loss of what it published."""
    rate = 0.2 if name.startswith("ia3") else 0.02
    changes = {"adapter": KINDS[name], "training": {"learning_rate": rate}, "publish": ALONE}
    run = zygote.run(small.launch(f"kind-{name}", {"type": "sft"}, TALK, TALK[:5], **changes))
    measured = _measured(run)
    [prepared] = (run.work / "prepared").glob("*/manifest.json")
    assert measured < _eval_loss(_whole(small.llama), prepared.parent) - 0.01
    alone = _alone(run.work / "model")
    assert _eval_loss(alone, prepared.parent) == pytest.approx(measured, abs=2e-4)
    told = ["adapter_not_served"] if "modules_to_save" in KINDS[name] else []
    assert [warning["code"] for warning in run.of("warning")] == told


@pytest.mark.parametrize("init", BEGINNINGS, ids=str)
def test_beginnings_are_published_for_the_unchanged_base(
    init: Any, world: World, zygote: Zygote
) -> None:
    """PiSSA, OLoRA and CorDA take a part of the base away; the published adapter puts it back."""
    adapter = LORA | {"init_lora_weights": init, "lora_dropout": 0}
    launch = world.launch(f"init-{init}", adapter=adapter, training=SHORT)
    run = zygote.run(launch)
    loaded = _alone(run.work / "model")
    assert _eval_loss(loaded, world.plain) == pytest.approx(_measured(run), abs=2e-4)
    config = json.loads((run.work / "model/adapter_config.json").read_text())
    doubled = str(init).startswith(("pissa", "olora", "corda"))
    assert (config["r"], config["init_lora_weights"]) == (8 if doubled else 4, True)


def test_a21_a_quantized_base_is_never_merged_into(world: World, zygote: Zygote) -> None:
    """QLoRA's adapter goes onto the base in whole numbers; both differences are told."""
    quantized = {"adapter": LORA, "quantization": {"bits": 4}, "training": SHORT}
    run = zygote.run(world.launch("qlora-merged", **quantized, publish={"merge": "always"}))
    measured = _measured(run)
    folder = run.work / "model"
    assert "quantization_config" not in json.loads((folder / "config.json").read_text())
    merged = _whole(folder)
    assert {str(p.dtype) for p in merged.parameters()} == {"torch.float32"}
    apart = zygote.run(world.launch("qlora-apart", **quantized))
    together = _eval_loss(_alone(apart.work / "model"), world.plain)
    assert _eval_loss(merged, world.plain) == pytest.approx(together, abs=2e-4)
    lock = json.loads((folder / "run_lock.json").read_text())["merge"]
    assert lock["drift"] <= 1e-3 < lock["quantization_drift"] < 0.5
    # What 4 bits cost: the loss on the base in 4 bits is not that on the whole one.
    assert abs(measured - together) > 1e-5
    assert "trained on a quantized base" in (folder / "README.md").read_text()


def test_a_kind_of_model_that_ia3_does_not_know_is_told(small: Small, zygote: Zygote) -> None:
    task = {"type": "image_classification"}
    launch = small.launch("ia3-vit", task, labelled_images(8), adapter={"type": "ia3"})
    refused = zygote.run(launch)
    assert refused.code == 64
    assert "PEFT knows no modules of a 'vit' for IA3" in refused.exit["message"]
    launch["spec"]["adapter"]["target_modules"] = ["q_proj", "v_proj"]
    assert zygote.run(launch).code == 0


WHOLE: dict[str, tuple[dict[str, Any], list[dict[str, Any]], dict[str, Any], str]] = {
    "text_classification": ({"type": "text_classification"}, opinions(16), LORA, "classifier"),
    "image_classification": (
        {"type": "image_classification"}, labelled_images(16), LORA, "classifier",
    ),
    "sft": (
        {"type": "sft"}, conversations(16), LORA | {"modules_to_save": ["down_proj"]}, "down_proj",
    ),
}  # fmt: skip


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("name", WHOLE)
def test_a21_what_is_trained_whole_is_not_packed(
    name: str, bits: int, small: Small, zygote: Zygote
) -> None:
    """A new head and the modules of `modules_to_save` learn in 32 bits over a base in few."""
    from safetensors.torch import load_file

    task, rows, adapter, module = WHOLE[name]
    changes = {"adapter": adapter, "quantization": {"bits": bits}, "publish": ALONE}
    weights = []
    for steps in (1, 3):
        launch = small.launch(f"whole-{name}-{bits}-{steps}", task, rows, **changes)
        launch["spec"]["training"] |= {"max_steps": steps}
        run = zygote.run(launch)
        assert run.code == 0, run.log
        found = load_file(run.work / "model/adapter_model.safetensors")
        weights.append({n: w for n, w in found.items() if f"{module}.weight" in n})
    first, later = weights
    assert first
    assert {str(weight.dtype) for weight in later.values()} == {"torch.float32"}
    assert all(later[n].ndim == 2 and not later[n].equal(weight) for n, weight in first.items())


def test_a21_a_merge_that_changes_too_much_is_refused(world: World, zygote: Zygote) -> None:
    publish = {"merge": "always", "max_merge_drift": 1e-12}
    run = zygote.run(world.launch("drifts", adapter=LORA, training=SHORT, publish=publish))
    assert run.code == 0, run.log
    warning = run.of("warning")[-1]
    assert warning["code"] == "merge_refused"
    assert "publish.max_merge_drift" in warning["message"]
    assert verify(run.work / "model")
    assert _eval_loss(_alone(run.work / "model"), world.plain) == pytest.approx(
        _measured(run), abs=2e-4
    )


def test_only_what_a_pattern_fits_is_trained(world: World, zygote: Zygote) -> None:
    patterns = ["model.layers.1.mlp.*", "lm_head.weight"]
    adapter = {"type": "freeze", "trainable_patterns": patterns}
    run = zygote.run(world.launch("frozen", adapter=adapter, training=SHORT))
    assert run.code == 0, run.log
    before, after = (dict(_whole(f).named_parameters()) for f in (world.model, run.work / "model"))
    changed = {name for name, value in after.items() if (value != before[name]).any()}
    mlp = {f"model.layers.1.mlp.{part}_proj.weight" for part in ("gate", "up", "down")}
    assert changed == {*mlp, "lm_head.weight"}
    assert "A partial fine-tuning of" in (run.work / "model/README.md").read_text()


def test_layernorm_trains_the_norms(world: World, zygote: Zygote) -> None:
    from safetensors.torch import load_file

    run = zygote.run(world.launch("norms", adapter=KINDS["layernorm"], training={"max_steps": 2}))
    weights = load_file(run.work / "model/adapter_model.safetensors")
    assert len(weights) == 2 * 2 + 1  # two for each layer, and the last one
    assert all("norm" in name for name in weights)


def test_adalora_ends_within_its_budget(world: World, zygote: Zygote) -> None:
    """14 layers with an average rank of 1 at the end."""
    run = zygote.run(world.launch("budget", adapter=KINDS["adalora"], training=SHORT))
    config = json.loads((run.work / "model/adapter_config.json").read_text())
    assert sum(map(sum, config["rank_pattern"].values())) == 14
    assert (config["tinit"], config["tfinal"], config["total_step"]) == (1, 2, 6)


def test_adaloras_penalty_is_pefts() -> None:
    """PEFT adds it to the losses that it sees; the trainers' are computed elsewhere."""
    import torch
    from peft import AdaLoraConfig, get_peft_model
    from transformers import LlamaConfig, LlamaForCausalLM

    from trainer_core.rank_budget import RankBudget
    from trainer_core.spec import AdaLoraAdapter

    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 2}
    base = LlamaForCausalLM(LlamaConfig(vocab_size=50, num_hidden_layers=1, **sizes))
    ranks = {"target_modules": "all-linear", "init_r": 4, "target_r": 2}
    config = AdaLoraConfig(task_type="CAUSAL_LM", total_step=10, **ranks)
    model = get_peft_model(base, config).eval()
    ids = torch.arange(8)[None]
    with_penalty = model(input_ids=ids, labels=ids).loss
    budget = RankBudget(model, AdaLoraAdapter(type="adalora", init_r=4, target_r=2))
    without = model(input_ids=ids, labels=ids).loss
    assert (without + budget.penalty() - with_penalty).abs().item() <= 1e-5
    assert budget.penalty().item() > 0.1


def test_adalora_needs_steps(world: World, zygote: Zygote) -> None:
    adapter = KINDS["adalora"] | {"tinit": 3, "tfinal": 3}
    run = zygote.run(world.launch("no-steps", adapter=adapter, training=SHORT))
    assert run.code == 64
    assert "leave none of the run's 6 steps to move ranks" in run.exit["message"]


TOKENS = {"add_tokens": ["thanks"], "add_special_tokens": ["<tool>", "<end_tool>"]}


@pytest.fixture(scope="module")
def tied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose head is its embedding, with no row to spare."""
    folder = tmp_path_factory.mktemp("tied")
    return make_tiny_model(folder / "model", vocab_size=300, tie_word_embeddings=True)


@pytest.mark.parametrize("form", ["full", "lora", "ia3", "merged", "quantized"])
def test_a10_new_tokens_are_saved_and_loaded(
    form: str, tied: Path, small: Small, zygote: Zygote
) -> None:
    """The loss on rows with new tokens is that of the run; each of them is one token."""
    from transformers import AutoTokenizer

    changes: dict[str, Any] = {
        "full": {},
        "lora": {"adapter": LORA, "publish": ALONE},
        "ia3": {"adapter": {"type": "ia3"}, "publish": ALONE},
        "merged": {"adapter": LORA, "publish": {"merge": "always"}},
        "quantized": {"adapter": LORA, "quantization": {"bits": 8}, "publish": ALONE},
    }[form]
    launch = small.launch(f"tokens-{form}", {"type": "sft"}, TALK, TALK[:5], **changes)
    launch["spec"]["model"] = {"source": "folder", "name_or_path": str(tied)} | TOKENS
    run = zygote.run(launch)
    measured = _measured(run)
    folder = run.work / "model"
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert len(tokenizer("<tool> thanks", add_special_tokens=False)["input_ids"]) == 3
    assert len(tokenizer) > 300
    alone = _alone(folder) if form in ("lora", "ia3", "quantized") else _whole(folder)
    assert alone.get_input_embeddings().weight.shape[0] == len(tokenizer)
    [prepared] = (run.work / "prepared").glob("*/manifest.json")
    # The base in 8 bits is another one than the base that PEFT loads.
    tolerance = 0.05 if form == "quantized" else 2e-4
    assert _eval_loss(alone, prepared.parent) == pytest.approx(measured, abs=tolerance)


def test_a10_an_adapter_with_new_tokens_is_trained_further(
    tied: Path, small: Small, zygote: Zygote
) -> None:
    """As a model to start from it brings the rows of its tokens along."""
    changes = {"adapter": LORA, "publish": ALONE}
    first = small.launch("tokens-first", {"type": "sft"}, TALK, TALK[:5], **changes)
    first["spec"]["model"] = {"source": "folder", "name_or_path": str(tied)} | TOKENS
    began = _measured(zygote.run(first))
    training = {"max_steps": 1, "learning_rate": 1e-9}
    then = small.launch("tokens-then", {"type": "sft"}, TALK, TALK[:5], training=training)
    model = str(small.folder / "tokens-first/model")
    then["spec"]["model"] = {"source": "folder", "name_or_path": model}
    assert _measured(zygote.run(then)) == pytest.approx(began, abs=2e-4)


@pytest.mark.parametrize("form", ["tokens", "modules"])
def test_a11_what_servers_refuse_is_published_merged(
    form: str, tied: Path, small: Small, zygote: Zygote
) -> None:
    """New tokens, or a module that is trained whole: `auto` publishes a model that Transformers
    alone loads, and whose loss is that of the run."""
    adapter = LORA | ({"modules_to_save": ["lm_head"]} if form == "modules" else {})
    launch = small.launch(f"a11-{form}", {"type": "sft"}, TALK, TALK[:5], adapter=adapter)
    if form == "tokens":
        launch["spec"]["model"] = {"source": "folder", "name_or_path": str(tied)} | TOKENS
    run = zygote.run(launch)
    measured = _measured(run)
    folder = run.work / "model"
    assert not (folder / "adapter_config.json").exists()
    assert [w["code"] for w in run.of("warning")] == []
    [prepared] = (run.work / "prepared").glob("*/manifest.json")
    assert _eval_loss(_whole(folder), prepared.parent) == pytest.approx(measured, abs=2e-4)


def test_a10_a_token_that_is_known_is_refused(tied: Path, small: Small, zygote: Zygote) -> None:
    launch = small.launch("tokens-known", {"type": "sft"}, TALK)
    known = {"add_tokens": ["<|im_end|>"]}
    launch["spec"]["model"] = {"source": "folder", "name_or_path": str(tied)} | known
    run = zygote.run(launch)
    assert run.code == 64
    assert "model.add_tokens has '<|im_end|>', which the tokenizer knows" in run.exit["message"]


@pytest.mark.parametrize(
    ("adapter", "message"),
    [
        ({"type": "ia3", "target_modules": ["k_prj"]}, "did you mean 'k_proj'?"),
        ({"type": "freeze", "trainable_patterns": ["model.layer.*"]}, "fits no parameter"),
        ({"type": "vera", "target_modules": ["embed_tokens"]}, "does not fit this model"),
    ],
)
def test_a34_names_that_fit_nothing(
    adapter: dict[str, Any], message: str, world: World, zygote: Zygote
) -> None:
    run = zygote.run(world.launch(f"fits-nothing-{adapter['type']}", adapter=adapter))
    assert run.code == 64, run.log
    assert message in run.exit["message"]

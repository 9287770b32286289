"""Task `evaluation`: models measured as they are, alone and against each other."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.trainer_core.runs import Outcome, Zygote
from tests.trainer_core.small_tasks import Small, documents, opinions, preferences, questions
from tests.trainer_core.small_texts import triplets
from trainer_core.capabilities import check
from trainer_core.spec import TrainSpec

LORA = {"type": "lora", "r": 4, "lora_dropout": 0.1}
KINDS: dict[str, tuple[dict[str, Any], list[dict[str, Any]], str]] = {
    # of, rows, a metric that must be there
    "clm": ({"type": "clm", "max_length": 64}, documents(24), "perplexity"),
    "dpo": ({"type": "dpo"}, preferences(12), "reward_margin"),
    "sentence_transformer": ({"type": "sentence_transformer"}, triplets(24), "ndcg"),
}


def _talk(count: int) -> list[dict[str, Any]]:
    return [
        {"prompt": row["prompt"], "completion": [{"role": "assistant", "content": "great"}]}
        for row in questions(count)
    ]


def _evaluation(
    small: Small, name: str, of: dict[str, Any], rows: list[dict[str, Any]], **changes: Any
) -> dict[str, Any]:
    """A launch of an evaluation; `model` and `baseline` are folders."""
    launch = small.launch(name, of, rows)
    del launch["spec"]["training"], launch["spec"]["checkpoint"]
    task: dict[str, Any] = {"type": "evaluation", "of": of}
    if "model" in changes:
        launch["spec"]["model"] = {"source": "folder", "name_or_path": str(changes.pop("model"))}
    if "baseline" in changes:
        task["baseline"] = {"source": "folder", "name_or_path": str(changes.pop("baseline"))}
    launch["spec"] |= {"task": task, **changes}
    return launch


def _report(run: Outcome) -> dict[str, Any]:
    assert run.code == 0, run.log
    report: dict[str, Any] = json.loads((run.work / "evaluation/report.json").read_text())
    return report


@pytest.mark.train
def test_a_published_adapter_against_its_base(small: Small, zygote: Zygote) -> None:
    """What the run that trained it reported of both, on the same rows, by loading them again."""
    answers = {"generation": {"max_new_tokens": 8, "num_samples": 9}}
    trained = zygote.run(
        small.launch(
            "to-evaluate", {"type": "sft"}, _talk(60), _talk(12), adapter=LORA | {"r": 16},
            training={"num_train_epochs": 6}, evaluation=answers | {"compare_base": True},
        )
    )  # fmt: skip
    run = zygote.run(
        _evaluation(
            small, "evaluate", {"type": "sft"}, _talk(12), model=trained.work / "model",
            baseline=small.llama, evaluation=answers,
        )
    )  # fmt: skip
    theirs, ours = _report(trained)["metrics"], _report(run)["metrics"]
    assert ours.keys() == theirs.keys()
    for name, found in theirs.items():
        assert ours[name]["value"] == pytest.approx(found["value"], rel=1e-4), name
        assert ours[name]["base"] == pytest.approx(found["base"], rel=1e-4), name
    assert ours["exact_match"]["value"] == 1.0
    assert [module for module in run.told["late"] if not module.endswith("_fast")] == []
    # Nothing was trained or published: one report.
    assert run.losses == {}
    assert [a["kind"] for a in run.of("artifact")] == ["report"]
    assert not (run.work / "model").exists()
    assert list((run.work / "checkpoints").iterdir()) == []
    assert run.result == {"status": "succeeded", "reason": None, "message": "", "step": 0}
    assert run.of("metrics")[-1]["eval_exact_match"] == 1.0


@pytest.mark.train
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_task_is_evaluated(small: Small, zygote: Zygote, kind: str) -> None:
    """A model against itself: no difference anywhere."""
    of, rows, metric = KINDS[kind]
    base = small.bert if kind == "sentence_transformer" else small.llama
    run = zygote.run(_evaluation(small, f"self-{kind}", of, rows, baseline=base))
    metrics = _report(run)["metrics"]
    assert metric in metrics
    assert all(found["value"] == found["base"] for found in metrics.values())
    assert all("better" not in found for found in metrics.values())


@pytest.mark.train
def test_as_many_rows_as_are_wished(small: Small, zygote: Zygote) -> None:
    """Without validation rows of their own too: the first five of twelve."""
    rows, five = preferences(12), {"max_samples": 5}
    few = zygote.run(_evaluation(small, "few", {"type": "dpo"}, rows, evaluation=five))
    first = zygote.run(_evaluation(small, "first", {"type": "dpo"}, rows[:5]))
    assert _report(few)["rows"] == 5
    assert _report(few)["measured"] == _report(first)["measured"]


COLD = """
import gc, json, pathlib, sys
from trainer_core.runner import run_launch
from trainer_core.spec import Launch
held = []
def count(event):
    if event.type == "metrics" and "epoch" in event.data:
        from torch.nn import Parameter
        held.append(sum(each.nbytes for each in gc.get_objects() if type(each) is Parameter))
code = run_launch(Launch.model_validate_json(pathlib.Path(sys.argv[1]).read_text()), {}, count)
print(json.dumps([code, held]))
"""


@pytest.mark.train
def test_one_model_at_a_time_is_held(small: Small) -> None:
    """The weights in memory while each of both models' metrics are told are those of one.

    In a cold start, where libraries keep exceptions of what they try to import, with the frames
    that were running then.
    """
    launch = _evaluation(small, "held", {"type": "dpo"}, preferences(6), baseline=small.llama)
    path = small.folder / "held.json"
    path.write_text(json.dumps(launch))
    said = subprocess.run(
        [sys.executable, "-c", COLD, str(path)],
        capture_output=True,
        text=True,
        check=True,
        timeout=280,
    ).stdout
    code, held = json.loads(said.splitlines()[-1])
    assert (code, len(held)) == (0, 2)
    assert held[0] == held[1] > 0


@pytest.mark.train
def test_a23_labels_are_the_models(small: Small, zygote: Zygote) -> None:
    """A published classifier keeps its labels' order; rows whose labels sort otherwise are told
    to name them, and then the accuracy is that of the run which trained it."""
    of = {"type": "text_classification", "label_names": ["good", "bad"]}
    trained = zygote.run(small.launch("classifier", of, opinions(120), opinions(24, seed=1)))
    assert trained.code == 0, trained.log
    model, rows = trained.work / "model", opinions(24, seed=1)
    plain = {"type": "text_classification"}
    refused = zygote.run(_evaluation(small, "other-order", plain, rows, model=model))
    assert refused.code == 64
    assert "['good', 'bad'], and those of the rows ['bad', 'good']" in refused.result["message"]
    run = zygote.run(_evaluation(small, "same-order", of, rows, model=model))
    told = [m for m in trained.of("metrics") if "eval_accuracy" in m][-1]
    assert _report(run)["metrics"]["accuracy"]["value"] == pytest.approx(told["eval_accuracy"])
    assert _report(run)["rows"] == 24


@pytest.mark.train
def test_a_model_without_a_head_is_refused(small: Small, zygote: Zygote) -> None:
    of = {"type": "text_classification"}
    run = zygote.run(_evaluation(small, "headless", of, opinions(12)))
    assert run.code == 64
    assert "has no head for this task" in run.result["message"]


@pytest.mark.train
def test_held_out_rows_are_those_of_the_training(small: Small, zygote: Zygote) -> None:
    """The same seed and share hold the same rows out, so that a published model can be measured
    on rows that it has not seen."""
    rows = documents(40)
    of = {"type": "clm", "max_length": 64}
    launch = small.launch("held-out", of, rows, training={"max_steps": 4})
    launch["spec"]["data"]["validation"] = {"split_ratio": 0.25}
    trained = zygote.run(launch)
    assert trained.code == 0, trained.log
    again = _evaluation(small, "held-out-again", of, rows, model=trained.work / "model")
    again["spec"]["data"]["validation"] = {"split_ratio": 0.25}
    run = zygote.run(again)
    told = [m for m in trained.of("metrics") if "eval_loss" in m][-1]
    assert _report(run)["measured"]["loss"] == pytest.approx(told["eval_loss"], rel=1e-5)


def test_refusals() -> None:
    document = {
        "task": {"type": "evaluation", "of": {"type": "text_classification", "threshold": 0.3}},
        "model": {"name_or_path": "owner/model", "add_tokens": ["<new>"]},
        "data": {"train": [{"source": "folder", "path": "rows.jsonl"}]},
        "adapter": {"type": "lora"},
        "training": {"learning_rate": 0.1, "per_device_eval_batch_size": 3},
        "publish": {"gate": {"metric": "loss", "threshold": 1.0}},
        "checkpoint": {"load_best_model_at_end": True},
        "evaluation": {"compare_base": True, "generation": {}},
    }
    baseline = {"source": "registry", "name_or_path": "shop", "dtype": "bf16"}
    document["task"]["baseline"] = baseline | {"attn_implementation": "eager"}
    found = {p.pointer: p.message for p in check(TrainSpec.model_validate(document))}
    assert found.keys() == {
        "/task/type", "/task/of/threshold", "/task/baseline/source", "/training/learning_rate",
        "/task/baseline/dtype", "/task/baseline/attn_implementation",
        "/publish/gate", "/checkpoint/load_best_model_at_end", "/evaluation/compare_base",
        "/evaluation/generation", "/model/add_tokens",
    }  # fmt: skip
    assert "would begin at random" in found["/model/add_tokens"]
    assert "leave adapter out" in found["/task/type"]
    assert "task.of.threshold has no effect" in found["/task/of/threshold"]
    assert "set model.dtype" in found["/task/baseline/dtype"]


def test_the_example_says_what_it_is_compared_with() -> None:
    path = Path(__file__).parents[2] / "examples/shop-evaluation.json"
    assert json.loads(path.read_text())["task"]["baseline"]

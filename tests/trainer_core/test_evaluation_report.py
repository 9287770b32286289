"""The report at the end of a run: rows and answers before and after, and a gate about them."""

import json
from typing import Any

import pytest

from tests.trainer_core.runs import Outcome, Zygote, signal_at
from tests.trainer_core.small_tasks import Small, opinions, preferences, questions

pytestmark = pytest.mark.train

LORA = {"type": "lora", "r": 4, "lora_dropout": 0.1}
ANSWERS = {"compare_base": True, "generation": {"max_new_tokens": 8, "num_samples": 9}}


def _talk(count: int) -> list[dict[str, Any]]:
    """The right answer is always the same word: what is to be learned is to say it."""
    return [
        {"prompt": row["prompt"], "completion": [{"role": "assistant", "content": "great"}]}
        for row in questions(count)
    ]


def _report(run: Outcome) -> dict[str, Any]:
    assert run.code == 0, run.log
    report: dict[str, Any] = json.loads((run.work / "evaluation/report.json").read_text())
    return report


def test_answers_before_and_after(small: Small, zygote: Zygote) -> None:
    """A tiny model learns to answer: exact matches rise from none to all, surely so."""
    training = {"num_train_epochs": 6}
    launch = small.launch(
        "answers", {"type": "sft"}, _talk(60), _talk(12), training=training, evaluation=ANSWERS
    )
    launch["spec"]["publish"] = {
        "gate": {"metric": "exact_match", "threshold": 0.9, "min_improvement": 0.9}
    }
    run = zygote.run(launch)
    report = _report(run)
    assert [module for module in run.told["late"] if not module.endswith("_fast")] == []
    match = report["metrics"]["exact_match"]
    assert (match["base"], match["value"], match["rows"]) == (0.0, 1.0, 9)
    assert match["better"] is True
    loss = report["metrics"]["loss"]
    assert loss["value"] == pytest.approx(report["measured"]["loss"], rel=1e-5)
    assert loss["base"] == pytest.approx(report["measured_base"]["loss"], rel=1e-5)
    lines = (run.work / "evaluation/answers.jsonl").read_text().splitlines()
    answers = [json.loads(line) for line in lines]
    assert len(answers) == 9
    assert {answer["answer"] for answer in answers} == {"great"}
    assert all(a["base"] != "great" == a["reference"] for a in answers)
    assert all("<|im_start|>user\nHow was" in answer["prompt"] for answer in answers)
    told = run.of("metrics")[-1]
    assert told["eval_exact_match"] == 1.0
    kinds = [artifact["kind"] for artifact in run.of("artifact")]
    assert kinds == ["report", "model"]


def test_a_gate_about_answers_holds(small: Small, zygote: Zygote) -> None:
    launch = small.launch(
        "weak", {"type": "sft"}, _talk(12), _talk(9), evaluation={"generation": {"num_samples": 9}}
    )
    launch["spec"]["training"]["max_steps"] = 1
    launch["spec"]["publish"] = {"gate": {"metric": "rouge1", "threshold": 0.5}}
    run = zygote.run(launch)
    assert run.code == 76
    assert "its rouge1 is 0, and publish.gate.threshold wants at least 0.5" in run.result["message"]


def test_a14_labels_row_by_row(small: Small, zygote: Zygote) -> None:
    """What the report says of rows is what the loop measured, and the published model repeats."""
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    rows, validation = opinions(80), opinions(24, seed=1)
    launch = small.launch(
        "labels", {"type": "text_classification"}, rows, validation,
        evaluation={"compare_base": True, "metrics": ["accuracy", "f1_macro", "auc"]},
    )  # fmt: skip
    run = zygote.run(launch)
    report = _report(run)
    assert report["metrics"].keys() == {"accuracy", "f1_macro", "auc"}
    for name, found in report["metrics"].items():
        assert found["value"] == pytest.approx(report["measured"][name])
        assert found["base"] == pytest.approx(report["measured_base"][name])
    model = AutoModelForSequenceClassification.from_pretrained(run.work / "model").eval()
    tokenizer = AutoTokenizer.from_pretrained(run.work / "model")
    right = 0
    for row in validation:
        with torch.no_grad():
            logits = model(**tokenizer(row["text"], return_tensors="pt")).logits
        right += model.config.id2label[int(logits.argmax())] == row["label"]
    assert report["metrics"]["accuracy"]["value"] == pytest.approx(right / 24)


def test_the_base_is_known_after_a_kill(small: Small, zygote: Zygote) -> None:
    """The same report to the last digit, and training that nothing of it disturbs."""
    spec = {"type": "dpo", "disable_dropout": False}
    rows = preferences(40)
    whole = zygote.run(
        small.launch("base-whole", spec, rows, rows[:10], adapter=LORA, evaluation=ANSWERS)
    )
    plain = zygote.run(small.launch("base-plain", spec, rows, rows[:10], adapter=LORA))
    assert whole.losses == plain.losses
    launch = small.launch("base-killed", spec, rows, rows[:10], adapter=LORA, evaluation=ANSWERS)
    launch["spec"]["data"] = small.launch("base-whole", spec, rows, rows[:10])["spec"]["data"]
    killed = zygote.run(launch, signals=[signal_at("metrics", "SIGKILL", step=15)])
    assert killed.code == -9
    launch["attempt_id"] = "base-resumed"
    launch["paths"] |= {
        "work": str(small.folder / "base-resumed"),
        "resume_from": str(killed.work / "checkpoints/step-00000012"),
    }
    resumed = zygote.run(launch)
    assert _report(resumed) == _report(whole)
    assert _report(whole)["metrics"]["reward_margin"]["base"] == 0.0


def test_what_is_measured_of_the_base_stays_there(small: Small, zygote: Zygote) -> None:
    """Evaluations after the base's report measure the very same as without it, the library's own
    measures too."""

    def measured(name: str, **evaluation: Any) -> list[dict[str, Any]]:
        task, training = {"type": "sft"}, {"num_train_epochs": 2}
        run = zygote.run(
            small.launch(name, task, _talk(12), _talk(9), training=training, evaluation=evaluation)
        )
        assert run.code == 0, run.log
        told = [m for m in run.of("metrics") if "eval_mean_token_accuracy" in m and "epoch" in m]
        return [{n: m[n] for n in m if n[:5] == "eval_"} for m in told if m["step"] > 0]

    plain = measured("base-unasked")
    assert len(plain) == 2
    assert measured("base-asked", compare_base=True) == plain


THREE_LABELS = [*opinions(20), {"text": "neither", "label": "odd"}]


def test_a_metric_without_its_columns_is_left_out(small: Small, zygote: Zygote) -> None:
    """Only the rows say that there are three labels, of which no area is measured."""
    launch = small.launch(
        "odd", {"type": "text_classification"}, THREE_LABELS, opinions(8),
        evaluation={"metrics": ["auc", "accuracy"]}, training={"max_steps": 1},
    )  # fmt: skip
    run = zygote.run(launch)
    assert _report(run)["metrics"].keys() == {"accuracy"}
    [warning] = [w for w in run.of("warning") if w["code"] == "metric_left_out"]
    assert "no 'auc'" in warning["message"]
    assert "needs label, score of the rows, and these give label" in warning["message"]
    assert (run.work / "model").exists()


def test_a_gate_about_what_is_missing_says_so(small: Small, zygote: Zygote) -> None:
    launch = small.launch(
        "odd-gate", {"type": "text_classification"}, THREE_LABELS, opinions(8),
        training={"max_steps": 1},
    )  # fmt: skip
    launch["spec"]["publish"] = {"gate": {"metric": "auc", "threshold": 0.5}}
    run = zygote.run(launch)
    assert run.code == 64
    assert "'auc', which these validation rows do not give; they give acc" in run.result["message"]
    assert not (run.work / "model").exists()

"""Text classification: labels, losses, measures, what is published."""

import json
from typing import Any

import pytest

from tests.trainer_core.runs import Outcome, Zygote
from tests.trainer_core.small_tasks import Small, opinions, second_opinions
from trainer_core.publish.manifest import verify

pytestmark = pytest.mark.train

TASK = {"type": "text_classification"}
MULTI = TASK | {"problem_type": "multi_label_classification"}
NUMBER = TASK | {"problem_type": "regression"}
CALM = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


def _report(run: Outcome) -> dict[str, Any]:
    [path] = (run.work / "prepared").glob("*/report.json")
    loaded: dict[str, Any] = json.loads(path.read_text())
    return loaded


def test_it_learns_and_keeps_its_labels(small: Small, zygote: Zygote) -> None:
    """A23: the names come back from a pipeline that knows nothing but the published folder."""
    from transformers import pipeline

    run = zygote.run(
        small.launch(
            "opinions",
            TASK,
            opinions(400),
            opinions(40, seed=1),
            training={"learning_rate": 0.003, "num_train_epochs": 3},
        ),
    )
    assert run.code == 0, run.log
    evaluation = [m for m in run.of("metrics") if "eval_loss" in m][-1]
    assert evaluation["eval_accuracy"] >= 0.95
    assert evaluation["eval_f1_macro"] >= 0.95
    assert evaluation["eval_auc"] >= 0.95
    folder = run.work / "model"
    verify(folder)
    classify = pipeline("text-classification", model=str(folder), tokenizer=str(folder))
    answers = classify(["the shop was great and lovely", "the parcel was broken and late"])
    assert [answer["label"] for answer in answers] == ["good", "bad"]
    card = (folder / "README.md").read_text()
    assert "pipeline_tag: text-classification" in card
    assert "| labels | bad, good |" in card
    assert f"| validation accuracy | {evaluation['eval_accuracy']:.4f} |" in card


def test_a23_an_adapter_keeps_labels_and_head(small: Small, zygote: Zygote) -> None:
    from peft import PeftModel
    from transformers import AutoConfig, AutoModelForSequenceClassification, AutoTokenizer

    adapter = {"type": "lora", "r": 4}
    rows = [row | {"label": {"good": "yes", "bad": "no"}[row["label"]]} for row in opinions(160)]
    task = TASK | {"label_names": ["yes", "unsure", "no"]}
    run = zygote.run(small.launch("adapter-head", task, rows, adapter=adapter))
    assert run.code == 0, run.log
    folder = run.work / "model"
    config = AutoConfig.from_pretrained(folder)
    assert config.id2label == {0: "yes", 1: "unsure", 2: "no"}
    base = AutoModelForSequenceClassification.from_pretrained(small.bert, config=config)
    model = PeftModel.from_pretrained(base, folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    inputs = tokenizer("the shop was great and lovely", return_tensors="pt")
    assert config.id2label[model(**inputs).logits.argmax(-1).item()] == "yes"
    card = (folder / "README.md").read_text()
    assert "PeftModel.from_pretrained(base, folder)" in card


def test_a21_merged_classifier_equals_its_adapter(small: Small, zygote: Zygote) -> None:
    from transformers import AutoModelForSequenceClassification

    adapter = {"type": "lora", "r": 4}
    run = zygote.run(
        small.launch(
            "merged-head", TASK, opinions(80), adapter=adapter, publish={"merge": "always"}
        )
    )
    assert run.code == 0, run.log
    model = AutoModelForSequenceClassification.from_pretrained(run.work / "model")
    assert model.config.id2label == {0: "bad", 1: "good"}
    assert "Merging changed the logits by at most" in (run.work / "model/README.md").read_text()


def _first_losses(run: Outcome, steps: int) -> list[float]:
    assert run.code == 0, run.log
    return [run.losses[step] for step in range(1, steps + 1)]


def _reference(
    small: Small, rows: list[tuple[str, str | None, Any]], loss: Any, labels: int
) -> list[float]:
    """Losses of two plain SGD steps, each over all rows, padded by the tokenizer itself."""
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer, set_seed

    set_seed(42)
    model = AutoModelForSequenceClassification.from_pretrained(
        small.folder / "calm", num_labels=labels
    )
    tokenizer = AutoTokenizer.from_pretrained(small.folder / "calm")
    texts, pairs, truth = zip(*rows, strict=True)
    given = tokenizer(
        list(texts),
        list(pairs) if pairs[0] is not None else None,
        padding=True,
        return_tensors="pt",
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for _ in range(2):
        value = loss(model(**given).logits, torch.tensor(truth))
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        losses.append(value.item())
    return losses


PLAIN = {
    "optim": "sgd",
    "learning_rate": 0.1,
    "lr_scheduler_type": "constant",
    "warmup_steps": 0,
    "max_steps": 2,
    "max_grad_norm": 0.0,
}


@pytest.fixture(scope="module")
def calm(small: Small) -> Small:
    """A model without dropout, beside the others."""
    from tests.trainer_core.small_tasks import make_tiny_bert

    make_tiny_bert(small.folder / "calm", **CALM)
    return small


def _single(logits: Any, truth: Any) -> Any:
    import torch

    return torch.nn.functional.cross_entropy(
        logits, truth, torch.tensor([0.5, 2.0]), label_smoothing=0.1
    )


def _several(logits: Any, truth: Any) -> Any:
    import torch

    return torch.nn.BCEWithLogitsLoss()(logits, truth)


def _number(logits: Any, truth: Any) -> Any:
    import torch

    return torch.nn.MSELoss()(logits[:, 0], truth)


CASES: dict[str, tuple[dict[str, Any], Any, int, list[Any], list[Any]]] = {
    # task, loss, size of the head, what rows say, what the loss gets
    "single": (
        TASK | {"class_weights": [0.5, 2.0], "label_smoothing_factor": 0.1},
        _single,
        2,
        ["b", "a", "b", "b", "a", "b", "b", "b"],
        [1, 0, 1, 1, 0, 1, 1, 1],
    ),
    "several": (
        MULTI,
        _several,
        3,
        [["x"], ["y", "z"], [], ["x", "y", "z"], ["z"], ["y"], [], ["x"]],
        [
            *([1.0, 0, 0], [0, 1.0, 1], [0.0, 0, 0], [1.0, 1, 1]),
            *([0, 0, 1.0], [0, 1.0, 0], [0.0, 0, 0], [1.0, 0, 0]),
        ],
    ),
    "number": (
        NUMBER,
        _number,
        1,
        [0.5, 1, -2.25, 3.5, 0.0, "1.5", 2, -1],
        [0.5, 1, -2.25, 3.5, 0, 1.5, 2, -1],
    ),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(("batch", "accumulated"), [(8, 1), (3, 3)])
def test_a6_the_loss_is_the_mean_over_a_step(
    calm: Small, zygote: Zygote, case: str, batch: int, accumulated: int
) -> None:
    """Against plain PyTorch; 3 + 3 + 2 rows of uneven lengths in one step are as 8 at once."""
    task, loss, size, said, truth = CASES[case]
    texts = [row["text"] + " and late" * (i % 4) for i, row in enumerate(opinions(8, seed=5))]
    rows = [{"text": text, "label": label} for text, label in zip(texts, said, strict=True)]
    training = PLAIN | {
        "per_device_train_batch_size": batch,
        "gradient_accumulation_steps": accumulated,
    }
    model = {"source": "folder", "name_or_path": str(calm.folder / "calm")}
    run = zygote.run(
        calm.launch(f"loss-{case}-{batch}", task, rows, training=training, model=model)
    )
    expected = _reference(
        calm, [(t, None, y) for t, y in zip(texts, truth, strict=True)], loss, size
    )
    assert _first_losses(run, 2) == pytest.approx(expected, abs=2e-5)


def test_pairs_are_told_apart(calm: Small, zygote: Zygote) -> None:
    """Token types of both texts reach the model: losses as of the tokenizer's own pairs."""
    import torch

    texts = [row["text"] for row in opinions(8, seed=6)]
    pairs = [row["text"] for row in opinions(8, seed=7)]
    truth = [0, 1, 1, 0, 1, 0, 0, 1]
    rows = [
        {"text": a, "text_pair": b, "label": y} for a, b, y in zip(texts, pairs, truth, strict=True)
    ]
    model = {"source": "folder", "name_or_path": str(calm.folder / "calm")}
    training = PLAIN | {"per_device_train_batch_size": 8}
    run = zygote.run(calm.launch("pairs", TASK, rows, training=training, model=model))
    expected = _reference(
        calm,
        [*zip(texts, pairs, truth, strict=True)],
        torch.nn.functional.cross_entropy,
        2,
    )
    assert _first_losses(run, 2) == pytest.approx(expected, abs=2e-5)


def test_pairs_are_learnt(small: Small, zygote: Zygote) -> None:
    """The first texts say nothing about the labels: who reads them alone guesses."""
    run = zygote.run(
        small.launch("pairs-learnt", TASK, second_opinions(300), second_opinions(40, seed=2))
    )
    assert run.code == 0, run.log
    evaluation = [m for m in run.of("metrics") if "eval_loss" in m][-1]
    assert evaluation["eval_accuracy"] >= 0.9


def test_balanced_weights_are_those_of_the_training_rows(small: Small, zygote: Zygote) -> None:
    """3 to 1: weights 4 / (2·3) and 4 / (2·1); the first loss is the weighted mean."""
    rows = opinions(64, seed=3)
    good = [r for r in rows if r["label"] == "good"][:6]
    bad = [r for r in rows if r["label"] == "bad"][:2]
    task = TASK | {"class_weights": "balanced"}
    run = zygote.run(small.launch("balanced", task, good + bad, training={"max_steps": 1}))
    assert run.code == 0, run.log


def test_several_labels_are_measured(small: Small, zygote: Zygote) -> None:
    rows = [{"text": r["text"], "label": [r["label"], "text"]} for r in opinions(160, seed=8)]
    run = zygote.run(
        small.launch("several", MULTI, rows[:120], rows[120:], training={"num_train_epochs": 3})
    )
    assert run.code == 0, run.log
    evaluation = [m for m in run.of("metrics") if "eval_loss" in m][-1]
    assert evaluation["eval_f1_micro"] >= 0.95
    assert evaluation["eval_accuracy"] >= 0.9
    config = json.loads((run.work / "model/config.json").read_text())
    assert config["problem_type"] == "multi_label_classification"
    assert config["id2label"] == {"0": "bad", "1": "good", "2": "text"}


def test_numbers_are_learnt(small: Small, zygote: Zygote) -> None:
    rows = [
        {"text": r["text"], "label": 1.5 if r["label"] == "good" else -0.5}
        for r in opinions(160, seed=9)
    ]
    run = zygote.run(small.launch("numbers", NUMBER, rows[:120], rows[120:]))
    assert run.code == 0, run.log
    evaluation = [m for m in run.of("metrics") if "eval_loss" in m][-1]
    assert evaluation["eval_loss"] == pytest.approx(evaluation["eval_mse"], rel=1e-5)
    assert evaluation["eval_pearson"] >= 0.9


def test_one_label_alone_is_nothing_to_learn(small: Small, zygote: Zygote) -> None:
    """The loss would be zero in every step, and the run end well."""
    rows = [row | {"label": "good"} for row in opinions(8)]
    refused = zygote.run(small.launch("one-label", TASK, rows))
    assert refused.code == 64
    assert "data.train has the label 'good' alone" in refused.exit["message"]
    both = [row | {"label": ["good", "text"]} for row in rows]
    weighted = MULTI | {"class_weights": "balanced"}
    refused = zygote.run(small.launch("all-labels", weighted, both))
    assert refused.code == 64
    assert "every row of data.train has the same labels" in refused.exit["message"]
    task = TASK | {"label_names": ["bad", "good"]}
    training = {"num_train_epochs": 1}
    several = TASK | {"problem_type": "multi_label_classification"}
    none = zygote.run(small.launch("no-label", several, [row | {"label": []} for row in rows]))
    assert none.code == 64
    assert "data.train has no label in any row" in none.exit["message"]
    assert zygote.run(small.launch("one-of-two", task, rows, training=training)).code == 0


def test_a23_a_model_with_another_head_is_refused_or_replaced(small: Small, zygote: Zygote) -> None:
    first = zygote.run(small.launch("head-2", TASK, opinions(24), training={"num_train_epochs": 1}))
    model = {"source": "folder", "name_or_path": str(first.work / "model")}
    rows = [row | {"label": i % 3} for i, row in enumerate(opinions(24))]
    refused = zygote.run(small.launch("head-3", TASK, rows, model=model))
    assert refused.code == 64
    assert "set task.ignore_mismatched_sizes to true" in refused.exit["message"]
    task = TASK | {"ignore_mismatched_sizes": True}
    replaced = zygote.run(
        small.launch("head-new", task, rows, model=model, training={"max_steps": 2})
    )
    assert replaced.code == 0, replaced.log
    assert _report(replaced)["facts"]["labels"] == ["0", "1", "2"]


def test_a15_long_texts_are_cut_between_their_special_tokens(small: Small, zygote: Zygote) -> None:
    """[CLS] and [SEP] stay where a text is cut, on either side."""
    rows = [{"text": "the shop " * 30 + r["text"], "label": r["label"]} for r in opinions(16)]
    for policy, end in (("truncate_right", "shop [SEP]"), ("truncate_left", None)):
        run = zygote.run(
            small.launch(
                f"cut-{policy}",
                TASK | {"max_length": 12},
                rows,
                training={"max_steps": 1},
                data=_with_policy(small, f"cut-{policy}", policy),
            )
        )
        assert run.code == 0, run.log
        report = _report(run)
        assert (report["longest"], report["rows_cut"]) == (12, 16)
        text = report["example"]["text"]
        assert text.startswith("[CLS]")
        assert text.endswith(end or f"{rows[0]['text'].split()[-1]} [SEP]")


def _with_policy(small: Small, name: str, policy: str) -> dict[str, Any]:
    path = small.folder / "rows" / f"{name}.jsonl"
    return {"train": [{"source": "folder", "path": str(path)}], "over_length": policy}

"""Metrics against their libraries or worked out by hand, and intervals against what is known."""

import json
import math
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from trainer_core import gate
from trainer_core.capabilities import check
from trainer_core.errors import BelowGate, InvalidSpec
from trainer_core.evaluation import metrics, names
from trainer_core.evaluation.answers import questions
from trainer_core.evaluation.bootstrap import compare
from trainer_core.evaluation.metrics import METRICS, chosen, fitting, try_out
from trainer_core.evaluation.names import BUILT_IN, ROWS, TEXT_METRICS, known_names, plugged
from trainer_core.gate import require_gate
from trainer_core.measured import can_be_given
from trainer_core.spec import Gate, TrainSpec
from trainer_core.task import TASKS

RNG = random.Random(7)  # noqa: S311 - test data


def _of(name: str, **columns: list[Any]) -> float | None:
    metric = METRICS[name]
    return metric.value(metric.statistics(columns))


def _texts(name: str, *pairs: tuple[str, str]) -> float | None:
    return _of(name, generated=[p[0] for p in pairs], reference=[p[1] for p in pairs])


def test_the_names_and_the_table_are_one() -> None:
    assert set(BUILT_IN) == METRICS.keys()
    assert all(metric.name == name for name, metric in METRICS.items())


def test_the_table_of_rows_knows_every_task() -> None:
    """Each metric is of any rows (the loss, answers) or of kinds that there are; each kind of rows
    that learns anything but a loss has some."""
    kinds = {task.FACTS.rows for task in TASKS.values()} - {""}
    assert set(BUILT_IN) - ROWS.keys() == {"loss", *TEXT_METRICS}
    assert {kind for rows in ROWS.values() for kind in rows} == kinds


def test_losses_are_weighted_by_tokens() -> None:
    """(2·3 + 5·1) / 4 = 2.75, and its exponential."""
    assert _of("loss", loss=[2.0, 5.0], weight=[3, 1]) == 2.75
    assert _of("perplexity", loss=[2.0, 5.0], weight=[3, 1]) == pytest.approx(math.exp(2.75))
    assert not METRICS["loss"].greater_is_better
    assert not METRICS["perplexity"].greater_is_better


def test_labels_by_hand() -> None:
    """Right in 3 of 5. F1 of 0: 2·1/(2·1+0+1) = 2/3; of 1: 2·2/(2·2+2+0) = 2/3; of 2: 0 of 1."""
    columns = {"label": [0, 0, 1, 1, 2], "predicted": [0, 1, 1, 1, 1]}
    assert _of("accuracy", **columns) == pytest.approx(0.6)
    assert _of("f1_macro", **columns) == pytest.approx((2 / 3 + 4 / 6 + 0) / 3)
    assert _of("f1_micro", **columns) == pytest.approx(0.6)  # one label a row: the accuracy


def test_several_labels_by_hand() -> None:
    """Rows all right: 1 of 2; micro: 2 hits, 1 wrong, none missed: 4/5."""
    columns = {"label": [[1, 0], [0, 1]], "predicted": [[1, 0], [1, 1]]}
    assert _of("accuracy", **columns) == 0.5
    assert _of("f1_micro", **columns) == pytest.approx(0.8)
    assert _of("f1_macro", **columns) == pytest.approx((2 / 3 + 1) / 2)


def test_the_area_by_hand() -> None:
    """Of 2·2 pairs 3 are in order; without a second label there is no area."""
    assert _of("auc", label=[0, 1, 0, 1], score=[0.1, 0.3, 0.4, 0.8]) == pytest.approx(0.75)
    assert _of("auc", label=[1, 1], score=[0.1, 0.3]) is None


def test_the_loops_own_measures_agree_with_the_libraries() -> None:
    """What is measured in each evaluation in bounded memory is what the report says of rows."""
    torch = pytest.importorskip("torch")
    from trainer_core.measures import LabelScores, NumberScores, area_under_curve, correlation

    logits = torch.randn(60, 2, generator=torch.Generator().manual_seed(1))
    labels = torch.randint(0, 2, (60,), generator=torch.Generator().manual_seed(2))
    scores = LabelScores()
    scores.add({"labels": labels}, logits, 60.0)
    found = scores.results(0.0)
    columns = {"label": labels.tolist(), "predicted": logits.argmax(-1).tolist()}
    for name in ("accuracy", "f1_macro", "f1_micro"):
        assert found[name] == pytest.approx(_of(name, **columns)), name
    margin = (logits[:, 1] - logits[:, 0]).tolist()
    assert found["auc"] == pytest.approx(_of("auc", label=labels.tolist(), score=margin))
    assert area_under_curve(list(zip(margin, labels.bool().tolist(), strict=True))) == found["auc"]
    numbers = NumberScores()
    numbers.add({"labels": labels.float()}, logits[:, :1], 60.0)
    values = {"number": labels.float().tolist(), "said": logits[:, 0].tolist()}
    for name in ("mse", "mae", "pearson"):
        assert numbers.results(0.0)[name] == pytest.approx(_of(name, **values)), name
    left, right = logits[:, 0].tolist(), logits[:, 1].tolist()
    assert correlation(left, right) == pytest.approx(
        _of("pearson_cosine", cosine=left, likeness=right)
    )


def test_ranks_decide_spearman() -> None:
    """Any rising curve is perfect, a falling one the opposite, a flat one has none."""
    assert _of("spearman_cosine", cosine=[0.1, 0.2, 0.9], likeness=[1, 2, 30]) == 1.0
    assert _of("spearman_cosine", cosine=[0.1, 0.2, 0.9], likeness=[3, 2, 1]) == -1.0
    assert _of("spearman_cosine", cosine=[0.5, 0.5], likeness=[1, 2]) is None


def test_rouge_is_that_of_lins_paper() -> None:
    """Lin 2004, section 3.1: of "police killed the gunman" and "police kill the gunman" the longest
    common subsequence has 3 words of 4, and of "the gunman kill police" 2."""
    reference = "police killed the gunman"
    assert _texts("rougeL", ("police kill the gunman", reference)) == pytest.approx(3 / 4)
    assert _texts("rougeL", ("the gunman kill police", reference)) == pytest.approx(2 / 4)
    # Bigrams: only "the gunman" is common to both sentences and the reference.
    for sentence in ("police kill the gunman", "the gunman kill police"):
        assert _texts("rouge2", (sentence, reference)) == pytest.approx(1 / 3)
    # Unigrams with counts: 1 "the" of 3 said, 1 of 2 wanted: 2·1/(3+2).
    assert _texts("rouge1", ("the the the", "the cat")) == pytest.approx(2 / 5)


def test_rouge_reads_every_script() -> None:
    """Two of three words are common; nothing is one in an empty answer."""
    assert _texts("rouge1", ("내일 오전에 도착해요", "내일 오전에 도착합니다")) == pytest.approx(
        2 / 3
    )
    assert _texts("rougeL", ("", "내일")) == 0.0


def test_exact_match() -> None:
    assert _texts("exact_match", (" Paris\n", "Paris"), ("paris", "Paris")) == 0.5


@pytest.mark.train
def test_bleu_is_sacrebleus() -> None:
    """From counts of each row the very score of the whole corpus."""
    from sacrebleu import corpus_bleu

    words = ["the", "a", "cat", "dog", "sat", "ran", "on", "under", "mat", "tree", "then", ",", "."]
    pairs = [
        (" ".join(RNG.choices(words, k=12)), " ".join(RNG.choices(words, k=12))) for _ in range(40)
    ]
    said, wanted = zip(*pairs, strict=True)
    assert _texts("bleu", *pairs) == pytest.approx(corpus_bleu(list(said), [list(wanted)]).score)
    assert _texts("bleu", ("the cat sat on the mat", "the cat sat on the mat")) == pytest.approx(
        100
    )


def test_the_interval_is_paired() -> None:
    """Each row gains exactly 0.1 whatever rows are drawn: the interval is a point, although single
    values scatter by 0.5. Two models that differ by chance alone are not told apart."""
    before = [RNG.random() for _ in range(200)]
    weight = [1] * 200
    better = [loss - 0.1 for loss in before]
    found = compare(METRICS["loss"], _losses(better, weight), _losses(before, weight), 0)
    assert found.difference == pytest.approx(-0.1)
    assert found.interval == pytest.approx((-0.1, -0.1))
    assert found.better is True
    other = [loss + RNG.gauss(0, 0.3) for loss in before]
    mean = sum(other) / 200 - sum(before) / 200
    centred = [loss - mean for loss in other]
    level = compare(METRICS["loss"], _losses(centred, weight), _losses(before, weight), 0)
    assert level.better is None
    assert level.interval is not None
    # The standard error of the mean difference, as the normal distribution gives the interval.
    error = 1.96 * (sum((a - b) ** 2 for a, b in zip(centred, before, strict=True)) / 200) ** 0.5
    assert level.interval[1] == pytest.approx(error / 200**0.5, rel=0.15)
    assert level.interval[0] == pytest.approx(-error / 200**0.5, rel=0.15)
    worse = compare(METRICS["loss"], _losses(before, weight), _losses(better, weight), 0)
    assert worse.better is False


def _losses(values: list[float], weight: list[int]) -> dict[str, list[Any]]:
    return {"loss": values, "weight": weight}


def test_few_rows_have_no_interval_and_other_rows_no_difference() -> None:
    few = _losses([1.0] * 7, [1] * 7)
    assert compare(METRICS["loss"], few, few, 0).interval is None
    assert compare(METRICS["loss"], few, _losses([1.0] * 6, [1] * 6), 0).base is None


SHOP = """
class Politeness:
    name = 'politeness'
    needs = ('generated',)
    greater_is_better = True
    def statistics(self, columns):
        return [float('please' in text) for text in columns['generated']]
    def value(self, statistics):
        return sum(statistics) / len(statistics)
class Rudeness(Politeness):
    name = 'rudeness'
    greater_is_better = False
class Torn:
    name = 'torn'
    needs = ('loss',)
    greater_is_better = True
    def statistics(self, columns):
        return list(columns['loss'])
    def value(self, statistics):
        return statistics[999]
class Wordy(Torn):
    def value(self, statistics):
        return 'very'
class Foreign(Torn):
    needs = ('rewards/margins',)
class Formed(Politeness):
    def statistics(self, columns):
        return [float(text) for text in columns['generated']]
nothing = 3
"""
ENTRIES = """
[polar.metrics]
politeness = shop_metrics:Politeness
rudeness = shop_metrics:Rudeness
torn = shop_metrics:Torn
wordy = shop_metrics:Wordy
foreign = shop_metrics:Foreign
formed = shop_metrics:Formed
lost = shop_metrics.gone:Politeness
nothing = shop_metrics:nothing
loss = shop_metrics:Politeness
"""


def _install(folder: Path) -> None:
    """A package's metadata beside its module are enough."""
    (folder / "shop_metrics.py").write_text(SHOP)
    info = folder / "shop_metrics-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: shop-metrics\nVersion: 1\n")
    (info / "entry_points.txt").write_text(ENTRIES)


@pytest.fixture
def shop_metrics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An installed package with metrics, good and bad."""
    _install(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    for module in (names, metrics, gate):  # what is installed is looked up once elsewhere
        monkeypatch.setattr(module, "plugged", plugged.__wrapped__)


@pytest.mark.usefixtures("shop_metrics")
def test_a_metric_of_an_installed_package() -> None:
    """What a package names is a metric, or it is said that it is none."""
    assert {"politeness", "nothing"} <= set(known_names())
    [metric] = chosen(["politeness"])
    columns = fitting(metric, [{"loss": [1.0]}, {"generated": ["yes please", "no"]}])
    assert columns is not None
    assert metric.value(metric.statistics(columns)) == 0.5
    assert chosen(["loss"]) == [METRICS["loss"]]  # a built-in name is not taken over
    with pytest.raises(InvalidSpec, match="shop_metrics:nothing is none: it has no name"):
        chosen(["nothing"])
    assert check(_spec(evaluation={"metrics": ["politeness"]})) == []
    # The package says which way is better: 0.2 rude answers are fewer than the 0.3 allowed.
    wish = Gate(metric="rudeness", threshold=0.3, min_improvement=0.1)
    require_gate(wish, {"eval_rudeness": 0.2}, {"eval_rudeness": 0.5})
    with pytest.raises(BelowGate, match=r"wants at most 0\.3"):
        require_gate(wish, {"eval_rudeness": 0.5}, {"eval_rudeness": 0.2})


@pytest.mark.usefixtures("shop_metrics")
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("lost", "cannot be loaded (ModuleNotFoundError: "),
        ("torn", "cannot be computed (IndexError: list index out of range)"),
        ("wordy", "cannot be computed (TypeError: its value is no number but str)"),
    ],
)
def test_a_broken_metric_is_told_before_anything_is_loaded(name: str, said: str) -> None:
    """With its name, its package, and what is wrong; those that need what only a library gives,
    or texts, which may have a form, are loaded alone, and built-in ones are known to work."""
    with pytest.raises(InvalidSpec) as wrong:
        try_out(_spec(evaluation={"metrics": ["loss", "politeness", name]}))
    assert wrong.value.field == "evaluation.metrics"
    assert wrong.value.message.startswith(
        f"the metric '{name}' of the package shop-metrics 1 {said}"
    )
    assert "take the metric out of evaluation.metrics" in wrong.value.message
    try_out(_spec(evaluation={"metrics": ["loss", "politeness", "foreign", "formed"]}))


@pytest.mark.train
def test_a_run_with_a_broken_metric_ends_before_its_model(tmp_path: Path) -> None:
    """There is no such model, which nobody has looked for yet."""
    _install(tmp_path)
    launch = {
        "attempt_id": "a",
        "job_id": "j",
        "job_name": "n",
        "spec": _spec(evaluation={"metrics": ["torn"]}).model_dump(mode="json"),
        "paths": {"work": str(tmp_path / "work")},
    }
    (tmp_path / "launch.json").write_text(json.dumps(launch))
    (tmp_path / "work").mkdir()
    command = [sys.executable, "-m", "trainer_core", "run", str(tmp_path / "launch.json")]
    environment = os.environ | {"PYTHONPATH": str(tmp_path), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, timeout=120, check=False)
    assert done.returncode == 64
    ended = json.loads((tmp_path / "work/exit.json").read_text())
    assert ended["message"].startswith("the metric 'torn' of the package shop-metrics 1")


def test_questions_are_what_stands_before_the_last_answer() -> None:
    """Two turns; two samples packed into one row; plain text asks nothing."""
    two_turns = {"input_ids": [1, 2, 3, 4, 5, 6, 7], "labels": [-100, -100, 3, -100, -100, 6, 7]}
    packed = {
        "input_ids": [1, 2, 3, 4, 5, 6],
        "labels": [-100, -100, 3, -100, -100, 6],
        "position_ids": [0, 1, 2, 0, 1, 2],
    }
    plain = {"input_ids": [1, 2, 3], "labels": [-100, 2, 3]}
    found = [(q.prompt, q.reference) for q in questions([plain, two_turns, packed], "tokens", 9)]
    assert found == [([1, 2, 3, 4, 5], [6, 7]), ([1, 2], [3]), ([4, 5], [6])]
    assert len(questions([packed] * 9, "tokens", 4)) == 4


def _spec(**blocks: Any) -> TrainSpec:
    document = {
        "task": {"type": "sft"},
        "model": {"name_or_path": "owner/model"},
        "data": {
            "train": [{"source": "folder", "path": "rows.jsonl"}],
            "validation": {"split_ratio": 0.1},
        },
    }
    return TrainSpec.model_validate(document | blocks)


@pytest.mark.parametrize(
    ("blocks", "pointer", "said"),
    [
        ({"evaluation": {"metrics": ["rouge_l"]}}, "/evaluation/metrics/0", "mean 'rougeL'"),
        (
            {"evaluation": {"metrics": ["loss", "accuracy"]}},
            "/evaluation/metrics/1",
            "as it is set, never give: leave it out; they can give loss, mean_token_accuracy",
        ),
        (
            {
                "task": {"type": "sft", "loss_type": "dft"},
                "evaluation": {"metrics": ["perplexity"]},
            },
            "/evaluation/metrics/0",
            "never give: leave it out; they can give loss, mean_token_accuracy, exact_match",
        ),
        (
            {
                "task": {"type": "sft", "kl_beta": 0.1},
                "evaluation": {"metrics": ["perplexity"]},
            },
            "/evaluation/metrics/0",
            "task 'sft', as it is set, never give",
        ),
        (
            {"task": {"type": "dpo"}, "evaluation": {"metrics": ["perplexity"]}},
            "/evaluation/metrics/0",
            "task 'dpo', as it is set, never give",
        ),
        (
            {
                "task": {"type": "evaluation", "of": {"type": "clm"}},
                "evaluation": {"metrics": ["mrr"]},
            },
            "/evaluation/metrics/0",
            "task 'clm', as it is set, never give",
        ),
        ({"evaluation": {"metrics": ["bleu"]}}, "/evaluation/metrics/0", "evaluation.generation"),
        (
            {"task": {"type": "text_classification"}, "evaluation": {"metrics": ["mse"]}},
            "/evaluation/metrics/0",
            "as it is set, never give: leave it out; they can give loss, accuracy, f1_macro",
        ),
        (
            {
                "task": {"type": "text_classification", "problem_type": "regression"},
                "evaluation": {"metrics": ["accuracy"]},
            },
            "/evaluation/metrics/0",
            "never give: leave it out; they can give loss, mse, mae, pearson",
        ),
        (
            {
                "task": {"type": "text_classification"},
                "checkpoint": {"load_best_model_at_end": True, "metric_for_best_model": "mse"},
            },
            "/checkpoint/metric_for_best_model",
            "does not measure",
        ),
        (
            {"evaluation": {"generation": {"top_p": 0.5}}},
            "/evaluation/generation/top_p",
            "without do_sample",
        ),
        (
            {"task": {"type": "mlm"}, "evaluation": {"generation": {}}},
            "/evaluation/generation",
            "which task 'mlm' has not",
        ),
        (
            {"publish": {"gate": {"metric": "rougeL", "threshold": 0.3}}},
            "/publish/gate/metric",
            "does not measure",
        ),
    ],
)
def test_refusals(blocks: dict[str, Any], pointer: str, said: str) -> None:
    found = {problem.pointer: problem.message for problem in check(_spec(**blocks))}
    assert said in found[pointer]


def test_a_perplexity_is_of_likelihoods_alone() -> None:
    assert check(_spec(evaluation={"metrics": ["perplexity"]})) == []
    assert can_be_given(_spec(), "perplexity")
    assert not can_be_given(_spec(task={"type": "sft", "loss_type": "dft"}), "perplexity")


def test_a_gate_about_answers() -> None:
    gate = {"gate": {"metric": "rougeL", "threshold": 0.3}}
    assert check(_spec(publish=gate, evaluation={"generation": {}})) == []

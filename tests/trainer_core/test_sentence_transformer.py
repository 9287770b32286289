"""Sentence embeddings: that they are learned, what is published, what is refused."""

import json
from typing import Any

import pytest

from tests.trainer_core.runs import Outcome, Zygote
from tests.trainer_core.small_tasks import Small
from tests.trainer_core.small_texts import judged, scored, triplets
from trainer_core.publish.manifest import verify

TASK = {"type": "sentence_transformer"}
LORA = {"type": "lora", "r": 4}


def _evaluation(run: Outcome) -> dict[str, Any]:
    assert run.code == 0, run.log
    found: dict[str, Any] = [m for m in run.of("metrics") if "eval_loss" in m][-1]
    return found


def _report(run: Outcome) -> dict[str, Any]:
    [path] = (run.work / "prepared").glob("*/report.json")
    loaded: dict[str, Any] = json.loads(path.read_text())
    return loaded


@pytest.mark.train
def test_triplets_are_learned_and_the_library_loads_them(small: Small, zygote: Zygote) -> None:
    """The published folder alone gives what the run measured, by the library's own evaluators."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.evaluation import (
        InformationRetrievalEvaluator,
        TripletEvaluator,
    )

    held = triplets(40, seed=1)
    training = {"learning_rate": 0.003, "per_device_train_batch_size": 16}
    run = zygote.run(small.launch("triplets", TASK, triplets(300), held, training=training))
    found = _evaluation(run)
    assert found["eval_cosine_accuracy"] >= 0.95
    assert _report(run)["facts"] == {
        "texts": 3,
        "columns": ["anchor", "positive", "negative"],
        "label": "none",
    }
    folder = run.work / "model"
    verify(folder)
    model = SentenceTransformer(str(folder), device="cpu")
    assert model.max_seq_length == 128
    sides = {name: [row[name] for row in held] for name in ("anchor", "positive", "negative")}
    expected = TripletEvaluator(sides["anchor"], sides["positive"], sides["negative"])(model)
    assert found["eval_cosine_accuracy"] == pytest.approx(expected["cosine_accuracy"])
    texts = {text: f"d{i}" for i, text in enumerate(sides["positive"] + sides["negative"])}
    queries = {text: f"q{i}" for i, text in enumerate(sides["anchor"])}
    relevant: dict[str, set[str]] = {}
    for row in held:
        relevant.setdefault(queries[row["anchor"]], set()).add(texts[row["positive"]])
    by_library = InformationRetrievalEvaluator(
        {i: text for text, i in queries.items()}, {i: text for text, i in texts.items()}, relevant
    )(model)
    for ours, theirs in {
        "eval_cosine_ndcg_at_10": "cosine_ndcg@10",
        "eval_cosine_mrr_at_10": "cosine_mrr@10",
        "eval_cosine_map_at_100": "cosine_map@100",
        "eval_cosine_accuracy_at_1": "cosine_accuracy@1",
        "eval_cosine_recall_at_10": "cosine_recall@10",
    }.items():
        assert found[ours] == pytest.approx(by_library[theirs], abs=1e-6), ours
    card = (folder / "README.md").read_text()
    assert "library_name: sentence-transformers" in card
    assert "pipeline_tag: sentence-similarity" in card
    assert "model = SentenceTransformer(folder)" in card
    assert f"| validation accuracy (cosine) | {found['eval_cosine_accuracy']:.4f} |" in card


@pytest.mark.train
@pytest.mark.parametrize("publish", [{}, {"merge": "always"}], ids=["adapter", "merged"])
def test_a10_an_adapter_is_loaded_by_the_library_alone(
    small: Small, zygote: Zygote, publish: dict[str, Any]
) -> None:
    """Numbers of pairs by the library's evaluator, from the folder and the base that it names."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.evaluation import EmbeddingSimilarityEvaluator

    held = scored(40, seed=1)
    run = zygote.run(
        small.launch(
            f"scored-{len(publish)}",
            TASK,
            scored(160),
            held,
            adapter=LORA,
            publish=publish,
            training={"per_device_train_batch_size": 16, "num_train_epochs": 5},
        )
    )
    found = _evaluation(run)
    assert found["eval_spearman_cosine"] >= 0.8
    model = SentenceTransformer(str(run.work / "model"), device="cpu")
    evaluator = EmbeddingSimilarityEvaluator(
        [row["sentence1"] for row in held],
        [row["sentence2"] for row in held],
        [row["score"] for row in held],
    )
    expected = evaluator(model)
    for name in ("spearman_cosine", "pearson_cosine"):
        assert found[f"eval_{name}"] == pytest.approx(expected[name], abs=1e-4)
    assert (run.work / "model/adapter_config.json").exists() is not bool(publish)
    assert (run.work / "model/README.md").read_text().count("SentenceTransformer(folder)") == 1


@pytest.mark.train
def test_pairs_are_told_apart_as_the_library_measures_it(small: Small, zygote: Zygote) -> None:
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.evaluation import BinaryClassificationEvaluator

    held = judged(41, seed=1)
    run = zygote.run(small.launch("judged", TASK, judged(160), held))
    found = _evaluation(run)
    assert found["eval_cosine_ap"] >= 0.9
    model = SentenceTransformer(str(run.work / "model"), device="cpu")
    evaluator = BinaryClassificationEvaluator(
        [row["sentence1"] for row in held],
        [row["sentence2"] for row in held],
        [row["label"] for row in held],
    )
    expected = evaluator(model)
    for name in ("cosine_accuracy", "cosine_f1", "cosine_ap"):
        assert found[f"eval_{name}"] == pytest.approx(expected[name], abs=1e-6), name


@pytest.mark.train
def test_rows_that_cannot_be_told_apart_are_refused(small: Small, zygote: Zygote) -> None:
    """Losses that compare rows are zero on copies of one: the run would end well."""
    alike = zygote.run(small.launch("alike", TASK, [{"anchor": "a b", "positive": "c d"}] * 6))
    assert alike.code == 64
    assert "data.train has 6 rows that are all the same" in alike.exit["message"]


@pytest.mark.train
def test_a_model_of_texts_and_images_is_refused(small: Small, zygote: Zygote) -> None:
    launch = small.launch("sees", TASK, triplets(8))
    launch["spec"]["model"]["name_or_path"] = str(small.llava)
    refused = zygote.run(launch)
    assert refused.code == 64
    assert "is a model of more than texts" in refused.exit["message"]

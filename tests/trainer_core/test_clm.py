"""Language modelling on documents: what rows hold, losses, embeddings, models from scratch."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from tests.trainer_core.runs import Outcome, Zygote
from tests.trainer_core.small_tasks import Small, documents
from tests.trainer_core.test_text_classification import PLAIN
from tests.trainer_core.tiny import make_tiny_model, make_tokenizer
from trainer_core.data.prepared import open_prepared
from trainer_core.prepare import prepare
from trainer_core.publish.manifest import verify
from trainer_core.spec import Launch

pytestmark = pytest.mark.train

TASK = {"type": "clm", "max_length": 64}


def _prepared(small: Small, folder: Path, rows: list[dict[str, Any]], **task: Any) -> Any:
    data = task.pop("data", {})
    name = folder.name
    launch = small.launch(name, TASK | task, rows)
    launch["spec"]["data"] |= data
    prepare(Launch.model_validate(launch), folder, make_tokenizer())
    return open_prepared(folder)


def _expected_stream(rows: list[dict[str, Any]]) -> list[int]:
    tokenizer = make_tokenizer()
    eos = tokenizer.eos_token_id
    return [i for row in rows for i in [*tokenizer(row["text"])["input_ids"], eos]]


def test_a_wrapped_stream_loses_no_token(small: Small, tmp_path: Path) -> None:
    """All documents with their EOS in order, in full rows but for the last."""
    rows = documents(30)
    found = _prepared(small, tmp_path / "wrapped", rows)
    stream = [i for row in found.train["input_ids"] for i in row]
    expected = _expected_stream(rows)
    assert stream == expected
    lengths = [len(row) for row in found.train["input_ids"]]
    assert set(lengths[:-1]) == {64}
    assert lengths[-1] == len(expected) % 64 or 64
    for ids, labels in zip(found.train["input_ids"], found.train["labels"], strict=True):
        assert labels == [-100, *ids[1:]]
    assert found.report.trained_tokens == len(expected) - len(lengths)
    assert (found.report.train_samples, found.report.rows_cut) == (30, 0)


def test_a4_fitted_rows_hold_whole_documents(small: Small, tmp_path: Path) -> None:
    """Position ids restart with each document; rows are nearly full."""
    rows = documents(60)
    found = _prepared(small, tmp_path / "fitted", rows, packing="bfd", max_length=256)
    whole = []
    for row in found.train:
        starts = [i for i, p in enumerate(row["position_ids"]) if p == 0]
        for start, end in zip(starts, [*starts[1:], len(row["input_ids"])], strict=True):
            whole.append(row["input_ids"][start:end])
            assert row["labels"][start] == -100
            assert row["labels"][start + 1 : end] == row["input_ids"][start + 1 : end]
    tokenizer = make_tokenizer()
    expected = [[*tokenizer(r["text"])["input_ids"], tokenizer.eos_token_id] for r in rows]
    assert sorted(whole) == sorted(expected)
    filled = sum(map(len, whole)) / (256 * len(found.train))
    assert filled >= 0.9


def test_a15_documents_go_on_in_further_rows(small: Small, tmp_path: Path) -> None:
    """`split` keeps every token, and the ledger tells of it; no row is too short to learn from."""
    rows = documents(12, seed=2)
    data = {"over_length": "split"}
    found = _prepared(small, tmp_path / "split", rows, packing="none", max_length=16, data=data)
    stream = [i for row in found.train["input_ids"] for i in row]
    assert stream == _expected_stream(rows)
    assert all(2 <= len(row) <= 16 for row in found.train["input_ids"])
    ledger = [json.loads(line) for line in (tmp_path / "split/ledger.jsonl").open()]
    assert {entry["action"] for entry in ledger} == {"split"}
    assert found.report.rows_dropped == 0


def test_a2_documents_end_with_eos_once_or_never(small: Small, tmp_path: Path) -> None:
    eos = make_tokenizer().eos_token_id
    rows = [{"text": "the shop was great<|im_end|>"}, {"text": "the price was awful"}]
    for name, add, count in (("with", True, 1), ("without", False, 0)):
        found = _prepared(small, tmp_path / name, rows, packing="none", add_eos_token=add)
        counts = [row.count(eos) for row in found.train["input_ids"]]
        assert counts == [1, count]


def test_it_learns_and_says_how_well(small: Small, zygote: Zygote) -> None:
    run = zygote.run(
        small.launch(
            "documents",
            TASK,
            documents(80),
            documents(10, seed=1),
            training={"learning_rate": 0.03},
        )
    )
    assert run.code == 0, run.log
    evaluations = [m for m in run.of("metrics") if "eval_loss" in m]
    last = evaluations[-1]
    assert last["eval_perplexity"] == pytest.approx(math.exp(last["eval_loss"]))
    # An untrained model guesses among 512 tokens; the words follow each other in few ways.
    assert last["eval_perplexity"] < 40
    verify(run.work / "model")
    card = (run.work / "model/README.md").read_text()
    assert f"| validation perplexity | {last['eval_perplexity']:.4f} |" in card


def _losses(run: Outcome) -> list[float]:
    assert run.code == 0, run.log
    return [run.losses[step] for step in sorted(run.losses)]


@pytest.mark.parametrize("embedding_rate", [None, 0.02])
def test_a6_embeddings_have_their_own_rate(
    small: Small, zygote: Zygote, embedding_rate: float | None
) -> None:
    """Three SGD steps over accumulated batches against plain PyTorch with two learning rates."""
    import torch
    from transformers import AutoModelForCausalLM

    calm = make_tiny_model(small.folder / "calm-llama")
    rows = documents(8, seed=3)
    training = PLAIN | {
        "max_steps": 3,
        "per_device_train_batch_size": 3,
        "gradient_accumulation_steps": 3,
    }
    task = TASK | {"packing": "none", "max_length": 512, "embedding_learning_rate": embedding_rate}
    model = {"source": "folder", "name_or_path": str(calm)}
    run = zygote.run(
        small.launch(f"rates-{embedding_rate}", task, rows, training=training, model=model)
    )
    reference = AutoModelForCausalLM.from_pretrained(calm)
    tokenizer = make_tokenizer()
    embeddings = [reference.get_input_embeddings().weight, reference.get_output_embeddings().weight]
    others = [p for p in reference.parameters() if not any(p is e for e in embeddings)]
    optimizer = torch.optim.SGD(
        [{"params": others}, {"params": embeddings, "lr": embedding_rate or 0.1}], lr=0.1
    )
    expected = []
    for _ in range(3):
        total = tokens = 0
        for row in rows:
            ids = torch.tensor([[*tokenizer(row["text"])["input_ids"], tokenizer.eos_token_id]])
            logits = reference(input_ids=ids).logits[0]
            total = total + torch.nn.functional.cross_entropy(
                logits[:-1], ids[0, 1:], reduction="sum"
            )
            tokens += ids.shape[1] - 1
        loss = total / tokens
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        expected.append(loss.item())
    assert _losses(run) == pytest.approx(expected, abs=5e-5)


def test_an_adapter_without_embeddings_has_no_rate_for_them(small: Small, zygote: Zygote) -> None:
    task = TASK | {"embedding_learning_rate": 1e-3}
    adapter = {"type": "lora", "r": 4, "modules_to_save": ["norm"]}
    run = zygote.run(small.launch("no-embeddings", task, documents(20), adapter=adapter))
    assert run.code == 64
    assert "no embedding is trained" in run.exit["message"]


def test_a_model_from_scratch(small: Small, zygote: Zygote) -> None:
    """Its size is the configuration's, its vocabulary the tokenizer's; the seed makes it again."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    config = {
        "model_type": "qwen2",
        "hidden_size": 24,
        "intermediate_size": 48,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "max_position_embeddings": 64,
    }
    task = TASK | {"from_config": config}
    runs = [zygote.run(small.launch(f"scratch-{i}", task, documents(40))) for i in range(2)]
    assert runs[0].code == 0, runs[0].log
    assert runs[0].losses == runs[1].losses
    folder = runs[0].work / "model"
    model = AutoModelForCausalLM.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert (model.config.model_type, model.config.hidden_size) == ("qwen2", 24)
    assert model.config.vocab_size == len(tokenizer)
    assert model.config.eos_token_id == tokenizer.eos_token_id
    assert (
        "A model that began at random, with the tokenizer of" in (folder / "README.md").read_text()
    )


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"model_type": "lama"}, "makes no model: Unrecognized model identifier: lama"),
        ({"hidden_size": 33}, "task.from_config makes no model"),
        ({"hidden_size": "big"}, "task.from_config makes no model: Validation error"),
        ({"vocab_size": 100}, "they do not belong together"),
    ],
)
def test_configurations_that_make_no_model(
    small: Small, zygote: Zygote, config: dict[str, Any], message: str
) -> None:
    name = f"no-model-{'-'.join(map(str, [*config, *config.values()]))}"
    run = zygote.run(small.launch(name, TASK | {"from_config": config}, documents(8)))
    assert run.code == 64
    assert message in run.exit["message"]

"""Masked language modelling: rows, masks and their statistics, losses, models from scratch."""

import json
import math
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from tests.trainer_core.runs import Outcome, Zygote
from tests.trainer_core.small_tasks import Small, documents, make_tiny_bert, opinions
from tests.trainer_core.test_text_classification import CALM, PLAIN
from trainer_core.data.masked_rows import frame
from trainer_core.data.prepared import open_prepared
from trainer_core.prepare import prepare
from trainer_core.publish.manifest import verify
from trainer_core.row_draws import DRAW, DrawnRows
from trainer_core.spec import Launch

pytestmark = pytest.mark.train

TASK: dict[str, Any] = {"type": "mlm", "max_length": 64}
SCRATCH = {
    "model_type": "bert",
    "hidden_size": 24,
    "intermediate_size": 48,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "max_position_embeddings": 64,
}
CHANCE = 5  # standard deviations: one test in 1.7 million would fail by chance


def _tokenizer(small: Small) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(small.bert)


def _prepared(small: Small, folder: Path, rows: list[dict[str, Any]], **task: Any) -> Any:
    data = task.pop("data", {})
    launch = small.launch(folder.name, TASK | task, rows)
    launch["spec"]["data"] |= data
    prepare(Launch.model_validate(launch), folder, _tokenizer(small))
    return open_prepared(folder)


def _words(small: Small, rows: list[dict[str, Any]]) -> list[list[int]]:
    tokenizer = _tokenizer(small)
    return [tokenizer(row["text"], add_special_tokens=False)["input_ids"] for row in rows]


# ---- rows ----


def test_texts_are_joined_and_cut_into_framed_rows(small: Small, tmp_path: Path) -> None:
    """[CLS] … [SEP] around each row, [SEP] between texts; no token is lost, specials not asked."""
    rows = documents(30)
    found = _prepared(small, tmp_path / "joined", rows)
    before, after = frame(_tokenizer(small))
    assert (before, after) == ([2], [3])  # [CLS] and [SEP] of the tiny BERT
    stream: list[int] = []
    for number, ids in enumerate(_words(small, rows)):
        stream += ids if not number else [*after, *ids]
    made = [row["input_ids"] for row in found.train]
    assert [i for row in made for i in row[1:-1]] == stream
    assert all(row[:1] == before and row[-1:] == after for row in made)
    assert {len(row) for row in made[:-1]} == {64}
    for row in found.train:
        expected = [-100 if i in (2, 3) else i for i in row["input_ids"]]
        assert row["labels"] == expected
    asked = sum(map(len, _words(small, rows)))
    assert (found.report.trained_tokens, found.report.train_samples) == (asked, 30)


def test_a_row_for_each_text(small: Small, tmp_path: Path) -> None:
    rows = documents(12, seed=4)
    found = _prepared(small, tmp_path / "lines", rows, line_by_line=True, max_length=128)
    expected = [[2, *ids, 3] for ids in _words(small, rows)]
    assert [row["input_ids"] for row in found.train] == expected


@pytest.mark.parametrize("policy", ["split", "truncate_right", "truncate_left", "drop"])
def test_a15_long_lines_follow_the_policy(small: Small, tmp_path: Path, policy: str) -> None:
    """Each part stands between special tokens; the ledger tells of every line."""
    rows = [{"text": "the shop was great and late " * 4}, {"text": "the price is lovely"}]
    long, short = _words(small, rows)
    found = _prepared(
        small,
        tmp_path / policy,
        rows,
        line_by_line=True,
        max_length=16,
        data={"over_length": policy},
    )
    parts = {
        "split": [long[i : i + 14] for i in range(0, len(long), 14)],
        "truncate_right": [long[:14]],
        "truncate_left": [long[-14:]],
        "drop": [],
    }
    expected = [[2, *part, 3] for part in [*parts[policy], short]]
    assert [row["input_ids"] for row in found.train] == expected
    [entry] = [json.loads(line) for line in (tmp_path / policy / "ledger.jsonl").open()]
    actions = {"split": "split", "drop": "dropped"}
    assert entry["action"] == actions.get(policy, "cut")


def test_words_are_known_to_their_first_token(small: Small, tmp_path: Path) -> None:
    """`word_starts` is 1 where WordPiece begins a word, so `##` pieces belong to what is before."""
    rows = [{"text": "unfriendliest parcels, refunded"}]
    found = _prepared(small, tmp_path / "words", rows, whole_word_mask=True)
    [row] = list(found.train)
    pieces = _tokenizer(small).convert_ids_to_tokens(row["input_ids"])
    assert any(piece.startswith("##") for piece in pieces)
    expected = [int(not p.startswith("##") and p not in ("[CLS]", "[SEP]")) for p in pieces]
    assert row["word_starts"] == expected


# ---- masks ----


def _rules(small: Small, probability: float) -> Any:
    from trainer_core.masking import MaskRules

    return MaskRules.of(_tokenizer(small), probability)


def _near(count: int, trials: int, chance: float) -> None:
    """`count` is within CHANCE standard deviations of the binomial distribution's mean."""
    assert abs(count - trials * chance) <= CHANCE * math.sqrt(trials * chance * (1 - chance))


@pytest.mark.parametrize("probability", [0.15, 0.4])
def test_masks_have_the_shares_that_they_should(small: Small, probability: float) -> None:
    """15 % of the tokens are asked for; of these 80 % masked, 10 % swapped, 10 % left as they are.

    Counts of independent draws are binomial; a swap may draw the token itself again.
    """
    from trainer_core.masking import masked

    rules = _rules(small, probability)
    ids = [2, *(5 + i % 390 for i in range(126)), 3]
    labels = [-100 if i < 5 else i for i in ids]
    rows = DrawnRows([{"input_ids": ids, "labels": labels}] * 600, seed=42)
    asked = hidden = swapped = kept = 0
    for number in range(len(rows)):
        new, wanted = masked(rows[number], rules)
        for old, now, label in zip(ids, new, wanted, strict=True):
            if label == -100:
                assert now == old
                continue
            assert label == old
            asked += 1
            hidden += now == rules.mask_token_id
            swapped += now not in (old, rules.mask_token_id)
            kept += now == old
        assert (new[0], new[-1]) == (2, 3)
    _near(asked, 126 * 600, probability)
    again = 0.1 / len(rules.replacements)
    _near(hidden, asked, 0.8)
    _near(swapped, asked, 0.1 - again)
    _near(kept, asked, 0.1 + again)


def test_whole_words_are_masked_or_not_at_all(small: Small) -> None:
    """Words of 1, 2 and 3 tokens: all tokens of one are asked for, or none; 15 % of the words."""
    from trainer_core.masking import masked

    rules = _rules(small, 0.15)
    starts = [0, *([1, 1, 0, 1, 0, 0] * 20), 0]
    ids = [2, *(10 + i for i in range(120)), 3]
    labels = [-100, *ids[1:-1], -100]
    row = {"input_ids": ids, "labels": labels, "word_starts": starts}
    rows = DrawnRows([row] * 500, seed=1)
    words = [i for i, start in enumerate(starts) if start]
    chosen = 0
    for number in range(len(rows)):
        _, wanted = masked(rows[number], rules)
        for begin, end in zip(words, [*words[1:], len(ids) - 1], strict=True):
            asked = {label != -100 for label in wanted[begin:end]}
            assert len(asked) == 1
            chosen += asked == {True}
    _near(chosen, 60 * 500, 0.15)


def test_a_row_never_is_without_loss(small: Small) -> None:
    """Of three words at 1 % chance would choose none in 97 % of the rows: one is asked for."""
    from trainer_core.masking import masked

    row = {"input_ids": [2, 10, 11, 12, 3], "labels": [-100, 10, 11, 12, -100]}
    rows = DrawnRows([row] * 200, seed=3)
    counts = [sum(v != -100 for v in masked(rows[i], _rules(small, 0.01))[1]) for i in range(200)]
    assert min(counts) == 1


def test_masks_follow_seed_epoch_and_row_alone(small: Small) -> None:
    """Nothing else: neither what else was drawn, nor the order, nor torch's random state."""
    import torch

    from trainer_core.masking import masked

    rules = _rules(small, 0.15)
    row = {"input_ids": [2, *range(10, 130), 3], "labels": [-100, *range(10, 130), -100]}
    rows = DrawnRows([row] * 4, seed=5, epoch=1)
    first = [masked(rows[i], rules) for i in range(4)]
    assert len({str(m) for m in first}) == 4
    torch.manual_seed(123)
    assert [masked(rows[i], rules) for i in (3, 1, 0, 2)] == [first[i] for i in (3, 1, 0, 2)]
    rows.epoch = 2
    assert masked(rows[0], rules) != first[0]
    assert masked(DrawnRows([row], seed=6, epoch=1)[0], rules) != first[0]


# ---- training ----


def _losses(run: Outcome) -> list[float]:
    assert run.code == 0, run.log
    return [run.losses[step] for step in sorted(run.losses)]


def _expected_losses(folder: Path, rows: list[dict[str, Any]]) -> list[float]:
    """Three plain SGD steps over all rows, a row at a time and so without any padding."""
    import torch
    from transformers import AutoModelForMaskedLM, AutoTokenizer, set_seed

    from trainer_core.masking import MaskRules, masked

    tokenizer = AutoTokenizer.from_pretrained(folder)
    rules = MaskRules.of(tokenizer, 0.15)
    set_seed(42)
    model = AutoModelForMaskedLM.from_pretrained(folder)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for epoch in (1, 2, 3):
        total = tokens = 0
        for number, row in enumerate(rows):
            ids = tokenizer(row["text"])["input_ids"]
            labels = [-100, *ids[1:-1], -100]
            new, asked = masked(
                {"input_ids": ids, "labels": labels, DRAW: (42, epoch, number)}, rules
            )
            logits = model(input_ids=torch.tensor([new])).logits[0]
            wanted = torch.tensor(asked)
            total = total + torch.nn.functional.cross_entropy(logits, wanted, reduction="sum")
            tokens += int((wanted != -100).sum())
        optimizer.zero_grad()
        (total / tokens).backward()
        optimizer.step()
        losses.append((total / tokens).item())
    return losses


@pytest.mark.parametrize(
    ("batch", "accumulated", "more"),
    [(8, 1, {}), (3, 3, {}), (3, 3, {"pad_to_max_length": True})],
)
def test_a6_the_loss_is_the_mean_over_all_masked_tokens_of_a_step(
    small: Small, zygote: Zygote, batch: int, accumulated: int, more: dict[str, Any]
) -> None:
    """Against plain PyTorch; 3 + 3 + 2 rows of uneven lengths in one step are as 8 at once."""
    calm = small.folder / "calm-masked"
    if not calm.exists():
        make_tiny_bert(calm, **CALM)
    rows = documents(8, seed=3)
    training = PLAIN | {
        "max_steps": 3,
        "per_device_train_batch_size": batch,
        "gradient_accumulation_steps": accumulated,
    }
    task = TASK | {"line_by_line": True, "max_length": 128} | more
    name = f"masked-{batch}-{'-'.join(more)}"
    model = {"source": "folder", "name_or_path": str(calm)}
    run = zygote.run(small.launch(name, task, rows, training=training, model=model))
    assert _losses(run) == pytest.approx(_expected_losses(calm, rows), abs=5e-5)


def test_it_learns_and_the_library_alone_fills_masks(small: Small, zygote: Zygote) -> None:
    """Of "the X was Y and Z" three words of six are certain, the others a guess among ten."""
    from transformers import pipeline

    rows = [{"text": row["text"]} for row in opinions(280, seed=2)]
    run = zygote.run(
        small.launch(
            "masked-opinions",
            TASK | {"line_by_line": True, "mlm_probability": 0.3},
            rows[:240],
            rows[240:],
            training={"learning_rate": 0.02, "per_device_train_batch_size": 8},
        )
    )
    assert run.code == 0, run.log
    last = [m for m in run.of("metrics") if "eval_loss" in m][-1]
    assert last["eval_perplexity"] == pytest.approx(math.exp(last["eval_loss"]))
    assert last["eval_masked_accuracy"] >= 0.4
    folder = run.work / "model"
    verify(folder)
    fill = pipeline("fill-mask", model=str(folder), tokenizer=str(folder))
    [best, *_] = fill("the shop [MASK] great and lovely")
    assert best["token_str"] == "was"
    card = (folder / "README.md").read_text()
    assert "pipeline_tag: fill-mask" in card
    name = "validation accuracy of masked tokens"
    assert f"| {name} | {last['eval_masked_accuracy']:.4f} |" in card


def test_evaluations_ask_for_the_same_tokens(small: Small, zygote: Zygote) -> None:
    """With a learning rate that changes nothing each evaluation measures the same."""
    run = zygote.run(
        small.launch(
            "same-masks",
            TASK,
            documents(16),
            documents(8, seed=1),
            training={"learning_rate": 1e-30, "num_train_epochs": 3},
        )
    )
    assert run.code == 0, run.log
    losses = {m["eval_loss"] for m in run.of("metrics") if "eval_loss" in m}
    assert len(losses) == 1
    assert len({m["loss"] for m in run.of("metrics") if "loss" in m}) > 1


def test_an_adapter_on_an_encoder(small: Small, zygote: Zygote) -> None:
    """On a model with a head; the card's own lines load it again. Merged it is the same."""
    from peft import PeftModel
    from transformers import AutoModelForMaskedLM, AutoTokenizer

    base = small.folder / "bert-masked"
    AutoModelForMaskedLM.from_pretrained(small.bert).save_pretrained(base)
    _tokenizer(small).save_pretrained(base)
    model = {"source": "folder", "name_or_path": str(base)}
    adapter = {"type": "lora", "r": 4}
    rows = documents(24)
    run = zygote.run(small.launch("masked-lora", TASK, rows, model=model, adapter=adapter))
    assert run.code == 0, run.log
    card = (run.work / "model/README.md").read_text()
    assert "PeftModel.from_pretrained(base, folder)" in card
    loaded = PeftModel.from_pretrained(
        AutoModelForMaskedLM.from_pretrained(base), run.work / "model"
    )
    assert len(AutoTokenizer.from_pretrained(run.work / "model")) == len(_tokenizer(small))
    assert any(p.any() for n, p in loaded.named_parameters() if "lora_B" in n)

    headless = zygote.run(small.launch("headless", TASK, rows, adapter=adapter))
    assert headless.code == 64
    assert "would leave a random one as it is: train without an adapter" in headless.exit["message"]


# ---- from scratch ----


def test_a_model_and_its_tokenizer_from_scratch(small: Small, zygote: Zygote) -> None:
    """The vocabulary is learned from the texts; the model is made for it; both are published."""
    from transformers import AutoModelForMaskedLM, AutoTokenizer

    task = TASK | {"from_config": SCRATCH, "train_tokenizer": {"vocab_size": 120}}
    rows = documents(60)
    runs = [zygote.run(small.launch(f"masked-scratch-{i}", task, rows, rows[:8])) for i in range(2)]
    assert runs[0].code == 0, runs[0].log
    assert runs[0].losses == runs[1].losses
    folder = runs[0].work / "model"
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForMaskedLM.from_pretrained(folder)
    assert model.config.hidden_size == 24
    assert len(tokenizer) == model.config.vocab_size <= 120
    assert model.config.pad_token_id == tokenizer.pad_token_id
    assert tokenizer.all_special_tokens == _tokenizer(small).all_special_tokens
    # Every word of the texts is a token of its own by now: they are few.
    assert tokenizer.tokenize("the delivery was friendly") == ["the", "delivery", "was", "friendly"]
    assert tokenizer.decode(tokenizer("the shop")["input_ids"]) == "[CLS] the shop [SEP]"
    assert "A model that began at random" in (folder / "README.md").read_text()


@pytest.mark.parametrize(("kind", "size"), [("bert", 60), ("llama", 320)])
def test_a8_a_trained_tokenizer_is_the_same_each_time(small: Small, kind: str, size: int) -> None:
    """WordPiece and BPE, on words whose pairs are all equally frequent: ties everywhere.

    The library alone makes another WordPiece vocabulary of them each time.
    """
    from transformers import AutoTokenizer

    from trainer_core.data.trained_tokenizer import trained_like

    words = ["".join(letters) for letters in product("abcdefgh", repeat=3)]
    texts = [[" ".join(words[i : i + 8])] for i in range(0, len(words), 8)]
    like = AutoTokenizer.from_pretrained({"bert": small.bert, "llama": small.llama}[kind])
    made = [trained_like(like, lambda: iter(texts), size) for _ in range(4)]
    assert len({tokenizer.backend_tokenizer.to_str() for tokenizer in made}) == 1
    assert made[0].tokenize("abc abc hgf")


# ---- refusals ----


def _llama_with_a_mask_token(small: Small) -> Path:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = small.folder / "llama-with-mask"
    tokenizer = AutoTokenizer.from_pretrained(small.llama)
    tokenizer.mask_token = tokenizer.convert_ids_to_tokens(0)
    tokenizer.save_pretrained(folder)
    AutoModelForCausalLM.from_pretrained(small.llama).save_pretrained(folder)
    return folder


def test_decoders_are_refused(small: Small, zygote: Zygote) -> None:
    for folder, message in (
        (small.llama, "has no mask token: masked language modelling needs an encoder"),
        (_llama_with_a_mask_token(small), "is not a masked language model"),
    ):
        model = {"source": "folder", "name_or_path": str(folder)}
        run = zygote.run(small.launch(f"no-{folder.name}", TASK, documents(8), model=model))
        assert run.code == 64
        assert message in run.exit["message"]


@pytest.mark.parametrize(
    ("task", "message"),
    [
        ({"max_length": 129}, "task.max_length is 129, but the model takes 128 tokens"),
        (
            {"max_length": 100, "from_config": SCRATCH},
            "task.max_length is 100, but the model has 64 positions: set it to 64 or less",
        ),
        (
            {"from_config": SCRATCH, "train_tokenizer": {"vocab_size": 16}},
            "task.train_tokenizer.vocab_size is 16, but the characters of the texts",
        ),
        ({"from_config": {"hidden_size": 33}}, "task.from_config makes no model"),
    ],
)
def test_what_does_not_fit_the_model(
    small: Small, zygote: Zygote, task: dict[str, Any], message: str
) -> None:
    name = f"unfit-{'-'.join(task)}"
    run = zygote.run(small.launch(name, TASK | task, documents(8)))
    assert run.code == 64
    assert message in run.exit["message"]


@pytest.mark.parametrize(
    ("blocks", "pointer", "message"),
    [
        (
            {"task": TASK | {"train_tokenizer": {}}},
            "/task/train_tokenizer",
            "makes another vocabulary",
        ),
        (
            {"task": TASK | {"from_config": SCRATCH}, "adapter": {"type": "lora"}},
            "/adapter",
            "begins at random, which an adapter cannot mend",
        ),
        (
            {"task": TASK | {"from_config": {"auto_map": {}}}},
            "/task/from_config/auto_map",
            "would run code",
        ),
    ],
)
def test_what_does_not_go_together(blocks: dict[str, Any], pointer: str, message: str) -> None:
    from trainer_core.capabilities import check
    from trainer_core.spec import TrainSpec

    spec = {
        "model": {"name_or_path": "owner/model"},
        "data": {"train": [{"source": "folder", "path": "rows.jsonl"}]},
    }
    problems = check(TrainSpec.model_validate(spec | blocks))
    assert [problem.pointer for problem in problems] == [pointer]
    assert message in problems[0].message


def test_bad_texts_are_told(small: Small, tmp_path: Path) -> None:
    rows = [{"text": "the shop was great"}, {"text": " "}, {"text": "[SEP] [MASK]"}]
    found = _prepared(
        small, tmp_path / "bad", rows, data={"on_bad_row": "drop", "max_bad_ratio": 1.0}
    )
    assert found.report.rows_dropped == 2
    reasons = [json.loads(line)["message"] for line in (tmp_path / "bad/ledger.jsonl").open()]
    assert "`text` is empty" in reasons[0]
    assert "no token that could be masked" in reasons[1]

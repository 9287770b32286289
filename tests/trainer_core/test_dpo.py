"""Preferences: what rows become, the losses against plain PyTorch, references, what is kept."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from tests.trainer_core.runs import Outcome, Zygote
from tests.trainer_core.small_tasks import Small, preferences
from tests.trainer_core.test_text_classification import PLAIN
from tests.trainer_core.tiny import make_tiny_model, make_tokenizer
from trainer_core.capabilities import check
from trainer_core.data.formats import to_sample
from trainer_core.data.prepared import open_prepared
from trainer_core.data.rows import BadRow, Conversation, PlainText, Preference
from trainer_core.prepare import prepare
from trainer_core.publish.manifest import verify
from trainer_core.spec import Launch, TrainSpec

TASK = {"type": "dpo", "max_length": 128}
USER, GOOD, BAD = (
    {"role": "user", "content": "Where is my order?"},
    {"role": "assistant", "content": "It is on its way."},
    {"role": "assistant", "content": "No idea."},
)
PAIR = Preference(Conversation([USER, GOOD], 1), Conversation([USER, BAD], 1))


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": [USER], "chosen": [GOOD], "rejected": [BAD]},
        {"prompt": [USER], "chosen": GOOD["content"], "rejected": BAD["content"]},
        {"prompt": [USER], "chosen": GOOD, "rejected": BAD},
        {"chosen": [USER, GOOD], "rejected": [USER, BAD]},
        {"prompt": USER["content"], "chosen": [USER, GOOD], "rejected": [USER, BAD]},
        {"instruction": USER["content"], "chosen": GOOD["content"], "rejected": BAD["content"]},
        {
            "conversations": [{"from": "human", "value": USER["content"]}],
            "chosen": {"from": "gpt", "value": GOOD["content"]},
            "rejected": {"from": "gpt", "value": BAD["content"]},
        },
    ],
)
def test_every_spelling_of_a_pair(row: dict[str, Any]) -> None:
    assert to_sample(row, "preference", None) == PAIR


def test_texts_are_joined_as_they_are() -> None:
    given = {"prompt": "2 + 2 =", "chosen": " 4", "rejected": " 5"}
    expected = Preference(PlainText("2 + 2 =", " 4"), PlainText("2 + 2 =", " 5"))
    assert to_sample(given, "preference", None) == expected
    whole = {"chosen": "2 + 2 = 4", "rejected": "2 + 2 = 5"}
    assert to_sample(whole, "preference", None) == expected


def test_a_system_message_stands_before_both_sides() -> None:
    row = {"prompt": [USER], "chosen": [GOOD], "rejected": [BAD]}
    sample = to_sample(row, "preference", "Be kind.")
    assert isinstance(sample, Preference)
    for side in (sample.chosen, sample.rejected):
        assert isinstance(side, Conversation)
        assert side.messages[0] == {"role": "system", "content": "Be kind."}
        assert side.prompt_messages == 2


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"prompt": "a", "chosen": "b", "rejected": "b"}, "are the same"),
        ({"chosen": [GOOD], "rejected": [BAD]}, "begin differently"),
        ({"chosen": "yes", "rejected": "no"}, "begin differently"),
        ({"prompt": "a", "chosen": "b", "rejected": [BAD]}, "a string and a list"),
        ({"prompt": 3, "chosen": "b", "rejected": "c"}, "`prompt` must be a string or a list"),
        ({"prompt": "b", "chosen": [USER, GOOD], "rejected": [USER, BAD]}, "do not begin with it"),
        ({"prompt": "a", "chosen": "b"}, "`rejected` is missing"),
    ],
)
def test_a36_what_is_no_pair(row: dict[str, Any], message: str) -> None:
    with pytest.raises(BadRow) as bad:
        to_sample(row, "preference", None)
    assert message in bad.value.message


def spec(task: dict[str, Any], **blocks: Any) -> TrainSpec:
    return TrainSpec.model_validate(
        {
            "task": {"type": "dpo"} | task,
            "model": {"name_or_path": "owner/model"},
            "data": {"train": [{"source": "folder", "path": "pairs.jsonl"}]},
        }
        | blocks
    )


LORA = {"type": "lora", "r": 4}


@pytest.mark.parametrize(
    ("task", "adapter", "field", "message"),
    [
        ({"loss_weights": [1.0, 2.0]}, None, "loss_weights", "2 numbers for 1 losses"),
        ({"label_smoothing": 0.1}, None, "label_smoothing", "works only with"),
        ({"loss_type": ["robust"], "label_smoothing": 0.5}, None, "label_smoothing", "below 0.5"),
        ({"loss_type": ["exo_pair"]}, None, "label_smoothing", "above 0"),
        (
            {"loss_type": ["sppo_hard"], "f_divergence_type": "forward_kl"},
            None,
            "f_divergence_type",
            "'sppo_hard' cannot use",
        ),
        ({"f_alpha_divergence_coef": 0.7}, None, "f_alpha_divergence_coef", "needs"),
        ({"loss_type": ["aot"], "use_weighting": True}, None, "use_weighting", "'aot' sorts"),
        ({"loss_type": ["sft"], "use_weighting": True}, None, "use_weighting", "tokens of 'sft'"),
        ({"discopop_tau": 0.1}, None, "discopop_tau", "needs loss_type 'discopop'"),
        ({"reference": "adapter_disabled"}, None, "reference", "there is no adapter"),
        ({"reference": "model"}, LORA, "reference", "use 'adapter_disabled'"),
        (
            {"reference": "adapter_disabled", "ref_model": {"name_or_path": "a/b"}},
            LORA,
            "ref_model",
            "leave one of them out",
        ),
        (
            {"ref_model": {"source": "job", "name_or_path": "job_1"}},
            None,
            "ref_model/source",
            "use 'hub' or 'folder'",
        ),
        ({"sync_ref_model": True}, LORA, "sync_ref_model", "no adapter"),
        ({"ref_model_sync_steps": 3}, None, "sync_ref_model", "set it to true"),
        ({"precompute_ref_batch_size": 3}, None, "precompute_ref_batch_size", "'precomputed'"),
    ],
)
def test_what_does_not_go_together(
    task: dict[str, Any], adapter: dict[str, Any] | None, field: str, message: str
) -> None:
    [problem] = check(spec(task, adapter=adapter))
    assert problem.pointer == f"/task/{field}"
    assert message in problem.message


def test_a15_pairs_are_never_cut_at_their_beginning() -> None:
    source = {"source": "folder", "path": "pairs.jsonl"}
    [problem] = check(spec({}, data={"train": [source], "over_length": "truncate_left"}))
    assert problem.pointer == "/data/over_length"
    assert "use one of error, truncate_right, drop" in problem.message


@pytest.mark.train
def test_a36_prompt_and_answer_are_tokenized_together(small: Small, tmp_path: Path) -> None:
    """Both sides as `sft` would have them: the same prompt, the answer and its end are learned."""
    tokenizer = make_tokenizer()
    launch = small.launch("tokenized", TASK, preferences(8))
    prepare(Launch.model_validate(launch), tmp_path / "pairs", tokenizer)
    found = open_prepared(tmp_path / "pairs")
    for row, given in zip(found.train, preferences(8), strict=True):
        for side in ("chosen", "rejected"):
            ids, labels = row[f"{side}_ids"], row[f"{side}_labels"]
            messages = [*given["prompt"], *given[side]]
            text = tokenizer.apply_chat_template(messages, tokenize=False)
            assert tokenizer.decode(ids) == text
            learned = [label for label in labels if label != -100]
            assert tokenizer.decode(learned) == f"{given[side][0]['content']}<|im_end|>"
            assert [i for i, label in zip(ids, labels, strict=True) if label != -100] == learned
    assert found.report.example["rejected"][0].endswith("<|im_end|>")


@pytest.mark.train
def test_it_learns_what_is_preferred(small: Small, zygote: Zygote) -> None:
    from peft import AutoPeftModelForCausalLM

    run = zygote.run(
        small.launch("preferred", TASK, preferences(80), preferences(12, seed=1), adapter=LORA)
    )
    assert run.code == 0, run.log
    first = run.of("metrics")[0]
    assert first["loss"] == pytest.approx(math.log(2), abs=1e-6)  # the model is its own reference
    evaluation = [m for m in run.of("metrics") if "eval_loss" in m][-1]
    assert evaluation["eval_rewards/accuracies"] == 1.0
    assert evaluation["eval_rewards/margins"] > 0.2  # 0 before training
    verify(run.work / "model")
    assert not (run.work / "model/ref").exists()
    AutoPeftModelForCausalLM.from_pretrained(run.work / "model")
    card = (run.work / "model/README.md").read_text()
    assert "made by direct preference optimization" in card
    assert "| validation pairs that are ranked rightly | 1.0000 |" in card


# ---- the losses, written anew from the papers that the library names ----


def _parts(model: Any, rows: list[Any], sides: tuple[str, str] = ("chosen", "rejected")) -> Any:
    """Per side the likelihoods of each row's answer tokens, token by token."""
    import torch

    found = []
    for side in sides:
        likelihoods = []
        for row in rows:
            ids = torch.tensor([row[f"{side}_ids"]])
            logits = model(input_ids=ids).logits[0, :-1].log_softmax(-1)
            each = logits.gather(-1, ids[0, 1:, None])[:, 0]
            learned = torch.tensor(row[f"{side}_labels"][1:]) != -100
            likelihoods.append(each[learned])
        found.append(likelihoods)
    return found


def _expected(kind: str, policy: Any, reference: Any, beta: float = 0.1) -> Any:
    """The mean loss over pairs."""
    import torch
    from torch.nn.functional import logsigmoid

    (chosen, rejected), (ref_chosen, ref_rejected) = policy, reference
    c = torch.stack([a.sum() - b.sum() for a, b in zip(chosen, ref_chosen, strict=True)])
    r = torch.stack([a.sum() - b.sum() for a, b in zip(rejected, ref_rejected, strict=True)])
    nc = torch.tensor([float(len(a)) for a in chosen])
    nr = torch.tensor([float(len(a)) for a in rejected])
    margin, eps = beta * (c - r), 0.2
    losses: dict[str, Any] = {
        "sigmoid": lambda: -logsigmoid(margin),
        "hinge": lambda: torch.relu(1 - margin),
        "ipo": lambda: (c / nc - r / nr - 1 / (2 * beta)) ** 2,
        "robust": lambda: (
            (-(1 - eps) * logsigmoid(margin) + eps * logsigmoid(-margin)) / (1 - 2 * eps)
        ),
        "exo_pair": lambda: (
            margin.sigmoid() * (logsigmoid(margin) - math.log(1 - eps))
            + (-margin).sigmoid() * (logsigmoid(-margin) - math.log(eps))
        ),
        "nca_pair": lambda: (
            -logsigmoid(beta * c) - 0.5 * logsigmoid(-beta * c) - 0.5 * logsigmoid(-beta * r)
        ),
        "bco_pair": lambda: -logsigmoid(beta * c) - logsigmoid(-beta * r),
        "sppo_hard": lambda: (c - 0.5 / beta) ** 2 + (r + 0.5 / beta) ** 2,
        "apo_zero": lambda: 1 - (beta * c).sigmoid() + (beta * r).sigmoid(),
        "apo_down": lambda: (beta * c).sigmoid() + 1 - margin.sigmoid(),
        "discopop": lambda: (
            -logsigmoid(margin) * (1 - (margin / 0.05).sigmoid())
            + (-margin).exp() * (margin / 0.05).sigmoid()
        ),
        "sft": lambda: -torch.cat(chosen).mean(),
        "sigmoid_norm": lambda: -logsigmoid(beta * (c / nc - r / nr)),
        "aot": lambda: _sorted_loss(chosen, rejected, ref_chosen, ref_rejected, (beta, eps)),
        "aot_unpaired": lambda: _smooth(c.sort()[0] - r.sort()[0], (beta, eps)),
    }
    return losses[kind]().mean()


def _smooth(delta: Any, settings: tuple[float, float]) -> Any:
    from torch.nn.functional import logsigmoid

    beta, eps = settings
    return -logsigmoid(beta * delta) * (1 - eps) - logsigmoid(-beta * delta) * eps


def _sorted_loss(
    chosen: Any, rejected: Any, ref_chosen: Any, ref_rejected: Any, settings: tuple[float, float]
) -> Any:
    import torch

    ours = torch.stack([a.sum() - b.sum() for a, b in zip(chosen, rejected, strict=True)])
    theirs = torch.stack([a.sum() - b.sum() for a, b in zip(ref_chosen, ref_rejected, strict=True)])
    return _smooth(ours.sort()[0] - theirs.sort()[0], settings)


SMOOTHED = ("robust", "exo_pair", "aot", "aot_unpaired")
GROUPS = [
    ["sigmoid"],
    ["hinge", "ipo", "nca_pair", "bco_pair", "sppo_hard"],
    ["apo_zero", "apo_down", "discopop", "sft", "sigmoid_norm"],
    list(SMOOTHED),
]


def _losses(run: Outcome) -> list[float]:
    assert run.code == 0, run.log
    return [run.losses[step] for step in sorted(run.losses)]


def _reference_steps(small: Small, rows: list[Any], kinds: list[str], weights: list[float]) -> Any:
    """Losses of two SGD steps over all rows at once."""
    import torch
    from transformers import AutoModelForCausalLM

    policy, frozen = (
        AutoModelForCausalLM.from_pretrained(small.folder / "calm-dpo").eval() for _ in range(2)
    )
    with torch.no_grad():
        reference = _parts(frozen, rows)
    optimizer = torch.optim.SGD(policy.parameters(), lr=0.1)
    found = []
    for _ in range(2):
        parts = _parts(policy, rows)
        pairs = zip(kinds, weights, strict=True)
        loss = sum(w * _expected(kind, parts, reference) for kind, w in pairs)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found


def _pairs(small: Small, name: str, task: dict[str, Any], training: dict[str, Any]) -> Any:
    """A launch over eight pairs of uneven lengths, and its rows as they are prepared."""
    make_tiny_model(small.folder / "calm-dpo")
    model = {"source": "folder", "name_or_path": str(small.folder / "calm-dpo")}
    launch = small.launch(name, task, preferences(8, seed=4), training=training, model=model)
    folder = small.folder / f"{name}-rows"
    prepare(Launch.model_validate(launch), folder, make_tokenizer())
    return launch, list(open_prepared(folder).train)


@pytest.mark.train
@pytest.mark.parametrize("kinds", GROUPS, ids=lambda kinds: kinds[0])
def test_a6_losses_are_those_of_the_papers(small: Small, zygote: Zygote, kinds: list[str]) -> None:
    """Every loss type, weighted and added up, for two steps of eight pairs."""
    weights = [1.0 + 0.5 * i for i in range(len(kinds))]
    task = TASK | {"loss_type": kinds, "loss_weights": weights}
    if set(kinds) & set(SMOOTHED):
        task |= {"label_smoothing": 0.2}
    training = PLAIN | {"per_device_train_batch_size": 8}
    launch, rows = _pairs(small, f"loss-{kinds[0]}", task, training)
    expected = _reference_steps(small, rows, kinds, weights)
    assert _losses(zygote.run(launch)) == pytest.approx(expected, rel=2e-4, abs=2e-5)


@pytest.mark.train
@pytest.mark.parametrize(
    ("reference", "kinds"),
    [("model", ["sigmoid"]), ("precomputed", ["sigmoid"]), ("model", ["sft", "sigmoid"])],
)
def test_a6_a_step_is_the_mean_over_its_pairs(
    small: Small, zygote: Zygote, reference: str, kinds: list[str]
) -> None:
    """3 + 3 + 2 accumulated pairs are as 8 at once, whatever the reference is made of; `sft` is the
    mean over all chosen tokens of the step."""
    training = PLAIN | {"per_device_train_batch_size": 3, "gradient_accumulation_steps": 3}
    weights = [0.5, 1.0][-len(kinds) :]
    task = TASK | {"reference": reference, "loss_type": kinds, "loss_weights": weights}
    launch, rows = _pairs(small, f"accumulated-{reference}-{kinds[0]}", task, training)
    expected = _reference_steps(small, rows, kinds, weights)
    assert _losses(zygote.run(launch)) == pytest.approx(expected, abs=2e-5)


@pytest.mark.train
def test_a_further_model_may_be_the_reference(small: Small, zygote: Zygote) -> None:
    """The first loss is no longer that of a model compared with itself."""
    other = make_tiny_model(small.folder / "other", seed=7, initializer_range=0.3)
    task = TASK | {"ref_model": {"source": "folder", "name_or_path": str(other)}}
    launch, rows = _pairs(small, "further", task, PLAIN | {"per_device_train_batch_size": 8})
    run = zygote.run(launch)
    import torch
    from transformers import AutoModelForCausalLM

    with torch.no_grad():
        policy = _parts(AutoModelForCausalLM.from_pretrained(small.folder / "calm-dpo"), rows)
        reference = _parts(AutoModelForCausalLM.from_pretrained(other), rows)
        expected = _expected("sigmoid", policy, reference).item()
    assert abs(expected - math.log(2)) > 1e-3
    assert _losses(run)[0] == pytest.approx(expected, abs=2e-5)


@pytest.mark.train
def test_a_following_reference_is_mixed_in(small: Small, zygote: Zygote) -> None:
    """With α = 1 after each step the model is its own reference again: every loss is log 2."""
    task = TASK | {"sync_ref_model": True, "ref_model_mixup_alpha": 1.0, "ref_model_sync_steps": 1}
    training = PLAIN | {"per_device_train_batch_size": 8, "max_steps": 3}
    launch, _ = _pairs(small, "following", task, training)
    assert _losses(zygote.run(launch)) == pytest.approx([math.log(2)] * 3, abs=1e-5)


@pytest.mark.train
def test_the_ledger_tells_of_pairs_that_are_the_same(small: Small, tmp_path: Path) -> None:
    rows = preferences(20)
    rows[3]["rejected"] = rows[3]["chosen"]
    launch = small.launch("same", TASK, rows)
    launch["spec"]["data"] |= {"on_bad_row": "drop", "max_bad_ratio": 0.1}
    report = prepare(Launch.model_validate(launch), tmp_path / "same", make_tokenizer())
    assert (report.rows_in, report.rows_kept, report.rows_dropped) == (20, 19, 1)
    [entry] = [json.loads(line) for line in (tmp_path / "same/ledger.jsonl").open()]
    assert "are the same: there is nothing to prefer" in entry["message"]
    assert "line 4" in entry["place"]

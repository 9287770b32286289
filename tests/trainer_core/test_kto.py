"""Judged answers: what rows become, the losses against plain PyTorch, references, what is kept."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.trainer_core.runs import Outcome, Zygote
from tests.trainer_core.small_tasks import Small, preferences
from tests.trainer_core.small_texts import answers
from tests.trainer_core.test_text_classification import PLAIN
from tests.trainer_core.tiny import make_tiny_model, make_tokenizer
from trainer_core.capabilities import check
from trainer_core.data.formats import to_sample
from trainer_core.data.prepared import open_prepared
from trainer_core.data.rows import BadRow, Conversation, Judged, PlainText
from trainer_core.judged import JudgedMeans, partners
from trainer_core.prepare import prepare
from trainer_core.publish.manifest import verify
from trainer_core.spec import Launch, TrainSpec

TASK = {"type": "kto", "max_length": 128}
LORA = {"type": "lora", "r": 4}
USER, GOOD = (
    {"role": "user", "content": "Where is my order?"},
    {"role": "assistant", "content": "It is on its way."},
)
TALK = Conversation([USER, GOOD], 1)


@pytest.mark.parametrize(
    ("row", "format_", "expected"),
    [
        (
            {"prompt": [USER], "completion": [GOOD], "label": True},
            "unpaired_preference",
            Judged(TALK, True),
        ),
        (
            {"prompt": "2 + 2 =", "completion": " 5", "label": 0},
            "unpaired_preference",
            Judged(PlainText("2 + 2 =", " 5"), False),
        ),
        (
            {"prompt": "2 + 2 =", "completion": " 4", "label": "True"},
            "unpaired_preference",
            Judged(PlainText("2 + 2 =", " 4"), True),
        ),
        ({"messages": [USER, GOOD], "label": False}, "judged_messages", Judged(TALK, False)),
    ],
)
def test_every_spelling_of_a_judged_answer(
    row: dict[str, Any], format_: str, expected: Judged
) -> None:
    assert to_sample(row, format_, None) == expected


def test_a_system_message_stands_before_the_prompt() -> None:
    row = {"messages": [USER, GOOD], "label": True}
    sample = to_sample(row, "judged_messages", "Be kind.")
    assert isinstance(sample, Judged)
    assert isinstance(sample.answered, Conversation)
    assert sample.answered.messages[0] == {"role": "system", "content": "Be kind."}
    assert (sample.answered.prompt_messages, sample.desirable) == (2, True)


@pytest.mark.parametrize(
    ("row", "format_", "message"),
    [
        ({"prompt": "a", "completion": "b"}, "unpaired_preference", "`label` is missing"),
        (
            {"prompt": "a", "completion": "b", "label": 0.5},
            "unpaired_preference",
            "`label` is '0.5': it must be true (desirable) or false",
        ),
        (
            {"prompt": "a", "completion": "b", "label": "good"},
            "unpaired_preference",
            "`label` is 'good'",
        ),
        ({"messages": [USER], "label": True}, "judged_messages", "no answer to judge"),
    ],
)
def test_rows_that_cannot_be_used(row: dict[str, Any], format_: str, message: str) -> None:
    with pytest.raises(BadRow) as bad:
        to_sample(row, format_, None)
    assert message in bad.value.message


@pytest.mark.parametrize(
    ("task", "adapter", "field", "message"),
    [
        ({"reference": "adapter_disabled"}, None, "reference", "there is no adapter"),
        ({"reference": "model"}, LORA, "reference", "use 'adapter_disabled'"),
        ({"sync_ref_model": True}, LORA, "sync_ref_model", "no adapter"),
        ({"ref_model_sync_steps": 3}, None, "sync_ref_model", "set it to true"),
        ({"precompute_ref_batch_size": 3}, None, "precompute_ref_batch_size", "'precomputed'"),
        (
            {"ref_model": {"source": "job", "name_or_path": "job_1"}},
            None,
            "ref_model/source",
            "use 'hub' or 'folder'",
        ),
        ({"chat_template": "chatnl"}, None, "chat_template", "nor a Jinja template"),
    ],
)
def test_what_does_not_go_together(
    task: dict[str, Any], adapter: dict[str, Any] | None, field: str, message: str
) -> None:
    document = {
        "task": {"type": "kto"} | task,
        "model": {"name_or_path": "owner/model"},
        "data": {"train": [{"source": "folder", "path": "answers.jsonl"}]},
        "adapter": adapter,
    }
    [problem] = check(TrainSpec.model_validate(document))
    assert problem.pointer == f"/task/{field}"
    assert message in problem.message


def test_everyone_has_another_partner_once() -> None:
    for count in (2, 3, 50):
        found = partners(count, 42)
        assert sorted(found) == list(range(count))
        assert all(partner != number for number, partner in enumerate(found))
    assert partners(50, 42) != partners(50, 43)


@pytest.mark.train
def test_rewards_are_means_over_their_own_side() -> None:
    """3 desirable in two batches, 1 undesirable: 2·1 + 1·4 over 3, and 7 over 1."""
    import torch

    measured: dict[str, list[float]] = {}
    means = JudgedMeans(measured)
    for labels, values in (
        ([True, True], {"rewards/chosen": 1.0, "kl": 0.5}),
        ([True, False], {"rewards/chosen": 4.0, "rewards/rejected": 7.0, "kl": 1.5}),
    ):
        measured |= {name: [value] for name, value in values.items()}
        means.add({"label": torch.tensor(labels)}, None, 2.0)
    assert means.results(0.0) == pytest.approx(
        {"rewards/chosen": 2.0, "rewards/rejected": 7.0, "kl": 1.0, "rewards/margins": -5.0}
    )


@pytest.mark.train
def test_pairs_become_two_rows(small: Small, tmp_path: Path) -> None:
    tokenizer = make_tokenizer()
    launch = small.launch("split-pairs", TASK, preferences(6))
    prepare(Launch.model_validate(launch), tmp_path / "rows", tokenizer)
    found = open_prepared(tmp_path / "rows")
    assert found.train["label"][:] == [1, 0] * 6
    given = preferences(6)
    for number, row in enumerate(found.train):
        side = "chosen" if row["label"] else "rejected"
        learned = tokenizer.decode([label for label in row["labels"] if label != -100])
        assert learned == f"{given[number // 2][side][0]['content']}<|im_end|>"
    assert (found.report.rows_in, found.report.rows_kept) == (6, 12)


@pytest.mark.train
def test_it_learns_what_is_desirable(small: Small, zygote: Zygote) -> None:
    from peft import AutoPeftModelForCausalLM

    task = TASK | {"desirable_weight": 1.0, "undesirable_weight": 1.5}
    run = zygote.run(
        small.launch("desirable", task, answers(120), answers(20, seed=1), adapter=LORA)
    )
    assert run.code == 0, run.log
    evaluation = [m for m in run.of("metrics") if "eval_loss" in m][-1]
    assert evaluation["eval_rewards/margins"] > 0.2  # 0 before training
    assert evaluation["eval_loss"] < 0.5 * (2 + 1.5) / 3  # as it is where nothing was learned
    verify(run.work / "model")
    AutoPeftModelForCausalLM.from_pretrained(run.work / "model")
    card = (run.work / "model/README.md").read_text()
    assert "made by Kahneman-Tversky optimization" in card
    assert "| validation reward margin |" in card


# ---- the losses, written anew from the paper ----


def _likelihood(model: Any, ids: list[int], labels: list[int]) -> Any:
    import torch

    given = torch.tensor([ids])
    logits = model(input_ids=given).logits[0, :-1].log_softmax(-1)
    each = logits.gather(-1, given[0, 1:, None])[:, 0]
    return each[torch.tensor(labels[1:]) != -100].sum()


def _mismatched(rows: list[Any], seed: int = 42) -> list[tuple[list[int], list[int]]]:
    """Each row's prompt with its partner's answer."""
    found = []
    for row, partner in zip(rows, partners(len(rows), seed), strict=True):
        other = rows[partner]
        begins = [next(i for i, x in enumerate(r["labels"]) if x != -100) for r in (row, other)]
        answer = {name: other[name][begins[1] :] for name in ("input_ids", "labels")}
        ids = row["input_ids"][: begins[0]] + answer["input_ids"]
        found.append((ids, row["labels"][: begins[0]] + answer["labels"]))
    return found


def _loss(policy: Any, frozen: Any, rows: list[Any], task: dict[str, Any]) -> Any:
    """Mean over all rows; β = 0.1."""
    import torch

    def ratios(pairs: list[tuple[list[int], list[int]]]) -> Any:
        own = torch.stack([_likelihood(policy, *pair) for pair in pairs])
        with torch.no_grad():
            reference = torch.stack([_likelihood(frozen, *pair) for pair in pairs])
        return own - reference

    rewards = 0.1 * ratios([(row["input_ids"], row["labels"]) for row in rows])
    desirable = torch.tensor([bool(row["label"]) for row in rows])
    if task.get("loss_type") == "apo_zero_unpaired":
        losses = torch.where(desirable, 1 - rewards.sigmoid(), rewards.sigmoid())
    else:
        divergence = 0.1 * ratios(_mismatched(rows)).mean().detach().clamp(min=0)
        losses = 1 - torch.where(desirable, rewards - divergence, divergence - rewards).sigmoid()
    weights = task.get("desirable_weight", 1.0), task.get("undesirable_weight", 1.0)
    return (torch.where(desirable, *map(torch.tensor, weights)) * losses).mean()


def _losses(run: Outcome) -> list[float]:
    assert run.code == 0, run.log
    return [run.losses[step] for step in sorted(run.losses)]


def _expected(small: Small, rows: list[Any], task: dict[str, Any]) -> list[float]:
    """Losses of three SGD steps over all rows at once."""
    import torch
    from transformers import AutoModelForCausalLM

    folder = small.folder / "calm-kto"
    policy, frozen = (AutoModelForCausalLM.from_pretrained(folder).eval() for _ in range(2))
    optimizer = torch.optim.SGD(policy.parameters(), lr=1.0)
    found = []
    for _ in range(3):
        loss = _loss(policy, frozen, rows, task)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found


CASES: dict[str, dict[str, Any]] = {
    "kto": {"desirable_weight": 0.5, "undesirable_weight": 2.0},
    "apo": {"loss_type": "apo_zero_unpaired"},
    "precomputed": {"reference": "precomputed", "precompute_ref_batch_size": 5},
}


@pytest.mark.train
@pytest.mark.parametrize(
    ("case", "batch", "accumulated"),
    [("kto", 8, 1), ("kto", 3, 3), ("kto", 1, 8), ("apo", 3, 3), ("precomputed", 3, 3)],
)
def test_a6_a_step_is_the_mean_over_its_answers(
    small: Small, zygote: Zygote, case: str, batch: int, accumulated: int
) -> None:
    """3 + 3 + 2 and 1 + … + 1 rows are as 8 at once: the divergence too is that of the step."""
    make_tiny_model(small.folder / "calm-kto")
    training = PLAIN | {
        "learning_rate": 1.0,
        "max_steps": 3,
        "per_device_train_batch_size": batch,
        "gradient_accumulation_steps": accumulated,
    }
    model = {"source": "folder", "name_or_path": str(small.folder / "calm-kto")}
    rows = answers(8, seed=4)
    name = f"kto-{case}-{batch}"
    launch = small.launch(name, TASK | CASES[case], rows, training=training, model=model)
    folder = small.folder / f"{name}-rows"
    prepare(Launch.model_validate(launch), folder, make_tokenizer())
    expected = _expected(small, list(open_prepared(folder).train), CASES[case])
    assert len(set(expected)) == 3
    assert _losses(zygote.run(launch)) == pytest.approx(expected, rel=1e-4, abs=2e-5)


@pytest.mark.train
def test_an_evaluation_does_not_depend_on_its_batches(small: Small, zygote: Zygote) -> None:
    measured = []
    for size in (2, 5):
        training = PLAIN | {"per_device_train_batch_size": 4, "per_device_eval_batch_size": size}
        held = answers(11, seed=2)
        launch = small.launch(f"kto-eval-{size}", TASK, answers(16), held, training=training)
        run = zygote.run(launch)
        assert run.code == 0, run.log
        found = [m for m in run.of("metrics") if "eval_loss" in m][-1]
        measured.append({k: v for k, v in found.items() if k.startswith("eval_")})
    assert measured[0] == pytest.approx(measured[1], abs=1e-5)


@pytest.mark.train
def test_one_row_has_no_partner(small: Small, zygote: Zygote) -> None:
    run = zygote.run(small.launch("kto-alone", TASK, answers(1)))
    assert run.code == 64
    assert "data.train has one row" in run.exit["message"]


@pytest.mark.train
def test_the_reports_rows_are_compared_with_all_rows(small: Small, zygote: Zygote) -> None:
    """The divergence over all validation rows is estimated for the report too: one that is made
    after a resume, without an evaluation before it, says the same."""
    evaluation = {"metrics": ["loss", "reward_margin"]}
    launch = small.launch("reported", TASK, answers(12), answers(6, seed=1), evaluation=evaluation)
    launch["spec"]["training"] |= {"max_steps": 2, "per_device_eval_batch_size": 2}
    whole = zygote.run(launch)
    assert whole.code == 0, whole.log
    told = json.loads((whole.work / "evaluation/report.json").read_text())
    assert told["metrics"]["loss"]["value"] == pytest.approx(told["measured"]["loss"], rel=1e-5)
    launch["attempt_id"] = "reported-again"
    launch["paths"] |= {
        "work": str(small.folder / "reported-again"),
        "resume_from": str(whole.work / "checkpoints/step-00000002"),
    }
    again = zygote.run(launch)
    assert again.code == 0, again.log
    assert json.loads((again.work / "evaluation/report.json").read_text()) == told

"""Group relative policy optimization: prompts, advantages and losses, learning, what is refused."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.trainer_core.runs import Zygote
from tests.trainer_core.small_tasks import Small, questions
from tests.trainer_core.test_text_classification import PLAIN
from tests.trainer_core.tiny import make_tiny_model, make_tokenizer
from trainer_core.capabilities import check
from trainer_core.data.formats import to_sample
from trainer_core.data.prepared import open_prepared
from trainer_core.data.rows import Conversation, PlainText, Prompt
from trainer_core.hardware import Hardware
from trainer_core.prepare import prepare
from trainer_core.publish.manifest import verify
from trainer_core.resolve import resolve
from trainer_core.spec import GrpoTask, Launch, TrainSpec

SHORT = {"type": "length", "max": 4}
TASK = {"type": "grpo", "max_length": 64, "max_completion_length": 8, "rewards": [SHORT]}
LORA = {"type": "lora", "r": 4}


def spec(task: dict[str, Any], **blocks: Any) -> TrainSpec:
    return TrainSpec.model_validate(
        {
            "task": {"type": "grpo"} | task,
            "model": {"name_or_path": "owner/model"},
            "data": {"train": [{"source": "folder", "path": "prompts.jsonl"}]},
        }
        | blocks
    )


def test_a_prompt_is_a_text_or_messages() -> None:
    asked = [{"role": "user", "content": "2 + 2?"}]
    sample = to_sample({"prompt": asked, "answer": 4, "id": 7}, "prompt", "Be brief.")
    system = {"role": "system", "content": "Be brief."}
    assert sample == Prompt(Conversation([system, *asked]), {"answer": 4, "id": 7})
    plain = to_sample({"prompt": "2 + 2 ="}, "prompt", "unused")
    assert plain == Prompt(PlainText("2 + 2 =", ""), {})


@pytest.mark.parametrize(
    ("task", "training", "pointer", "message"),
    [
        (
            {"num_generations": 6},
            {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2},
            "/training/per_device_train_batch_size",
            "4 × 2 answers, which is no multiple of task.num_generations, 6",
        ),
        (
            {"max_length": 64, "max_completion_length": 64},
            {},
            "/task/max_completion_length",
            "leaves no room for a prompt",
        ),
        ({"epsilon_high": 0.1}, {}, "/task/epsilon_high", "below task.epsilon"),
        ({"chat_template": "chatlm"}, {}, "/task/chat_template", "neither 'auto'"),
    ],
)
def test_what_does_not_go_together(
    task: dict[str, Any], training: dict[str, Any], pointer: str, message: str
) -> None:
    [problem] = check(spec(task, training=training))
    assert problem.pointer == pointer
    assert message in problem.message


def test_prompts_are_never_cut() -> None:
    source = {"source": "folder", "path": "prompts.jsonl"}
    [problem] = check(spec({}, data={"train": [source], "over_length": "truncate_right"}))
    assert "use one of error, drop" in problem.message


@pytest.mark.parametrize(
    ("group", "training", "expected"),
    [
        (8, {}, (8, 2)),
        (6, {}, (8, 3)),
        (32, {}, (8, 4)),
        (8, {"gradient_accumulation_steps": 1}, (8, 1)),
        (8, {"per_device_train_batch_size": 3}, (3, 8)),
        (8, {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 3}, (8, 3)),
    ],
)
def test_steps_hold_whole_groups(
    group: int, training: dict[str, int], expected: tuple[int, int]
) -> None:
    """Batch × accumulation on a CPU, where batches are 8 and steps 16 unless it is said."""
    resolved = resolve(spec({"num_generations": group}, training=training), Hardware()).spec
    found = resolved.training
    batch, accumulated = found.per_device_train_batch_size, found.gradient_accumulation_steps
    assert (batch, accumulated) == expected
    assert check(resolved) == []


@pytest.mark.train
def test_prompts_are_rendered_where_the_model_is_to_answer(small: Small, tmp_path: Path) -> None:
    tokenizer = make_tokenizer()
    task = TASK | {"rewards": [{"type": "exact_match"}, {"type": "keyword", "column": "must"}]}
    rows = [{**row, "must": ["a", "b"]} for row in questions(6)]
    launch = small.launch("prompts", task, rows)
    prepare(Launch.model_validate(launch), tmp_path / "prompts", tokenizer)
    found = open_prepared(tmp_path / "prompts")
    assert found.columns == ["prompt", "given_answer", "given_must"]
    for row, given in zip(found.train, rows, strict=True):
        rendered = tokenizer.apply_chat_template(
            given["prompt"], add_generation_prompt=True, return_dict=False
        )
        assert row["prompt"] == rendered
        assert (row["given_answer"], row["given_must"]) == (given["answer"], '["a", "b"]')
    assert found.report.total_tokens == sum(len(row["prompt"]) for row in found.train)


@pytest.mark.train
def test_a_row_without_what_a_reward_reads_is_a_bad_row(small: Small, tmp_path: Path) -> None:
    rows = questions(30)
    del rows[3]["answer"]
    rows[5]["answer"] = None
    rows[7]["prompt"] = [{"role": "user", "content": "long " * 200}]
    launch = small.launch("lacking", TASK | {"rewards": [{"type": "exact_match"}]}, rows)
    policies = {"on_bad_row": "drop", "max_bad_ratio": 0.1, "over_length": "drop"}
    launch["spec"]["data"] |= policies
    report = prepare(Launch.model_validate(launch), tmp_path / "lacking", make_tokenizer())
    assert (report.rows_in, report.rows_kept, report.rows_dropped) == (30, 27, 3)
    told = [json.loads(line) for line in (tmp_path / "lacking/ledger.jsonl").open()]
    assert "the column `answer` is missing, but a reward reads it" in told[0]["message"]
    assert "`answer` is null" in told[1]["message"]
    assert report.max_length == 56  # what the answer's 8 tokens leave of 64


# ---- advantages and losses, written anew ----


def _recorded(monkeypatch: pytest.MonkeyPatch, launch: dict[str, Any]) -> tuple[list[Any], Any]:
    """Run a launch here, and keep each micro-batch that it trained on."""
    from trainer_core.groups import GroupLoop
    from trainer_core.runner import run_launch

    batches: list[Any] = []
    original = GroupLoop._prepare_inputs

    def record(self: Any, batch: Any) -> Any:
        inputs = original(self, batch)
        if "completion_ids" in inputs and self.model.training:
            batches.append({n: v.clone() for n, v in inputs.items() if v is not None})
        return inputs

    monkeypatch.setattr(GroupLoop, "_prepare_inputs", record)
    work = Path(launch["paths"]["work"])
    assert run_launch(Launch.model_validate(launch), {}) == 0, (work / "exit.json").read_text()
    events = [json.loads(line) for line in (work / "events.jsonl").open()]
    losses = [e["data"]["loss"] for e in events if e["type"] == "metrics" and "loss" in e["data"]]
    return batches, losses


def _likelihoods(model: Any, batch: Any) -> Any:
    """Log-probability of each token of the answers."""
    import torch

    ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], 1)
    mask = torch.cat([batch["prompt_mask"], batch["completion_mask"]], 1)
    logits = model(input_ids=ids, attention_mask=mask).logits[:, :-1].log_softmax(-1)
    each = logits.gather(-1, ids[:, 1:, None])[..., 0]
    return each[:, -batch["completion_ids"].shape[1] :]


def _step_loss(model: Any, frozen: Any, batches: list[Any], beta: float) -> Any:
    """−A for each token, and β times the KL's estimate, both times the ratio (1 on fresh answers).

    The ratio makes the KL's gradient that of the true divergence (DeepSeek-V3.2).
    """
    import torch

    total, tokens = 0.0, sum(int(batch["completion_mask"].sum()) for batch in batches)
    for batch in batches:
        ours = _likelihoods(model, batch)
        with torch.no_grad():
            theirs = _likelihoods(frozen, batch)
        ratio = (ours - ours.detach()).exp()
        kl = (theirs - ours).exp() - (theirs - ours) - 1
        each = ratio * (beta * kl - batch["advantages"][:, None])
        total = total + (each * batch["completion_mask"]).sum()
    return total / tokens


def _check_advantages(batches: list[Any]) -> None:
    """Each group of four answers to one prompt: its rewards, less their mean, over their spread."""
    import torch

    tokenizer = make_tokenizer()
    groups: dict[tuple[int, ...], list[tuple[float, float]]] = {}
    for batch in batches:
        for i, ids in enumerate(batch["completion_ids"]):
            answer = ids[batch["completion_mask"][i] == 1].tolist()
            text = tokenizer.decode(answer, skip_special_tokens=True)
            short = 1.0 if len(answer) <= 4 else max(0.0, 1 - (len(answer) - 4) / 4)
            reward = float(any(vowel in text for vowel in "aeiou")) + 0.5 * short
            asked = batch["prompt_ids"][i][batch["prompt_mask"][i] == 1].tolist()
            told = batch["advantages"][i].item()
            groups.setdefault(tuple(asked), []).append((reward, told))
    assert [len(group) for group in groups.values()] == [4, 4]
    for group in groups.values():
        rewards = torch.tensor([reward for reward, _ in group])
        expected = (rewards - rewards.mean()) / (rewards.std() + 1e-4)
        assert [advantage for _, advantage in group] == pytest.approx(expected.tolist(), abs=1e-4)


def _plain_steps(base: Path, batches: list[Any]) -> tuple[list[float], dict[str, Any]]:
    """Losses and final weights of the same steps with SGD, two micro-batches each."""
    import torch
    from transformers import AutoModelForCausalLM

    policy, frozen = (AutoModelForCausalLM.from_pretrained(base).eval() for _ in range(2))
    optimizer = torch.optim.SGD(policy.parameters(), lr=1.0)
    losses = []
    for start in range(0, len(batches), 2):
        loss = _step_loss(policy, frozen, batches[start : start + 2], 0.5)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, dict(policy.named_parameters())


@pytest.mark.train
@pytest.mark.parametrize("adapter", [None, LORA], ids=["full", "lora"])
def test_a6_advantages_and_losses_are_those_of_the_paper(
    small: Small, monkeypatch: pytest.MonkeyPatch, adapter: dict[str, Any] | None
) -> None:
    """Three steps of 2 × 4 answers to two prompts: rewards, groups, losses, weights."""
    import torch
    from transformers import AutoModelForCausalLM

    base = make_tiny_model(small.folder / "calm-grpo")
    training = PLAIN | {
        "per_device_train_batch_size": 4,
        "gradient_accumulation_steps": 2,
        "max_steps": 3,
        "learning_rate": 1.0,
    }
    task = TASK | {
        "num_generations": 4,
        "beta": 0.5,
        "rewards": [{"type": "regex", "pattern": "[aeiou]"}, SHORT | {"weight": 0.5}],
    }
    model = {"source": "folder", "name_or_path": str(base)}
    name = f"paper-{'full' if adapter is None else 'lora'}"
    rows = list({str(row["prompt"]): row for row in questions(40)}.values())  # each once
    launch = small.launch(name, task, rows, training=training, model=model)
    launch["spec"]["adapter"] = adapter
    batches, losses = _recorded(monkeypatch, launch)
    assert len(batches) == 6

    for pair in (batches[i : i + 2] for i in (0, 2, 4)):
        _check_advantages(pair)
    assert losses[0] == pytest.approx(0, abs=1e-6)  # a group's advantages add up to nothing
    assert abs(losses[-1]) > 1e-4  # the model has left its reference
    if adapter is not None:
        return

    expected, weights = _plain_steps(base, batches)
    assert losses == pytest.approx(expected, abs=2e-5)
    trained = AutoModelForCausalLM.from_pretrained(Path(launch["paths"]["work"]) / "model")
    for parameter, weight in trained.named_parameters():
        torch.testing.assert_close(weight, weights[parameter], atol=1e-5, rtol=1e-4)


@pytest.mark.train
def test_the_reward_rises(small: Small, zygote: Zygote) -> None:
    """A random model says a vowel now and then; 25 steps later nearly always, under its adapter."""
    from peft import AutoPeftModelForCausalLM

    task = TASK | {
        "max_completion_length": 4,
        "num_generations": 16,
        "num_generations_eval": 4,
        "rewards": [{"type": "regex", "pattern": "[aeiou]"}],
    }
    training = {"per_device_train_batch_size": 32, "max_steps": 25, "learning_rate": 0.05}
    adapter = LORA | {"modules_to_save": ["lm_head"]}
    launch = small.launch(
        "vowels", task, questions(60), questions(8, seed=1), training=training, adapter=adapter
    )
    launch["spec"]["evaluation"] = {"strategy": "steps", "steps": 25}
    launch["spec"]["publish"] = {"merge": "never"}
    run = zygote.run(launch)
    assert run.code == 0, run.log
    first, last = run.of("metrics")[0]["reward"], run.of("metrics")[-2]["reward"]
    assert first < 0.8
    evaluation = next(m for m in run.of("metrics") if "eval_reward" in m)
    assert min(last, evaluation["eval_reward"]) > 0.95
    assert evaluation["eval_rewards/regex/mean"] == evaluation["eval_reward"]
    verify(run.work / "model")
    AutoPeftModelForCausalLM.from_pretrained(run.work / "model")
    card = (run.work / "model/README.md").read_text()
    assert "made by group relative policy optimization" in card
    assert "| validation reward |" in card


@pytest.mark.train
def test_too_few_prompts_for_a_step_are_refused(small: Small, zygote: Zygote) -> None:
    training = {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 4}
    run = zygote.run(small.launch("few", TASK, questions(3), training=training))
    assert run.code == 64
    assert run.exit["reason"] == "invalid_data"
    assert "a step takes 32 answers to 4 prompts, and there are 3" in run.exit["message"]


@pytest.mark.train
def test_a_reward_model_judges(small: Small, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own tokenizer, prompt and answer joined: the mean is what the library says alone."""
    import torch
    from transformers import AutoTokenizer, BertConfig, BertForSequenceClassification

    judge = small.folder / "judge"
    tokenizer = AutoTokenizer.from_pretrained(small.bert)
    torch.manual_seed(3)
    config = BertConfig.from_pretrained(small.bert, num_labels=1, initializer_range=1.0)
    model = BertForSequenceClassification(config).eval()
    model.save_pretrained(judge)
    tokenizer.save_pretrained(judge)
    reward = {
        "type": "reward_model",
        "model": {"source": "folder", "name_or_path": str(judge)},
    }
    training = PLAIN | {"per_device_train_batch_size": 4, "max_steps": 1}
    task = TASK | {"num_generations": 4, "rewards": [reward], "scale_rewards": "none"}
    rows = [{"prompt": row["prompt"][0]["content"]} for row in questions(4)]
    launch = small.launch("judged", task, rows, training=training)
    [batch], _ = _recorded(monkeypatch, launch)
    said = make_tokenizer().batch_decode(batch["completion_ids"], skip_special_tokens=True)
    prompt = make_tokenizer().decode(batch["prompt_ids"][0])
    with torch.no_grad():
        scores = [
            model(**tokenizer(prompt + text, return_tensors="pt")).logits[0, 0] for text in said
        ]
    expected = torch.stack(scores) - torch.stack(scores).mean()
    assert batch["advantages"].tolist() == pytest.approx(expected.tolist(), abs=1e-4)
    work = Path(launch["paths"]["work"])
    events = [json.loads(line) for line in (work / "events.jsonl").open()]
    told = next(e["data"] for e in events if "rewards/reward_model/mean" in e["data"])
    assert told["reward"] == pytest.approx(torch.stack(scores).mean().item(), abs=1e-4)


def test_every_setting_reaches_the_library() -> None:
    """A34: nothing of the block is read by nobody."""
    from trainer_core.tasks import grpo

    elsewhere = {
        "type", "rewards", "max_length", "beta", "eos_token", "chat_template", "default_system",
    }  # fmt: skip
    assert GrpoTask.model_fields.keys() - set(grpo._PASSED_ON) == elsewhere


@pytest.mark.train
def test_the_report_draws_the_evaluations_answers(small: Small, zygote: Zygote) -> None:
    """The same seed before both: the report's reward is the evaluation's."""
    launch = small.launch(
        "drawn", TASK | {"num_generations": 4}, questions(8), questions(6, seed=1)
    )
    launch["spec"]["training"] |= {"max_steps": 1}
    launch["spec"]["evaluation"] = {"metrics": ["reward"]}
    run = zygote.run(launch)
    assert run.code == 0, run.log
    told = json.loads((run.work / "evaluation/report.json").read_text())
    assert told["metrics"]["reward"]["value"] == pytest.approx(told["measured"]["reward"])

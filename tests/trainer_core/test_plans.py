"""Plans and previews: what is planned is what is run, and what is shown is what is learned."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.trainer_core.equivalence.variants import PLAIN, VARIANTS, conversations
from tests.trainer_core.runs import REPOSITORY, Zygote
from tests.trainer_core.small_tasks import Small, opinions
from tests.trainer_core.tiny import make_tiny_model
from trainer_core.data.prepared import open_prepared
from trainer_core.data.sink import percentile
from trainer_core.errors import InvalidData, InvalidSpec
from trainer_core.hardware import Hardware
from trainer_core.memory import Shape
from trainer_core.plans.command import lines, marked
from trainer_core.plans.plan import plan, preview
from trainer_core.plans.probe import _shortened
from trainer_core.plans.results import Part, Sample, Token
from trainer_core.resolve import resolve
from trainer_core.spec import Launch

pytestmark = pytest.mark.train


def launch_of(small: Small, name: str, variant: str, **changes: Any) -> Launch:
    task, rows, given = VARIANTS[variant]
    return Launch.model_validate(small.launch(name, task, rows, rows[:6], **(given | changes)))


def prepared_rows(launch: Launch) -> list[dict[str, Any]]:
    [folder] = (Path(launch.paths.work) / "prepared").iterdir()
    return list(open_prepared(folder).train)


def masks(sample: Sample) -> list[list[bool]]:
    return [[token.trained for token in part.tokens] for part in sample.parts]


def ids(sample: Sample) -> list[list[int]]:
    return [[token.id for token in part.tokens] for part in sample.parts]


def learned(labels: list[int]) -> list[bool]:
    return [label != -100 for label in labels]


# ---- previews: `VARIANTS` has a first variant of every task type ----


@pytest.mark.parametrize("name", PLAIN)
def test_a_preview_shows_what_the_prepared_rows_hold(name: str, small: Small) -> None:
    """Token for token, and each mask is where the labels are not −100."""
    launch = launch_of(small, f"shown-{name}", name)
    samples = preview(launch, {}, 3)
    assert [sample.number for sample in samples] == [1, 2, 3]
    for sample, row in zip(samples, prepared_rows(launch), strict=False):
        columns = [
            column
            for column in row
            if column in ("input_ids", "chosen_ids", "rejected_ids", "prompt")
            or column.startswith("text_")
        ]
        assert ids(sample) == [row[column] for column in columns]
        labels = [
            row[column]
            for column in row
            if column.endswith("labels") and isinstance(row[column], list)
        ]
        wanted = [learned(each) for each in labels] or [[False] * len(row[c]) for c in columns]
        assert masks(sample) == wanted


def test_a_preview_says_what_is_learned_of_a_whole_sample(small: Small) -> None:
    """The label as the rows call it, both sides of a preference, what rewards compare with."""
    [text] = preview(launch_of(small, "label", "text_classification"), {}, 1)
    assert text.label == VARIANTS["text_classification"][1][0]["label"]
    [image] = preview(launch_of(small, "image", "image_classification"), {}, 1)
    assert image.label in {row["label"] for row in VARIANTS["image_classification"][1]}
    assert image.parts == []
    assert "pixels" in image.images[0]
    [pair] = preview(launch_of(small, "sides", "dpo_lora"), {}, 1)
    assert [part.name for part in pair.parts] == ["chosen", "rejected"]
    row = VARIANTS["dpo_lora"][1][0]
    assert row["rejected"][0]["content"] in marked(pair.parts[1])
    [texts] = preview(launch_of(small, "texts", "sentence_transformer"), {}, 1)
    assert [part.name for part in texts.parts] == ["anchor", "positive"]
    [answer] = preview(launch_of(small, "judged", "kto_lora"), {}, 1)
    assert answer.label == ("desirable" if VARIANTS["kto_lora"][1][0]["label"] else "undesirable")
    task = {"type": "grpo", "max_length": 64, "num_generations": 4}
    rows = VARIANTS["grpo"][1]
    asked = Launch.model_validate(small.launch("asked", task, rows))
    [prompt] = preview(asked, {}, 1)
    assert prompt.given == {"answer": rows[0]["answer"]}
    assert rows[0]["prompt"][0]["content"] in marked(prompt.parts[0])


def test_samples_of_packed_rows_are_shown_one_by_one(small: Small) -> None:
    """Together they are the packed rows, and each begins where positions begin again."""
    launch = launch_of(small, "packed", "sft_packed_lora_kl")
    samples = preview(launch, {}, 1000)
    rows = prepared_rows(launch)
    assert len(samples) == 60 > len(rows)
    assert [i for s in samples for i in ids(s)[0]] == [i for row in rows for i in row["input_ids"]]
    flags = [flag for row in rows for flag in learned(row["labels"])]
    assert [flag for s in samples for flag in masks(s)[0]] == flags


def test_trained_text_is_marked_and_characters_are_whole(small: Small) -> None:
    """Korean characters are several tokens of this tokenizer: none of them is torn apart."""
    said = "내일 도착합니다."
    asked = [{"role": "user", "content": "언제?"}, {"role": "assistant", "content": said}]
    rows = [{"messages": asked}, {"messages": asked}]
    launch = Launch.model_validate(small.launch("marked", {"type": "sft"}, rows))
    [sample] = preview(launch, {}, 1)
    shown = marked(sample.parts[0])
    assert f"⟦{said}<|im_end|>" in shown
    assert "언제?" in shown.partition("⟦")[0]
    assert "\ufffd" not in shown


def test_marks_stand_around_runs_of_trained_tokens() -> None:
    cells = [("a", False), ("b", True), ("c", True), ("d", False)]
    tokens = [Token(id=n, text=text, trained=on) for n, (text, on) in enumerate(cells)]
    assert marked(Part(name="text", tokens=tokens)) == "a⟦bc⟧d"


# ---- plans: `equivalence/test_resume.py` compares every variant's with its run ----


def test_a_plan_for_two_processes_is_what_they_run(small: Small, zygote: Zygote) -> None:
    """34 rows of 40 (6 validate) in batches of 4 shared by 2: 5 rounds, accumulated by 2: 3."""
    task, rows, _ = VARIANTS["text_classification"]
    changes = {
        "distributed": {"strategy": "ddp", "processes": 2},
        "training": {"gradient_accumulation_steps": 2},
    }
    document = small.launch("two", task, rows[:34], rows[34:], **changes)
    planned = plan(Launch.model_validate(document), {}).steps
    assert planned is not None
    assert (planned.per_epoch, planned.total, planned.global_batch) == (3, 6, 16)
    run = zygote.run(document)
    assert run.code == 0, run.log
    assert max(run.losses) == planned.total


@pytest.mark.parametrize(
    ("training", "per_epoch", "total"),
    [
        ({"num_train_epochs": 2.5}, 10, 25),
        ({"num_train_epochs": 0.01}, 10, 1),
        ({"max_steps": 7}, 10, 7),
        ({"per_device_train_batch_size": 3, "gradient_accumulation_steps": 4}, 4, 8),
    ],
)
def test_steps_follow_the_trainers_rule(
    training: dict[str, Any], per_epoch: int, total: int, small: Small
) -> None:
    """Of 40 rows in batches of 4, 2 epochs; a last step may have fewer rows."""
    document = small.launch(
        "counted", {"type": "text_classification"}, opinions(40), training=training
    )
    steps = plan(Launch.model_validate(document), {}).steps
    assert steps is not None
    assert (steps.per_epoch, steps.total) == (per_epoch, total)


def test_a_plan_counts_rows_and_tokens(small: Small) -> None:
    launch = launch_of(small, "counts", "sft")
    found = plan(launch, {}, samples=1)
    rows = prepared_rows(launch)
    lengths = sorted(len(row["input_ids"]) for row in rows)
    trained = sum(sum(learned(row["labels"])) for row in rows)
    assert (found.rows.read, found.rows.kept, found.rows.train) == (46, 46, 40)
    assert (found.rows.validation, found.rows.dropped, found.rows.packed) == (6, 0, False)
    assert (found.tokens.total, found.tokens.trained) == (sum(lengths), trained)
    assert found.tokens.trained_share == pytest.approx(trained / sum(lengths))
    assert (found.tokens.p50, found.tokens.p95, found.tokens.max) == (
        lengths[19],  # half of 40 are at most as long, 38 of 40
        lengths[37],
        lengths[-1],
    )
    assert sum(found.tokens.histogram.values()) == 40
    said = "\n".join(lines(found))
    for word in ("steps", "rows", "tokens", "memory", "disk", "⟦"):
        assert word in said


def test_a_packed_plan_says_how_full_its_rows_are(small: Small) -> None:
    launch = launch_of(small, "full", "sft_packed_lora_kl")
    found = plan(launch, {})
    rows = prepared_rows(launch)
    tokens = sum(len(row["input_ids"]) for row in rows)
    assert found.rows.packed
    assert (found.rows.train, found.rows.train_samples) == (len(rows), 60)
    assert found.rows.fill == pytest.approx(tokens / (128 * len(rows)))
    assert "samples" in "\n".join(lines(found))


def test_an_evaluation_is_planned_without_steps(small: Small) -> None:
    """What nothing trains needs no gradients, no optimizer and no checkpoint."""
    task = {"type": "evaluation", "of": {"type": "sft"}}
    document = small.launch("measured", task, conversations(8))
    document["spec"]["model"]["name_or_path"] = str(small.llama)
    for block in ("training", "checkpoint"):
        del document["spec"][block]
    found = plan(Launch.model_validate(document), {}, samples=2)
    assert found.steps is None
    assert (found.memory.gradients_gb, found.memory.optimizer_gb) == (0, 0)
    assert found.disk.checkpoint == found.disk.model == 0
    assert len(found.samples) == 2
    assert "nothing is trained" in "\n".join(lines(found))


def test_prepared_data_is_used_by_the_run_that_follows(small: Small, zygote: Zygote) -> None:
    """The same folder: nothing is prepared twice, and disk is what a checkpoint really takes."""
    task, rows, _ = VARIANTS["text_classification"]
    document = small.launch("again", task, rows)
    found = plan(Launch.model_validate(document), {})
    [folder] = (small.folder / "again" / "prepared").iterdir()
    before = (folder / "manifest.json").stat().st_mtime_ns
    run = zygote.run(document)
    assert run.code == 0, run.log
    assert [*folder.parent.iterdir()] == [folder]
    assert (folder / "manifest.json").stat().st_mtime_ns == before
    weights = found.disk.checkpoint
    # Beside weights and states: trainer state, scheduler, random state, their archives' headers.
    real = run.of("checkpoint")[-1]["bytes"]
    assert weights < real < weights + 100_000
    assert found.disk.checkpoints == 3
    assert found.disk.total >= 3 * weights + found.disk.model


def test_what_cannot_be_planned_is_said_and_leaves_nothing(small: Small) -> None:
    launch = launch_of(small, "refused", "sft")
    with pytest.raises(InvalidSpec, match="0 samples cannot be shown: ask for 1 or more"):
        plan(launch, {}, samples=0)
    with pytest.raises(InvalidSpec, match="-1 samples cannot be shown"):
        preview(launch, {}, -1)
    source = launch.spec.data.train[0].model_copy(update={"path": str(small.folder / "none")})
    data = launch.spec.data.model_copy(update={"train": [source]})
    missing = launch.model_copy(update={"spec": launch.spec.model_copy(update={"data": data})})
    with pytest.raises(InvalidData, match=r"data\.train\[0\]"):
        plan(missing, {})
    bad = small.launch("bad", {"type": "sft"}, [{"messages": []}, {"messages": "x"}])
    with pytest.raises(InvalidData, match="messages"):
        plan(Launch.model_validate(bad), {})
    left = [path for name in ("refused", "bad") for path in (small.folder / name).rglob("*")]
    assert [path for path in left if path.is_file()] == []
    assert [path for path in left if "tmp" in path.name] == []


def test_too_few_prompts_for_a_step_are_told_before_the_run(small: Small) -> None:
    task = {"type": "grpo", "max_length": 64, "num_generations": 4}
    training = {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 4}
    rows = VARIANTS["grpo"][1][:3]
    launch = Launch.model_validate(small.launch("few", task, rows, training=training))
    with pytest.raises(InvalidData, match="32 answers to 8 prompts, and there are 3"):
        plan(launch, {})


def test_percentiles_are_lengths_that_are_there() -> None:
    """Nearest rank: the smallest value that at least this share of all does not exceed."""
    assert [percentile([5, 1, 4, 2, 3], share) for share in (0.0, 0.2, 0.5, 0.95)] == [1, 1, 3, 5]


def test_a_shape_is_read_from_a_configuration() -> None:
    read = {"hidden_size": 576, "num_hidden_layers": 30, "vocab_size": 49152}
    assert Shape.read(read, 134_515_008) == Shape(134_515_008, 576, 30, 49152)
    nested = Shape.read({"text_config": read, "vision_config": {"hidden_size": 7}}, 10)
    assert nested == Shape(10, 576, 30, 49152)
    assert Shape.read({"n_embd": 4, "n_layer": 2, "vocab_size": 3}, None) == Shape(
        12 * 16 * 2 + 12, 4, 2, 3
    )
    assert Shape.read({"model_type": "vit"}, 10) is None


# ---- the command, and the probe ----


def _plan(path: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "trainer_core", "plan", str(path), *options],
        cwd=REPOSITORY,
        env=os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def test_wrong_wishes_end_with_code_64(small: Small) -> None:
    document = launch_of(small, "wishes", "sft").model_dump(mode="json", exclude_unset=True)
    path = small.folder / "wishes.json"
    path.write_text(json.dumps(document))
    done = _plan(path, "--samples", "0")
    assert done.returncode == 64
    assert "0 samples cannot be shown" in done.stderr
    path.write_text(json.dumps(document["spec"] | {"trainig": {}}))
    done = _plan(path)
    assert done.returncode == 64
    assert "did you mean `training`?" in done.stderr
    assert done.stdout == ""


@pytest.mark.slow
def test_the_formula_is_near_what_a_probe_measures(small: Small, tmp_path: Path) -> None:
    """A Llama of 23 million parameters, all of them trained, in batches of 4.

    Predicted within a factor of 1.5: weights, gradients and states are exact, activations a rule
    of thumb. The tiny models of the other tests cannot be compared: what torch itself takes when
    it first computes (tens of MB) is more than all of theirs.
    """
    model = make_tiny_model(tmp_path / "model", hidden_size=512, layers=8)
    document = small.launch("probed", {"type": "sft"}, conversations(16))["spec"]
    document["model"]["name_or_path"] = str(model)
    path = tmp_path / "probed.json"
    path.write_text(json.dumps(document))
    done = _plan(path, "--probe", "--json", "--samples", "1", "--out", str(tmp_path / "out"))
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    memory = said["memory"]
    assert memory["probe"]["failed"] is None
    assert 1 / 1.5 < memory["probe"]["factor"] < 1.5, memory
    exact = 4e-9 * memory["parameters"]  # fp32
    assert memory["weights_gb"] == memory["gradients_gb"] == pytest.approx(exact)
    assert memory["optimizer_gb"] == pytest.approx(2 * exact)
    assert said["samples"][0]["parts"][0]["tokens"][0].keys() == {"id", "text", "trained"}
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"prepared"}


ADALORA = {"type": "adalora", "init_r": 4, "target_r": 2, "tinit": 4, "tfinal": 4}


def test_a_probe_of_adalora_makes_its_two_steps(
    small: Small, zygote: Zygote, tmp_path: Path
) -> None:
    """The schedule of the whole run, 4 + 4 steps at its ends, has no place in two: without it both
    are made with every rank, which is where the most memory is needed."""
    launch = launch_of(small, "ranks", "sft", adapter=ADALORA, training={"max_steps": 12})
    launch = launch.model_copy(update={"spec": resolve(launch.spec, Hardware()).spec})
    plan(launch, {})
    [folder] = (Path(launch.paths.work) / "prepared").iterdir()
    short = _shortened(launch, open_prepared(folder), tmp_path)
    run = zygote.run(short.model_dump(mode="json"))
    assert run.code == 0, run.log
    assert run.losses.keys() == {1, 2}


@pytest.mark.slow
def test_adalora_is_measured(small: Small) -> None:
    launch = launch_of(small, "measured ranks", "sft", adapter=ADALORA, training={"max_steps": 12})
    found = plan(launch, {}, probe=True).memory.probe
    assert found is not None
    assert found.failed is None
    assert found.peak_gb


@pytest.mark.slow
def test_a_probe_that_fails_says_why(small: Small) -> None:
    """What only a model that is loaded tells: no parameter fits this pattern."""
    document = launch_of(small, "unfit", "sft").model_dump(mode="json", exclude_unset=True)
    document["spec"]["adapter"] = {"type": "freeze", "trainable_patterns": ["nothing.*"]}
    found = plan(Launch.model_validate(document), {}, probe=True)
    assert found.memory.probe is not None
    assert found.memory.probe.peak_gb is None
    assert "nothing.*" in str(found.memory.probe.failed)
    assert "not measured" in "\n".join(lines(found))


def test_steps_of_rows_grouped_by_label_are_the_librarys(small: Small) -> None:
    """30 rows of one label and 10 of another: pairs in turns until one label is left."""
    rows = [{"text": f"a {n}", "label": "many"} for n in range(30)]
    rows += [{"text": f"b {n}", "label": "few"} for n in range(10)]
    task = {"type": "sentence_transformer", "loss": "batch_all_triplet"}
    launch = Launch.model_validate(small.launch("grouped", task, rows))
    steps = plan(launch, {}).steps
    assert steps is not None
    assert steps.per_epoch == 5  # 2 × (5 + 5) pairs in batches of 4
    alone = Launch.model_validate(small.launch("one label", task, rows[:30]))
    with pytest.raises(InvalidData, match="cannot be grouped by label"):
        plan(alone, {})

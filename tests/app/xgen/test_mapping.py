"""XGen's form becomes a job's spec: no field is lost, and what cannot work is refused by name."""

from pathlib import Path
from typing import Any

import pytest

from app.errors import InvalidPayload
from app.jobs.lifecycle import Status
from app.jobs.spec import JobSpec
from app.settings import Settings
from app.xgen.examples import GEMMA, QWEN
from app.xgen.form import TrainForm
from app.xgen.mapping import map_form
from app.xgen.mapping.draft import Draft, Surroundings
from app.xgen.words import WORD_OF
from tests.app.xgen.walk import LEAST, REFUSED, SAME_SERVICE, WALK
from trainer_core.capabilities import check
from trainer_core.hardware import Hardware

SETTINGS = Settings(
    s3_endpoint="http://minio:9000", mlflow_url="http://mlflow:5000", data_folders=[Path("/data")]
)
FIELDS = list(TrainForm.model_fields)
REQUIRED = ("model_name_or_path", "train_data")


def mapped(form: dict[str, Any], gpus: int = 0) -> Draft:
    """The draft of a form whose spec is one that a trainer takes."""
    hardware = Hardware(gpus=gpus, bf16=True)
    around = Surroundings(SETTINGS, hardware, lambda value: f"secret-{len(value)}-{value[:3]}")
    draft = map_form(TrainForm.model_validate(form), around)
    assert check(JobSpec.model_validate(draft.spec).train_spec(), hardware) == []
    return draft


def codes(draft: Draft) -> set[str]:
    return {warning.code for warning in draft.warnings}


def refusal(form: dict[str, Any], gpus: int = 0) -> tuple[str, str]:
    """(field, message) of the first problem."""
    with pytest.raises(InvalidPayload) as raised:
        mapped(form, gpus)
    first = raised.value.problems[0]
    return first.pointer.removeprefix("/"), first.message


def _embedding(loss: str, **columns: str) -> dict[str, Any]:
    named = {f"dataset_{which}_column": column for which, column in columns.items()}
    return {"training_method": "sentence_transformer", "st_loss_func": loss, **named}


def test_the_walk_knows_all_116_fields() -> None:
    assert len(FIELDS) == 116
    assert set(WALK) == set(FIELDS)


@pytest.mark.parametrize("name", FIELDS)
def test_every_field_is_followed_or_answered_with_a_warning(name: str) -> None:
    step = WALK[name]
    form = LEAST | step.beside | {name: step.value}
    assert TrainForm.model_validate(form).is_set(name) or name in REQUIRED
    if name in REFUSED:
        assert refusal(form)[0] == name
        return
    without = {key: value for key, value in form.items() if key != name}
    without |= {key: LEAST[key] for key in REQUIRED if key == name}
    if name in SAME_SERVICE:
        assert mapped(form).spec == mapped(without).spec
        assert refusal(form | {name: "http://169.254.169.254/"})[0] == name
        return
    before = _draft_or_none(without, step.gpus)
    after = mapped(form, step.gpus)
    followed = before is None or before.spec != after.spec
    assert followed or f"xgen_{name}" in codes(after)


def _draft_or_none(form: dict[str, Any], gpus: int) -> Draft | None:
    """None where the form cannot do without the field that was left out."""
    try:
        return mapped(form, gpus)
    except InvalidPayload:
        return None


@pytest.mark.parametrize("name", FIELDS)
@pytest.mark.parametrize("empty", ["", None], ids=["empty", "null"])
def test_nothing_is_the_default(name: str, empty: str | None) -> None:
    if name not in REQUIRED:
        least = mapped(LEAST)
        given = mapped(LEAST | {name: empty})
        assert (given.spec, given.warnings) == (least.spec, least.warnings)


def test_a_form_that_only_names_model_and_data_warns_of_what_it_cannot_have() -> None:
    assert codes(mapped(LEAST)) == {"xgen_bf16", "xgen_push_to_hub"}


def test_all_defaults_said_mean_what_they_mean_unsaid() -> None:
    """The page sends every field; secrets are empty."""
    said = {n: f.default for n, f in TrainForm.model_fields.items() if n not in REQUIRED}
    said = {name: "" if "SecretStr" in repr(value) else value for name, value in said.items()}
    spec = mapped(LEAST).spec
    spec["task"].pop("loss", None)
    full = mapped(LEAST | said)
    assert full.spec == spec
    assert codes(full) == {"xgen_bf16", "xgen_push_to_hub", "xgen_save_total_limit"}


def test_the_page_s_samples() -> None:
    gemma, qwen = mapped(GEMMA), mapped(QWEN)
    assert gemma.spec["task"] == {"type": "sft", "max_length": 1024}
    assert gemma.spec["data"]["train"] == [
        {
            "source": "hub",
            "path": "org/instructions",
            "token": {"secret": "secret-19-hf_"},
            "format": "query_response",
            "columns": {"query": "instruction", "response": "output"},
            "split": "train",
        }
    ]
    training = gemma.spec["training"]
    assert (training["learning_rate"], training["num_train_epochs"]) == (1e-5, 3.0)
    assert training["per_device_train_batch_size"] * training["gradient_accumulation_steps"] == 32
    assert gemma.spec["publish"]["hub"]["repo_id"] == "org/gemma-shop"
    assert gemma.spec["publish"]["registry"] is False
    assert gemma.spec["labels"] == {"xgen/run": "job_20261130_120000"}
    usual = {"xgen_use_deepspeed", "xgen_language_model_class", "xgen_bf16"}
    assert codes(gemma) == usual
    assert codes(qwen) == usual | {"xgen_attn_implementation"}
    assert codes(mapped(QWEN, gpus=1)) == (usual | {"xgen_attn_implementation"}) - {"xgen_bf16"}


@pytest.mark.parametrize(
    ("form", "field", "said"),
    [
        ({"bf16": True, "fp16": True}, "bf16", "both true"),
        ({"training_method": "sft", "use_dpotrainer": True}, "use_dpotrainer", "'sft'"),
        ({"training_method": "cls", "use_sfttrainer": True}, "use_sfttrainer", "'cls'"),
        ({"use_sfttrainer": True, "use_dpotrainer": True}, "use_dpotrainer", "'sft'"),
        ({"use_ppotrainer": True}, "use_ppotrainer", "no PPO"),
        ({"use_peft": True, "peft_type": "prefix"}, "peft_type", "use lora, adalora"),
        ({"use_peft": True, "peft_type": "llama-adapter"}, "peft_type", "2023"),
        ({"ds_jsonpath": "/etc/passwd"}, "ds_jsonpath", "POLAR_DATA_FOLDERS"),
        ({"ds_jsonpath": "/data/../etc/passwd"}, "ds_jsonpath", "POLAR_DATA_FOLDERS"),
        ({"minio_url": "http://minio:9001"}, "minio_url", "POLAR_XGEN_MINIO_URLS"),
        ({"minio_url": "http://minio:9000@evil"}, "minio_url", "not this service's"),
        ({"minio_url": "me:word@minio:9000"}, "minio_url", "'…@minio:9000'"),
        ({"minio_url": "http://me:wo/rd@minio:9000"}, "minio_url", "'…@minio:9000'"),
        ({"mlflow_url": "file:///etc"}, "mlflow_url", "POLAR_XGEN_MLFLOW_URLS"),
        ({"train_data_dir": "part"}, "train_data_dir", "hub"),
        ({"training_method": "dpo"}, "dataset_minor_column", "rejected"),
        ({"hub_model_id": "m", "hugging_face_token": "hf_0123456"}, "hub_model_id", "no owner"),
        ({"training_method": "grpo", "number_gpu": 2}, "number_gpu", "one process"),
        ({"st_loss_func": "NoLoss"}, "st_loss_func", "CoSENTLoss"),
        (_embedding("CosineSimilarityLoss"), "dataset_last_column", "needs a score"),
        (_embedding("CosineSimilarityLoss", last="s", minor="n"), "dataset_minor_column", "'n'"),
        (_embedding("MultipleNegativesRankingLoss", last="s"), "dataset_last_column", "'s'"),
        (_embedding("TripletLoss"), "dataset_minor_column", "needs a third text"),
        ({"st_evaluation": "NoEvaluator"}, "st_evaluation", "TripletEvaluator"),
        (
            {"model_load_method": "minio", "minio_access_key": "0123456789"},
            "minio_secret_key",
            "give both",
        ),
        ({"do_train": False}, "do_train", "evaluation"),
        ({"mlflow_run_id": "x" * 251}, "mlflow_run_id", "250"),
    ],
)
def test_what_cannot_work_is_refused_by_the_form_s_name(
    form: dict[str, Any], field: str, said: str
) -> None:
    name, message = refusal(LEAST | form)
    assert (name, said in message) == (field, True), message
    assert field in message


def test_every_problem_is_told_at_once() -> None:
    with pytest.raises(InvalidPayload) as raised:
        mapped(LEAST | {"use_ppotrainer": True, "do_train": False, "ds_jsonpath": "/x"})
    assert {p.pointer for p in raised.value.problems} == {
        "/use_ppotrainer",
        "/do_train",
        "/ds_jsonpath",
    }


@pytest.mark.parametrize(
    ("form", "task"),
    [
        ({}, "text_classification"),
        ({"st_pooling_mode": "cls"}, "sentence_transformer"),
        ({"dataset_last_column": "score"}, "sentence_transformer"),
        ({"training_method": "mlm"}, "mlm"),
        ({"training_method": "clm"}, "clm"),
        ({"use_sfttrainer": True}, "sft"),
        ({"use_grpotrainer": True}, "grpo"),
        ({"training_method": "dpo", "dataset_minor_column": "r"}, "dpo"),
        (
            {"training_method": "dpo", "dataset_minor_column": "r", "dpo_loss_type": "kto_pair"},
            "kto",
        ),
    ],
)
def test_the_task(form: dict[str, Any], task: str) -> None:
    assert mapped(LEAST | form).spec["task"]["type"] == task


@pytest.mark.parametrize(
    ("loss", "score", "format_", "columns"),
    [
        ("CosineSimilarityLoss", "s", "sentence_pair", ["sentence1", "sentence2", "score"]),
        ("SoftmaxLoss", "s", "sentence_pair", ["sentence1", "sentence2", "label"]),
        ("MultipleNegativesRankingLoss", "", "anchor_positive", ["anchor", "positive"]),
        ("BatchAllTripletLoss", "", "classification", ["text", "label"]),
    ],
)
def test_columns_of_sentence_transformers(
    loss: str, score: str, format_: str, columns: list[str]
) -> None:
    form = {"training_method": "sentence_transformer", "st_loss_func": loss}
    [source] = mapped(LEAST | form | {"dataset_last_column": score}).spec["data"]["train"]
    assert (source["format"], list(source["columns"])) == (format_, columns)


def test_the_kl_of_sft_is_weighted_by_the_beta_of_the_form() -> None:
    form = {"training_method": "sft", "use_custom_kl_sfttrainer": True, "dpo_beta": 0.3}
    assert mapped(LEAST | form).spec["task"]["kl_beta"] == 0.3


def test_several_gpus_are_processes_of_one_host() -> None:
    form = {"training_method": "sft", "number_gpu": 2, "use_deepspeed": True}
    draft = mapped(LEAST | form, gpus=2)
    assert draft.spec["distributed"] == {"strategy": "ddp", "processes": 2}
    assert draft.spec["compute"] == {"gpus": {"count": 2}}
    [said] = [w.message for w in draft.warnings if w.code == "xgen_use_deepspeed"]
    assert "each holds all weights and the whole state of the optimizer" in said


def test_a_path_is_a_folder_of_the_hosts() -> None:
    spec = mapped(
        LEAST | {"model_name_or_path": "/models/m", "train_data": "/data/d", "train_data_dir": "p"}
    ).spec
    assert spec["model"]["source"] == "folder"
    assert (spec["data"]["train"][0]["source"], spec["data"]["train"][0]["path"]) == (
        "folder",
        "/data/d/p",
    )


def test_secrets_that_nothing_asks_for_are_not_kept() -> None:
    form = {
        "model_name_or_path": "/m",
        "train_data": "/d",
        "hugging_face_token": "hf_0123456789",
        "minio_access_key": "access-key",
        "minio_secret_key": "secret-key",
    }
    draft = mapped(form)
    assert draft.secrets == {}
    said = {"xgen_hugging_face_token", "xgen_minio_access_key", "xgen_minio_secret_key"}
    assert codes(draft) >= said
    assert "hf_0123456789" not in str(draft.spec) + str(draft.warnings)


def test_fields_of_a_newer_page_are_named() -> None:
    draft = mapped(LEAST | {"lora_plus_ratio": 16})
    assert "xgen_lora_plus_ratio" in codes(draft)


def test_every_state_has_a_word_that_the_pages_understand() -> None:
    words = {status.value: word for status, word in WORD_OF.items()}
    assert words == {
        "queued": "pending",
        "provisioning": "pending",
        "paused": "pending",
        "running": "running",
        "finalizing": "running",
        "succeeded": "completed",
        "failed": "failed",
        "cancelled": "failed",
    }
    assert set(WORD_OF) == set(Status)

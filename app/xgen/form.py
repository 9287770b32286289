"""The form that XGen's training page posts: its 116 fields with their defaults.

A description says what becomes of the field; `docs/xgen.md` is written from them.
"""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field, SecretStr, model_validator

from trainer_core.spec import Strict

_Text = Annotated[str, Field(max_length=1024)]
_Secret = Annotated[SecretStr, Field(max_length=4096)]


def _whole(given: Any) -> Any:
    """A whole number that a program wrote with a decimal point."""
    return int(given) if isinstance(given, float) and given.is_integer() else given


_Whole = Annotated[int, BeforeValidator(_whole)]


def _optional(schema: dict[str, Any]) -> None:
    """Say in the schema that null and the empty text stand for a field's default."""
    required = schema.get("required", ())
    for name, field in schema["properties"].items():
        if name in required:
            continue
        about = {key: field.pop(key) for key in ("default", "description") if key in field}
        title = field.pop("title", name)
        empty = [{"type": "null"}, {"const": ""}]
        schema["properties"][name] = {"anyOf": [dict(field), *empty], "title": title, **about}
        field.clear()


class _Block(Strict):
    model_config = ConfigDict(extra="allow", json_schema_extra=_optional)

    @model_validator(mode="before")
    @classmethod
    def _without_what_is_not_set(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        return {name: value for name, value in given.items() if value not in (None, "")}


class _Common(_Block):
    number_gpu: _Whole = Field(
        1,
        ge=1,
        le=64,
        description="`compute.gpus.count`, and as many processes (`distributed`). 1: one GPU where "
        "there is one, else the CPU.",
    )
    project_name: _Text = Field(
        "test-project", description="`tracking.mlflow.experiment`, and the job's name."
    )
    training_method: Literal["cls", "mlm", "clm", "sft", "dpo", "grpo", "sentence_transformer"] = (
        Field(
            "cls",
            description="`task.type`. `cls` with a value of an `st_…` field, or with a third or "
            "fourth column, is `sentence_transformer`, else `text_classification`. Left out, the "
            "one `use_…trainer` that is true decides.",
        )
    )
    model_load_method: Literal["huggingface", "minio"] = Field(
        "huggingface", description="`model.source`: `hub` (a path that begins with `/`: `folder`) "
        "or `s3`.",
    )  # fmt: skip
    dataset_load_method: Literal["huggingface", "minio"] = Field(
        "huggingface", description="`data.…source`, likewise."
    )
    hugging_face_user_id: _Text = Field(
        "", description="Owner of the repository where `hub_model_id` names none."
    )
    hugging_face_token: _Secret = Field(
        SecretStr(""), description="Kept as a secret, which model, data and `publish.hub` name."
    )
    mlflow_url: _Text = Field("", description="Checked: this service's own, or one it is known as.")
    mlflow_run_id: _Text = Field(
        "test", description="Finds the job too; label `xgen/run`, and the MLflow run's name."
    )
    minio_url: _Text = Field("", description="Checked: this service's own, or one it is known as.")
    minio_access_key: _Secret = Field(
        SecretStr(""),
        description="With the other one kept as a secret, which sources in `s3` name.",
    )
    minio_secret_key: _Secret = Field(SecretStr(""), description="See `minio_access_key`.")


class _DeepSpeed(_Block):
    use_deepspeed: bool = Field(
        False,
        description="Warning: one process has nothing to share out; more of them train as `ddp`, "
        "each with a whole optimizer.",
    )
    ds_jsonpath: _Text = Field(
        "", description="Checked: below `POLAR_DATA_FOLDERS`. Warning: it is not read."
    )
    ds_preset: Literal["zero-2", "zero-3"] = Field("zero-2", description="Warning.")
    ds_stage2_bucket_size: float = Field(5e8, gt=0, description="Warning.")
    ds_stage3_sub_group_size: float = Field(1e9, gt=0, description="Warning.")
    ds_stage3_max_live_parameters: float = Field(1e6, gt=0, description="Warning.")
    ds_stage3_max_reuse_distance: float = Field(1e6, gt=0, description="Warning.")


class _Model(_Block):
    model_name_or_path: _Text = Field(min_length=1, description="`model.name_or_path`.")
    language_model_class: _Text = Field(
        "none", description="Warning: the model's own configuration and template decide."
    )
    ref_model_path: _Text = Field("", description="`task.ref_model` of `dpo` and `kto`.")
    model_subfolder: _Text = Field("", description="`model.subfolder`.")
    config_name: _Text = Field("", description="Warning: the model's own is used.")
    tokenizer_name: _Text = Field("", description="Warning: the model's own is used.")
    cache_dir: _Text = Field("", description="Warning: hosts have a cache of their own.")


class _Data(_Block):
    train_data: _Text = Field(min_length=1, description="`data.train[0].path`.")
    train_data_dir: _Text = Field(
        "", description="Below `train_data` in a store or folder; refused for data of a hub."
    )
    train_data_split: _Text = Field("train", description="`data.train[0].split` of a hub.")
    test_data: _Text = Field(
        "", description="`data.validation[0].path`; empty: `train_test_split_ratio` is held out."
    )
    test_data_dir: _Text = Field("", description="As `train_data_dir`.")
    test_data_split: _Text = Field("test", description="`data.validation[0].split` of a hub.")
    dataset_main_column: _Text = Field(
        "instruction", description="`columns`: prompt, text or anchor (see below)."
    )
    dataset_sub_column: _Text = Field(
        "output", description="`columns`: answer, chosen, label or positive."
    )
    dataset_minor_column: _Text = Field("", description="`columns`: rejected or negative.")
    dataset_last_column: _Text = Field("", description="`columns`: score.")


class _Push(_Block):
    push_to_hub: bool = Field(
        True, description="`publish.hub`, once `hub_model_id` and `hugging_face_token` are there."
    )
    push_to_minio: bool = Field(True, description="`publish.registry`.")
    minio_model_load_bucket: _Text = Field("models", description="Bucket of `model.name_or_path`.")
    minio_model_save_bucket: _Text = Field(
        "models", description="Warning: models lie in the service's own bucket."
    )
    minio_data_load_bucket: _Text = Field("data", description="Bucket of `data.…path`.")


class _Trainer(_Block):
    use_sfttrainer: bool = Field(False, description="Must fit `training_method`.")
    use_dpotrainer: bool = Field(False, description="Must fit `training_method`.")
    use_ppotrainer: bool = Field(False, description="Refused: there is no PPO here.")
    use_grpotrainer: bool = Field(False, description="Must fit `training_method`.")
    use_custom_kl_sfttrainer: bool = Field(
        False, description="`task.kl_beta` of `sft`, as large as `dpo_beta`."
    )
    mlm_probability: float = Field(0.2, gt=0, lt=1, description="`task.mlm_probability` of `mlm`.")
    num_labels: _Whole = Field(
        17, ge=1, le=1_000_000, description="Warning: the labels of the rows are counted."
    )


class _Dpo(_Block):
    dpo_loss_type: Literal["sigmoid", "hinge", "ipo", "kto_pair"] = Field(
        "sigmoid", description="`task.loss_type` of `dpo`; `kto_pair`: task `kto` on the pairs."
    )
    dpo_beta: float = Field(0.1, gt=0, le=1000, description="`task.beta`.")
    dpo_label_smoothing: float = Field(
        0.0, ge=0, lt=1, description="Warning: none of these losses is smoothed."
    )


class _SentenceTransformer(_Block):
    st_pooling_mode: _Text = Field("mean", description="`task.pooling_mode`.")
    st_dense_feature: _Whole = Field(
        0, ge=0, le=65_536, description="Warning: no dense layer is added."
    )
    st_loss_func: _Text = Field(
        "CosineSimilarityLoss",
        description="`task.loss`. Left out, and without a score: `auto`, which goes by the rows.",
    )
    st_evaluation: _Text = Field("", description="`task.evaluator`.")
    st_guide_model: _Text = Field(
        "nlpai-lab/KURE-v1", description="`task.guide` of the guided losses."
    )
    st_cache_minibatch: _Whole = Field(
        16, ge=1, le=65_536, description="`task.loss_args.mini_batch_size` of the cached losses."
    )
    st_triplet_margin: float = Field(
        5.0, ge=0, le=1_000_000, description="`task.loss_args.margin` of `TripletLoss`."
    )
    st_cache_gist_temperature: float = Field(
        0.01, gt=0, le=1000, description="`task.loss_args.temperature` of the guided losses."
    )
    st_use_adaptivelayerloss: bool = Field(False, description="`task.adaptive_layer`.")
    st_adaptivelayerloss_n_layer: _Whole = Field(
        4, ge=-1, le=1000, description="`task.adaptive_layer.n_layers_per_step`."
    )


class _Other(_Block):
    use_attn_implementation: bool = Field(True, description="False: `attn_implementation` auto.")
    attn_implementation: Literal["eager", "flash_attention_2", "sdpa"] = Field(
        "eager",
        description="`model.attn_implementation`; `flash_attention_2` becomes `auto` with a "
        "warning, because hosts do not tell whether they have its kernels.",
    )
    is_resume: bool = Field(
        False, description="Warning: lost runs go on by themselves, others by a retry."
    )
    model_commit_msg: _Text = Field(
        "large-try", description="MLflow tag `xgen.model_commit_msg`; commits say what they hold."
    )
    train_test_split_ratio: float = Field(
        0.05, ge=0, lt=1, description="`data.validation.split_ratio`; 0: nothing is held out."
    )
    data_filtering: bool = Field(
        True, description="`data.on_bad_row`: true drops rows that cannot be read."
    )
    tokenizer_max_len: _Whole = Field(
        256,
        ge=8,
        le=131_072,
        description="`task.max_length`; what is longer is cut (prompts of `grpo`: dropped).",
    )
    output_dir: _Text = Field("", description="Warning: each attempt has a folder of its own.")
    overwrite_output_dir: bool = Field(True, description="Warning: nothing is ever overwritten.")


class _Optimizer(_Block):
    use_stableadamw: bool = Field(
        True, description="`training.optim: stable_adamw`; left out, another `optim` decides."
    )
    optim: Literal["adamw_torch", "adamw_torch_fused", "stable_adamw", "sgd", "adafactor"] = Field(
        "adamw_torch", description="`training.optim`."
    )
    adam_beta1: float = Field(0.9, ge=0, lt=1, description="`training.adam_beta1`.")
    adam_beta2: float = Field(0.99, ge=0, lt=1, description="`training.adam_beta2`.")
    adam_epsilon: float = Field(1e-7, gt=0, le=1, description="`training.adam_epsilon`.")


class _Saves(_Block):
    save_strategy: Literal["steps", "epoch", "no"] = Field(
        "steps", description="`checkpoint.save_strategy`."
    )
    save_steps: _Whole = Field(1000, ge=1, le=10**9, description="`checkpoint.save_steps`.")
    eval_strategy: Literal["steps", "epoch", "no"] = Field(
        "steps", description="`evaluation.strategy`."
    )
    eval_steps: _Whole = Field(1000, ge=1, le=10**9, description="`evaluation.steps`.")
    save_total_limit: _Whole = Field(
        1, ge=1, le=1000, description="`checkpoint.save_total_limit`, at least 2."
    )
    hub_model_id: _Text = Field("", description="`publish.hub.repo_id`.")
    hub_strategy: Literal["checkpoint", "end", "every_save"] = Field(
        "checkpoint", description="`publish.hub.strategy`."
    )


class _Loop(_Block):
    logging_steps: _Whole = Field(5, ge=1, le=10**9, description="`training.logging_steps`.")
    max_grad_norm: float = Field(1.0, ge=0, description="`training.max_grad_norm`.")
    per_device_train_batch_size: _Whole = Field(
        4, ge=1, le=65_536, description="`training.per_device_train_batch_size`."
    )
    per_device_eval_batch_size: _Whole = Field(
        4, ge=1, le=65_536, description="`training.per_device_eval_batch_size`."
    )
    gradient_accumulation_steps: _Whole = Field(
        16, ge=1, le=65_536, description="`training.gradient_accumulation_steps`."
    )
    ddp_find_unused_parameters: bool = Field(True, description="Warning: it is found out.")
    learning_rate: float = Field(2e-5, gt=0, le=10, description="`training.learning_rate`.")
    gradient_checkpointing: bool = Field(True, description="`training.gradient_checkpointing`.")
    num_train_epochs: float = Field(
        1.0, gt=0, le=10_000, description="`training.num_train_epochs`."
    )
    warmup_ratio: float = Field(0.1, ge=0, lt=1, description="`training.warmup_steps`, a share.")
    weight_decay: float = Field(0.01, ge=0, le=1000, description="`training.weight_decay`.")
    do_train: bool = Field(True, description="False is refused: `POST /jobs` measures models.")
    do_eval: bool = Field(True, description="False: no validation rows.")
    bf16: bool = Field(
        True, description="`precision: bf16`; `auto` with a warning where no GPU has it."
    )
    fp16: bool = Field(
        False, description="`precision: fp16`; `auto` with a warning without a GPU. Both: refused."
    )


class _Peft(_Block):
    use_peft: bool = Field(False, description="`adapter`.")
    peft_type: _Text = Field(
        "lora",
        description="`adapter.type`: lora, adalora, ia3, vera, ln (layernorm). Others are refused.",
    )
    lora_target_modules: _Text = Field(
        "", description="`adapter.target_modules` of lora and adalora; empty: all linear layers."
    )
    lora_r: _Whole = Field(8, ge=1, le=1024, description="`adapter.r`.")
    lora_alpha: float = Field(16, gt=0, le=65_536, description="`adapter.lora_alpha`.")
    lora_dropout: float = Field(0.05, ge=0, lt=1, description="`adapter.lora_dropout`.")
    lora_modules_to_save: _Text = Field(
        "", description="`adapter.modules_to_save` of lora and adalora."
    )
    adalora_init_r: _Whole = Field(12, ge=2, le=1024, description="`adapter.init_r`.")
    adalora_target_r: _Whole = Field(4, ge=1, le=1023, description="`adapter.target_r`.")
    adalora_tinit: _Whole = Field(50, ge=0, le=10**9, description="`adapter.tinit`.")
    adalora_tfinal: _Whole = Field(100, ge=0, le=10**9, description="`adapter.tfinal`.")
    adalora_delta_t: _Whole = Field(10, ge=1, le=10**9, description="`adapter.delta_t`.")
    adalora_orth_reg_weight: float = Field(
        0.5, ge=0, le=1000, description="`adapter.orth_reg_weight`."
    )
    ia3_target_modules: _Text = Field("", description="`adapter.target_modules` of ia3.")
    feedforward_modules: _Text = Field("", description="`adapter.feedforward_modules` of ia3.")
    adapter_layers: _Whole = Field(30, ge=1, description="Warning: of LLaMA-Adapter alone.")
    adapter_len: _Whole = Field(16, ge=1, description="Warning: of LLaMA-Adapter alone.")
    vera_target_modules: _Text = Field("", description="`adapter.target_modules` of vera.")
    ln_target_modules: _Text = Field("", description="`adapter.target_modules` of ln.")


class TrainForm(
    _Peft,
    _Loop,
    _Saves,
    _Optimizer,
    _Other,
    _SentenceTransformer,
    _Dpo,
    _Trainer,
    _Push,
    _Data,
    _Model,
    _DeepSpeed,
    _Common,
):
    """XGen's training form. An empty text and null mean that a field is not set.

    Fields that it does not have are answered with a warning, so that a newer page works.
    """

    def is_set(self, name: str) -> bool:
        """Whether the caller gave this field a value that is not its default."""
        default: Any = type(self).model_fields[name].default
        return name in self.model_fields_set and bool(getattr(self, name) != default)

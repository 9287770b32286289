"""The fields of all blocks but `task`: a part of the table that `test_every_field.py` goes
through."""

from typing import Any

from tests.trainer_core.fields import (
    EVERY_TASK,
    VALIDATES,
    Blocks,
    Field,
    OfTheService,
    OneChoice,
    Place,
)

_BEST = {"checkpoint": {"load_best_model_at_end": True}, **VALIDATES}
_STOPS = {"checkpoint": {"early_stopping": {}}, **VALIDATES}
_HUB = {"model": {"source": "hub", "name_or_path": "owner/model"}}
_HUB_ROWS = {"data": {"train": [{"source": "hub", "path": "owner/rows"}]}}
_TWO_SOURCES = {
    "data": {"train": [{}, {"source": "folder", "path": "<other rows>", "weight": 1.0}]}
}
_LORA = {"adapter": {"type": "lora"}}
_QUESTIONS = {**VALIDATES, "evaluation": {"generation": {"max_new_tokens": 4, "num_samples": 2}}}
_DRAWS = {
    **VALIDATES,
    "evaluation": {"generation": {"max_new_tokens": 8, "num_samples": 2, "do_sample": True}},
}
_MASKS = {"model": {"name_or_path": "<masked>"}}
_ONCE = ("sft",)
_ONCE_EACH = ("sft", "evaluation")
_READ = ("sft", "image_classification", "evaluation")
"""Rows of files, images in archives, and those that a model is measured on."""
_MEASURED = ("evaluation",)
_WITHOUT_TOKENS = ("image_classification", *_MEASURED)
_WITHOUT_ANSWERS = (
    "kto", "grpo", "clm", "mlm", "text_classification", "image_classification",
    "sentence_transformer", "multimodal",
)  # fmt: skip


def _setting(value: Any, **more: Any) -> Field:
    """Of the loop: all tasks hand it on alike, and none that measures has it."""
    return Field(value, refused_by=_MEASURED, on=more.pop("on", _ONCE), **more)


_TRAINING: dict[str, Place] = {
    "learning_rate": _setting(0.5),
    "num_train_epochs": _setting(7.0),
    "max_steps": _setting(5),
    "per_device_train_batch_size": _setting(
        2, of={"grpo": Field(8)}, on=("sft", "grpo", "kto", "sentence_transformer")
    ),
    "per_device_eval_batch_size": Field(
        3,
        VALIDATES,
        of={"grpo": Field(8, VALIDATES), "evaluation": Field(3, by="measuring")},
        on=("sft", "grpo", "kto", "evaluation"),
    ),
    "gradient_accumulation_steps": _setting(
        3,
        of={"sentence_transformer": Field(3, stops=True)},
        on=("sft", "grpo", "sentence_transformer"),
    ),
    "optim": _setting("adamw_torch"),
    "adam_beta1": _setting(0.5),
    "adam_beta2": _setting(0.5),
    "adam_epsilon": _setting(1e-3),
    "lr_scheduler_type": _setting("constant_with_warmup"),
    "warmup_steps": _setting(3.0),
    "weight_decay": _setting(0.3),
    "max_grad_norm": _setting(0.3),
    "seed": Field(7, VALIDATES, on=_ONCE_EACH),
    "data_seed": Field(7, VALIDATES, on=_ONCE_EACH),
    "gradient_checkpointing": _setting(True),
    "neftune_noise_alpha": Field(
        5.0, refused_by=(*_WITHOUT_TOKENS, "sentence_transformer"), on=_ONCE
    ),
    "logging_steps": _setting(3),
}
_MODEL: dict[str, Place] = {
    "source": Field("hub", along={"name_or_path": "owner/model"}, by="location"),
    "name_or_path": Field("<another model>"),
    "revision": Field("v1", _HUB, by="location"),
    "subfolder": Field("inner"),
    "dtype": Field("bf16"),
    "attn_implementation": Field("eager"),
    "add_tokens": Field(["<new>"], refused_by=_WITHOUT_TOKENS),
    "add_special_tokens": Field(["<new>"], refused_by=_WITHOUT_TOKENS),
    "token.secret": Field("hub", _HUB, by="location"),
}
_CHAT = {"data": {"train": [{"format": "messages"}]}}
_SOURCE: dict[str, Place] = {
    "source": Field("hub", along={"path": "owner/rows"}, by="source"),
    "path": Field("<other rows>", on=_READ),
    "subset": Field("ko", _HUB_ROWS, by="source"),
    "split": Field("test", _HUB_ROWS, by="source"),
    "revision": Field("v1", _HUB_ROWS, by="source"),
    "token.secret": Field("hub", _HUB_ROWS, by="source"),
    "format": Field(
        "text",
        of={
            **dict.fromkeys(("sft", "evaluation"), Field("text", _CHAT, rows="both")),
            **dict.fromkeys(("clm", "mlm", "sentence_transformer"), Field("messages")),
        },
        refused_by=tuple(task for task in EVERY_TASK if task not in ("sft", "evaluation")),
    ),
    "columns": Field("<renamed>", rows="renamed", on=_READ),
    "weight": Field(3.0, _TWO_SOURCES, on=_ONCE),
    "num_samples": Field(8, on=_READ),
    "fraction": Field(0.5, on=_READ),
    "seed": Field(7, {"data": {"train": [{"num_samples": 8}]}}, on=_READ),
}
_ONE_STEP = {
    "max_steps": 1,
    "per_device_train_batch_size": 1,
    "gradient_accumulation_steps": 1,
}
_DROPPED = {"data": {"over_length": "drop"}}
_CUT = {"data": {"over_length": "truncate_right"}}
_DATA: dict[str, Place] = {
    "stopping_strategy": Field("all_exhausted", _TWO_SOURCES, on=_ONCE),
    "streaming": Field(
        True,
        of={
            "sft": Field(
                True, {"training": _ONE_STEP, "task": {"packing": True, "max_length": 128}}
            ),
            "clm": Field(True, {"training": _ONE_STEP}),
        },
        refused_by=tuple(task for task in EVERY_TASK if task not in ("sft", "clm")),
    ),
    "validation.split_ratio": Field(0.5, VALIDATES, on=_READ),
    "over_length": Field(
        "drop",
        {"task": {"max_length": 33}, **_CUT},
        rows="long",
        of={
            **dict.fromkeys(
                ("text_classification", "sentence_transformer"),
                Field("drop", {"task": {"max_length": 7}, **_CUT}, "long"),
            ),
            "clm": Field("drop", {"task": {"max_length": 16, "packing": "none"}, **_CUT}, "long"),
            "mlm": Field(
                "drop", {"task": {"max_length": 16, "line_by_line": True}, **_CUT}, "long"
            ),
            "evaluation": Field(
                "drop", {"task": {"of": {"type": "sft", "max_length": 33}}, **_CUT}, "long"
            ),
            "multimodal": Field("error", {"task": {"max_length": 37}, **_DROPPED}, stops=True),
            "grpo": Field("error", {"task": {"max_length": 29}, **_DROPPED}, stops=True),
            "image_classification": Field("drop"),
        },
        refused_by=("image_classification",),
    ),
    "on_bad_row": Field(
        "error",
        {"data": {"on_bad_row": "drop", "max_bad_ratio": 0.5}},
        rows="bad",
        along={"max_bad_ratio": 0.05},  # another one has no effect then
        stops=True,
        on=_READ,
    ),
    "max_bad_ratio": Field(
        0.01,
        {"data": {"on_bad_row": "drop", "max_bad_ratio": 0.5}},
        rows="bad",
        stops=True,
        on=_READ,
    ),
}
_EVALUATION: dict[str, Place] = {
    "strategy": _setting("no", needs=VALIDATES),
    "steps": _setting(3, needs=VALIDATES),
    "max_samples": Field(2, VALIDATES, on=_READ),
    "compare_base": _setting(True, needs=VALIDATES),
    "metrics": Field(["loss"], VALIDATES, by="report", on=_ONCE_EACH),
    **{
        f"generation.{name}": Field(
            value,
            _DRAWS if name in ("temperature", "top_p") else _QUESTIONS,
            by="report",
            refused_by=_WITHOUT_ANSWERS,
        )
        for name, value in {
            "num_samples": 1,
            "max_new_tokens": 9,
            "do_sample": True,
            "temperature": 0.01,
            "top_p": 0.01,
        }.items()
    },
    "backend": OneChoice(),
}
_CHECKPOINT: dict[str, Place] = {
    "save_strategy": _setting("epoch", needs={"checkpoint": {"save_steps": "auto"}}),
    "save_steps": _setting(3),
    "save_total_limit": _setting(5),
    "resume": _setting("never", by="resume"),
    "load_best_model_at_end": _setting(True, needs=VALIDATES),
    "metric_for_best_model": _setting(
        "mean_token_accuracy",
        needs=_BEST,
        of={
            "dpo": Field("rewards/margins", _BEST),
            "kto": Field("kl", _BEST),
            "grpo": Field("reward", _BEST),
            "mlm": Field("perplexity", _BEST),
            "text_classification": Field("accuracy", _BEST),
            "image_classification": Field("accuracy", _BEST),
            "sentence_transformer": Field("cosine_accuracy", _BEST),
        },
    ),
    "greater_is_better": _setting(True, needs=_BEST),
    "early_stopping.patience": _setting(9, needs=_STOPS),
    "early_stopping.threshold": _setting(0.5, needs=_STOPS),
}
_GATE = {**VALIDATES, "publish": {"gate": {"metric": "loss", "threshold": 9.0}}}
_PUBLISHED = ("sft", "image_classification", "sentence_transformer")
_MERGED = {**_LORA, "publish": {"merge": "always"}}
_PUBLISH: dict[str, Place] = {
    "registry": OfTheService("app.attempts.store", "publish,registry"),
    "hub.repo_id": OfTheService("worker.pusher", "wish.repo_id"),
    "hub.private": OfTheService("worker.pusher", "wish.private"),
    "hub.revision": OfTheService("worker.pusher", "wish.revision"),
    "hub.strategy": OfTheService("worker.pusher", "wish.strategy"),
    "hub.token.secret": OfTheService("worker.pusher", "wish.token.secret"),
    "name": _setting("mine", by="publication", on=_PUBLISHED),
    "merge": _setting("always", needs=_LORA, by="publication", on=_PUBLISHED),
    "max_merge_drift": _setting(1e-12, needs=_MERGED, by="publication"),
    "gate.metric": Field(
        "mean_token_accuracy",
        _GATE,
        by="publication",
        refused_by=tuple(t for t in EVERY_TASK if t not in ("sft", "clm", "multimodal")),
        on=_ONCE,
    ),
    "gate.threshold": _setting(1.0, needs=_GATE, by="publication"),
    "gate.min_improvement": _setting(5.0, needs=_GATE, by="publication"),
}


_REFUSED_ADAPTERS = {
    "adalora": ("dpo", "kto", *_MEASURED),
    "vera": ("multimodal", *_MEASURED),
    "freeze": ("multimodal", *_MEASURED),
}
_NAMED = Field("ia3", along={"target_modules": ["q_proj"]})
_TARGETS = {"ia3": {"image_classification": _NAMED, "multimodal": _NAMED}}
"""PEFT knows none of these models' modules by itself."""


def _adapter(kind: str, values: Blocks, **needs: Blocks) -> dict[str, Place]:
    """The kind of an adapter, in every task, and its fields."""
    required = {"trainable_patterns": ["*layer*.0.*"]} if kind == "freeze" else {}
    path = f"adapter[{kind}]"
    refused_by = _REFUSED_ADAPTERS.get(kind, _MEASURED)
    masked = Field(kind, _MASKS, along=required)
    found: dict[str, Place] = {
        f"{path}.type": Field(
            kind,
            along=required,
            of={"mlm": masked, **_TARGETS.get(kind, {})},
            refused_by=refused_by,
        )
    }
    for name, value in values.items():
        block = {"adapter": {"type": kind, **required, **needs.get(name, {})}}
        found[f"{path}.{name}"] = Field(value, block, refused_by=refused_by, on=_ONCE)
    return found


_ADAPTERS: dict[str, Place] = {
    **_adapter(
        "lora",
        {
            "r": 4,
            "lora_alpha": 7.0,
            "lora_dropout": 0.5,
            "target_modules": ["q_proj"],
            "modules_to_save": ["lm_head"],
            "use_rslora": True,
            "use_dora": True,
            "init_lora_weights": "gaussian",
        },
    ),
    "adapter[lora].bias": Field("all", _LORA, refused_by=("dpo", "kto", *_MEASURED), on=_ONCE),
    **_adapter(
        "adalora",
        {
            "init_r": 10,
            "target_r": 4,
            "lora_alpha": 7.0,
            "lora_dropout": 0.5,
            "target_modules": ["q_proj"],
            "modules_to_save": ["lm_head"],
            "tinit": 0.2,
            "tfinal": 0.4,
            "delta_t": 3,
            "orth_reg_weight": 0.9,
        },
    ),
    **_adapter(
        "ia3",
        {
            "target_modules": ["q_proj"],
            "feedforward_modules": ["down_proj"],
            "modules_to_save": ["lm_head"],
        },
        feedforward_modules={"target_modules": ["q_proj", "down_proj"]},
    ),
    **_adapter(
        "vera",
        {
            "r": 8,
            "vera_dropout": 0.5,
            "d_initial": 0.5,
            "projection_prng_key": 7,
            "target_modules": ["q_proj"],
            "modules_to_save": ["lm_head"],
        },
    ),
    **_adapter("layernorm", {"target_modules": ["model.norm"], "modules_to_save": ["lm_head"]}),
    **_adapter("freeze", {"trainable_patterns": ["lm_head.*"]}),
}
_4_BITS = {**_LORA, "quantization": {"bits": 4}}
_QUANTIZATION: dict[str, Place] = {
    "bits": _setting(4, needs=_LORA, on=("sft", "text_classification", "image_classification")),
    "quant_type": _setting("fp4", needs=_4_BITS),
    "double_quant": _setting(False, needs=_4_BITS),
    "compute_dtype": _setting("bf16", needs=_4_BITS),
}
_SPREAD = {"distributed": {"strategy": "ddp"}}
_NOT_SPREAD = ("grpo", "sentence_transformer", *_MEASURED)
SHARED: dict[str, Place] = {
    **{f"training.{name}": place for name, place in _TRAINING.items()},
    **{f"model.{name}": place for name, place in _MODEL.items()},
    **{f"data.train[].{name}": place for name, place in _SOURCE.items()},
    "data.validation[].weight": Field(3.0, refused_by=EVERY_TASK),
    **{f"data.{name}": place for name, place in _DATA.items()},
    **{f"evaluation.{name}": place for name, place in _EVALUATION.items()},
    **{f"checkpoint.{name}": place for name, place in _CHECKPOINT.items()},
    **{f"publish.{name}": place for name, place in _PUBLISH.items()},
    **{f"quantization.{name}": place for name, place in _QUANTIZATION.items()},
    **_ADAPTERS,
    "backend": OneChoice(),
    "precision": Field("bf16"),
    "distributed.strategy": Field("ddp", refused_by=_NOT_SPREAD, on=_ONCE),
    "distributed.processes": Field(3, _SPREAD, refused_by=_NOT_SPREAD, on=_ONCE),
    "tracking.mlflow.experiment": OfTheService("app.tracking.mirror", '"experiment"'),
    "tracking.mlflow.run_name": OfTheService("app.tracking.mirror", '"run_name"'),
    "tracking.mlflow.tags": OfTheService("app.tracking.mirror", '"tags"'),
}

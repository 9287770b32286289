"""Where each field of the schema is: the table that `test_every_field.py` goes through.

A field has a value that is not its default, what must be set beside it so that it matters
(`needs`), and how it is seen (`by`, an observer of `observed.py`). A field that is not here fails
the test, and so does one that changes nothing and is not refused.
"""

import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel

from trainer_core.spec import TrainSpec

Blocks = dict[str, Any]


@dataclass(frozen=True)
class Field:
    """One field: a value other than its default, and how it is seen to arrive.

    `needs` is merged into the spec with and without the value, `rows` names rows of
    `test_every_field.ROWS`. `of` has other values and needs for single tasks. `once`: shared code
    reads the field, so that one task (`sft`) is enough.
    """

    value: Any
    needs: Blocks = field(default_factory=dict)
    rows: str = "plain"
    by: str = "trainer"
    once: bool = False
    of: Mapping[str, "Field"] = field(default_factory=dict)


@dataclass(frozen=True)
class OfTheService:
    """The trainer leaves it alone; `reader` is the module of the service that reads it, and `words`
    how it does."""

    reader: str
    words: str


@dataclass(frozen=True)
class OneChoice:
    """There is one value that a run can have beside `auto`, so no other one can be seen."""


Place = Field | OfTheService | OneChoice


def leaves(model: type[BaseModel], before: str = "") -> Iterator[str]:
    """Paths of all fields that hold values: `a.b`, `list[].b`, `union[tag].b`."""
    for name, info in model.model_fields.items():
        path = f"{before}{name}"
        members = _members(info.annotation)
        models = [member for member in members if _is_model(member)]
        listed = [
            each
            for member in members
            if typing.get_origin(member) is list
            for each in _members(typing.get_args(member)[0])
            if _is_model(each)
        ]
        if not models and not listed:
            yield path
        for each in models:
            yield from leaves(each, f"{path}{_tag(each) if len(models) > 1 else ''}.")
        for each in listed:
            tag = _tag(each) if len(listed) > 1 else ""
            yield from leaves(each, f"{path}[]{tag}.")


def _members(annotation: Any) -> list[Any]:
    origin = typing.get_origin(annotation)
    if origin is typing.Annotated:
        return _members(typing.get_args(annotation)[0])
    if origin in (typing.Union, types.UnionType):
        return [m for argument in typing.get_args(annotation) for m in _members(argument)]
    return [annotation]


def _is_model(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def _tag(model: type[BaseModel]) -> str:
    """The value of a member's discriminator; nothing for one that is told by its fields."""
    info = model.model_fields.get("type")
    return "" if info is None else f"[{typing.get_args(info.annotation)[0]}]"


def shared_leaves() -> list[str]:
    """Those of all blocks but `task`."""
    return [path for path in leaves(TrainSpec) if not path.startswith("task")]


def task_leaves(block: type[BaseModel]) -> list[str]:
    """Those of a task's block without its type; an evaluated task's are that task's own."""
    found = [path for path in leaves(block, "task.") if not path.startswith("task.of")]
    return [path for path in found if path != "task.type"]


# ---- the table ----

_VALIDATES = {"data": {"validation": {"split_ratio": 0.25}}}
_BEST = {"checkpoint": {"load_best_model_at_end": True}, **_VALIDATES}
_STOPS = {"checkpoint": {"early_stopping": {}}, **_VALIDATES}
_HUB = {"model": {"source": "hub", "name_or_path": "owner/model"}}
_HUB_ROWS = {"data": {"train": [{"source": "hub", "path": "owner/rows"}]}}
_TWO_SOURCES = {
    "data": {"train": [{}, {"source": "folder", "path": "<other rows>", "weight": 1.0}]}
}
_LORA = {"adapter": {"type": "lora"}}
_QUESTIONS = {**_VALIDATES, "evaluation": {"generation": {"max_new_tokens": 4, "num_samples": 2}}}
_DRAWS = {
    **_VALIDATES,
    "evaluation": {"generation": {"max_new_tokens": 8, "num_samples": 2, "do_sample": True}},
}
_TRAINING: dict[str, Place] = {
    "learning_rate": Field(0.5),
    "num_train_epochs": Field(7.0),
    "max_steps": Field(5),
    "per_device_train_batch_size": Field(2, of={"grpo": Field(8)}),
    "per_device_eval_batch_size": Field(
        3,
        _VALIDATES,
        of={"grpo": Field(8, _VALIDATES), "evaluation": Field(3, by="measuring")},
    ),
    "gradient_accumulation_steps": Field(3),
    "optim": Field("sgd"),
    "adam_beta1": Field(0.5),
    "adam_beta2": Field(0.5),
    "adam_epsilon": Field(1e-3),
    "lr_scheduler_type": Field("constant"),
    "warmup_steps": Field(3.0),
    "weight_decay": Field(0.3),
    "max_grad_norm": Field(0.3),
    "seed": Field(7, of={"evaluation": Field(7, _VALIDATES)}),
    "data_seed": Field(7, of={"evaluation": Field(7, _VALIDATES)}),
    "gradient_checkpointing": Field(True),
    "neftune_noise_alpha": Field(5.0),
    "logging_steps": Field(3),
}
_MODEL: dict[str, Place] = {
    "source": Field("hub", {"model": {"name_or_path": "owner/model"}}, by="location", once=True),
    "name_or_path": Field("<another model>"),
    "revision": Field("v1", _HUB, by="location", once=True),
    "subfolder": Field("inner"),
    "dtype": Field("bf16"),
    "attn_implementation": Field("eager"),
    "add_tokens": Field(["<new>"]),
    "add_special_tokens": Field(["<new>"]),
    "token.secret": Field("hub", _HUB, by="location", once=True),
}
_SOURCE: dict[str, Place] = {
    "source": Field("upload", by="source", once=True),
    "path": Field("<other rows>"),
    "subset": Field("ko", _HUB_ROWS, by="source", once=True),
    "split": Field("test", _HUB_ROWS, by="source", once=True),
    "revision": Field("v1", _HUB_ROWS, by="source", once=True),
    "token.secret": Field("hub", _HUB_ROWS, by="source", once=True),
    "format": Field(
        "text",
        of={
            "clm": Field("messages"),
            "mlm": Field("messages"),
            "multimodal": Field("image_prompt_completion"),
            "sentence_transformer": Field("sentence_pair"),
            "kto": Field("judged_messages"),
        },
    ),
    "columns": Field("<renamed>", rows="renamed"),
    "weight": Field(3.0, _TWO_SOURCES, once=True),
    "num_samples": Field(8),
    "fraction": Field(0.5),
    "seed": Field(7, {"data": {"train": [{"num_samples": 8}]}}),
}
_ONE_STEP = {
    "max_steps": 1,
    "per_device_train_batch_size": 1,
    "gradient_accumulation_steps": 1,
}
_DATA: dict[str, Place] = {
    "stopping_strategy": Field("all_exhausted", _TWO_SOURCES, once=True),
    "streaming": Field(
        True,
        {"training": _ONE_STEP},
        of={
            "sft": Field(
                True, {"training": _ONE_STEP, "task": {"packing": True, "max_length": 128}}
            )
        },
    ),
    "validation.split_ratio": Field(0.5, _VALIDATES),
    "over_length": Field(
        "drop",
        {"task": {"max_length": 16}},
        rows="long",
        of={
            "clm": Field("drop", {"task": {"max_length": 16, "packing": "none"}}, "long"),
            "mlm": Field("drop", {"task": {"max_length": 16, "line_by_line": True}}, "long"),
            "image_classification": Field("drop"),
            "evaluation": Field(
                "drop", {"task": {"of": {"type": "sft", "max_length": 16}}}, rows="long"
            ),
            "multimodal": Field("drop", {"task": {"max_length": 48}}, "long"),
            "grpo": Field(
                "drop", {"task": {"max_length": 32, "max_completion_length": 8}}, rows="long"
            ),
        },
    ),
    "on_bad_row": Field("drop", {"data": {"max_bad_ratio": 0.5}}, rows="bad"),
    "max_bad_ratio": Field(0.5, {"data": {"on_bad_row": "drop"}}, rows="bad"),
}
_EVALUATION: dict[str, Place] = {
    "strategy": Field("no", _VALIDATES),
    "steps": Field(3, _VALIDATES),
    "max_samples": Field(2, _VALIDATES),
    "compare_base": Field(True, _VALIDATES),
    "metrics": Field(["loss"], _VALIDATES, by="report"),
    "generation.num_samples": Field(1, _QUESTIONS, by="report", once=True),
    "generation.max_new_tokens": Field(9, _QUESTIONS, by="report"),
    "generation.do_sample": Field(True, _QUESTIONS, by="report", once=True),
    "generation.temperature": Field(9.0, _DRAWS, by="report", once=True),
    "generation.top_p": Field(0.01, _DRAWS, by="report", once=True),
    "backend": OneChoice(),
}
_CHECKPOINT: dict[str, Place] = {
    "save_strategy": Field("epoch", {"checkpoint": {"save_steps": 3}}),
    "save_steps": Field(3),
    "save_total_limit": Field(5),
    "resume": Field("never", by="resume"),
    "load_best_model_at_end": Field(True, _VALIDATES),
    "metric_for_best_model": Field(
        "mean_token_accuracy",
        _BEST,
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
    "greater_is_better": Field(True, _BEST),
    "early_stopping.patience": Field(9, _STOPS),
    "early_stopping.threshold": Field(0.5, _STOPS),
}
_PUBLISH: dict[str, Place] = {
    "registry": OfTheService("app.attempts.commits", '"registry"'),
    "hub.repo_id": OfTheService("worker.pusher", "wish.repo_id"),
    "hub.private": OfTheService("worker.pusher", "wish.private"),
    "hub.revision": OfTheService("worker.pusher", "wish.revision"),
    "hub.strategy": OfTheService("worker.pusher", "wish.strategy"),
    "hub.token.secret": OfTheService("worker.pusher", "wish.token.secret"),
    "name": Field("mine", by="publication"),
    "merge": Field("always", _LORA, by="publication"),
    "max_merge_drift": Field(
        1e-12, {**_LORA, "publish": {"merge": "always"}}, by="publication", once=True
    ),
    "gate.metric": Field(
        "mean_token_accuracy",
        {**_VALIDATES, "publish": {"gate": {"metric": "loss", "threshold": 9.0}}},
        by="publication",
        once=True,
    ),
    "gate.threshold": Field(
        1.0,
        {**_VALIDATES, "publish": {"gate": {"metric": "loss", "min_improvement": 0.0}}},
        by="publication",
    ),
    "gate.min_improvement": Field(
        5.0,
        {**_VALIDATES, "publish": {"gate": {"metric": "loss", "threshold": 9.0}}},
        by="publication",
    ),
}


def _adapter(kind: str, values: Blocks, **needs: Blocks) -> dict[str, Place]:
    """Fields of a kind of adapter: `sft` for all of them, every task for the kind itself."""
    required = {"trainable_patterns": ["model.layers.0.*"]} if kind == "freeze" else {}
    found: dict[str, Place] = {}
    for name, value in values.items():
        block = {"type": kind, **required, **needs.get(name, {})}
        found[f"adapter[{kind}].{name}"] = Field(value, {"adapter": block}, once=True)
    return found


_ADAPTERS: dict[str, Place] = {
    f"adapter[{kind}].type": Field(kind)
    for kind in ("lora", "adalora", "ia3", "vera", "layernorm", "freeze")
} | {
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
            "bias": "all",
        },
    ),
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
    "bits": Field(4, _LORA),
    "quant_type": Field("fp4", _4_BITS, once=True),
    "double_quant": Field(False, _4_BITS, once=True),
    "compute_dtype": Field("bf16", _4_BITS, once=True),
}
SHARED: dict[str, Place] = {
    **{f"training.{name}": place for name, place in _TRAINING.items()},
    **{f"model.{name}": place for name, place in _MODEL.items()},
    **{f"data.train[].{name}": place for name, place in _SOURCE.items()},
    **{f"data.{name}": place for name, place in _DATA.items()},
    **{f"evaluation.{name}": place for name, place in _EVALUATION.items()},
    **{f"checkpoint.{name}": place for name, place in _CHECKPOINT.items()},
    **{f"publish.{name}": place for name, place in _PUBLISH.items()},
    **{f"quantization.{name}": place for name, place in _QUANTIZATION.items()},
    **_ADAPTERS,
    "backend": OneChoice(),
    "precision": Field("bf16"),
    "distributed.strategy": Field("ddp"),
    "distributed.processes": Field(3, {"distributed": {"strategy": "ddp"}}),
    "tracking.mlflow.experiment": OfTheService("app.tracking.mirror", '"experiment"'),
    "tracking.mlflow.run_name": OfTheService("app.tracking.mirror", '"run_name"'),
    "tracking.mlflow.tags": OfTheService("app.tracking.mirror", '"tags"'),
}

# ---- the tasks' own fields ----

_TEMPLATES: dict[str, Place] = {
    "chat_template": Field("zephyr"),
    "default_system": Field("Be kind."),
}


def _further_model(path: str, needs: Blocks) -> dict[str, Place]:
    """A model beside the trained one; `needs` must name one already."""
    fields: dict[str, Any] = {
        "source": "s3",
        "name_or_path": "<another model>",
        "revision": "v1",
        "subfolder": "inner",
        "dtype": "bf16",
        "attn_implementation": "eager",
        "add_tokens": ["<new>"],
        "add_special_tokens": ["<new>"],
        "token.secret": "hub",
    }
    return {f"{path}.{name}": Field(value, needs) for name, value in fields.items()}


_A_REFERENCE = {"task": {"ref_model": {"source": "folder", "name_or_path": "<the model>"}}}
_FOLLOWS = {"task": {"sync_ref_model": True}}
_COMPARED: dict[str, Place] = {
    "beta": Field(0.5),
    "reference": Field("precomputed"),
    **_further_model("ref_model", _A_REFERENCE),
    "precompute_ref_batch_size": Field(3, {"task": {"reference": "precomputed"}}),
    "sync_ref_model": Field(True),
    "ref_model_mixup_alpha": Field(0.9, _FOLLOWS),
    "ref_model_sync_steps": Field(7, _FOLLOWS),
    "disable_dropout": Field(False),
    "max_length": Field(24, {"data": {"over_length": "truncate_right"}}),
    **_TEMPLATES,
}
_LABELS: dict[str, Place] = {
    "class_weights": Field("balanced"),
    "label_smoothing_factor": Field(0.3),
    "ignore_mismatched_sizes": Field(True, {"model": {"name_or_path": "<headed>"}}),
}
_SEVERAL = {"task": {"problem_type": "multi_label_classification", "label_separator": "|"}}


def _reward(kind: str, values: Blocks, required: Blocks | None = None) -> dict[str, Place]:
    one = {"type": kind, **(required or {})}
    path = f"rewards[][{kind}]"
    other = "length" if kind == "exact_match" else "exact_match"
    wish = {"max": 3} if other == "length" else {}
    found: dict[str, Place] = {
        f"{path}.type": Field(kind, {"task": {"rewards": [{"type": other, **wish}]}})
    }
    for name, value in values.items():
        found[f"{path}.{name}"] = Field(value, {"task": {"rewards": [one]}})
    return found


_REWARDS: dict[str, Place] = {
    **_reward("exact_match", {"weight": 2.0, "column": "other"}),
    **_reward("exact_match", {"compare": "last_number"}, {"column": "number"}),
    **_reward("exact_match", {"ignore_case": True}, {"column": "shouted"}),
    **_reward("regex", {"weight": 2.0, "pattern": "[0-9]", "match": "fullmatch"},
              {"pattern": "[aeiou]"}),
    **_reward("length", {"weight": 2.0, "unit": "characters", "min": 2, "max": 1}, {"max": 3}),
    **_reward("json_schema", {"weight": 2.0, "json_schema": {"type": "object"}}),
    **_reward("keyword", {"weight": 2.0, "keywords": ["it"], "match": "none",
                          "ignore_case": True}, {"keywords": ["fast", "5"]}),
}  # fmt: skip
_REWARDS["rewards[][keyword].column"] = Field(
    "other", {"task": {"rewards": [{"type": "keyword", "column": "answer"}]}}
)
_JUDGE = {"type": "reward_model", "model": {"source": "folder", "name_or_path": "<judge>"}}
_REWARDS |= {
    "rewards[][reward_model].type": Field(
        "reward_model", {"task": {"rewards": [{"type": "exact_match"}]}}
    ),
    "rewards[][reward_model].weight": Field(2.0, {"task": {"rewards": [_JUDGE]}}),
    **_further_model("rewards[][reward_model].model", {"task": {"rewards": [_JUDGE]}}),
}


def _embedding(loss: str, **more: Any) -> Blocks:
    return {"task": {"loss": loss, **more}}


_GUIDE = {"guide": {"source": "folder", "name_or_path": "<the model>"}}
_GIST = _embedding("gist", **_GUIDE)
_TRIPLET = _embedding("triplet")
_MEGA = _embedding("mega_batch_margin")
_NESTED = {"task": {"matryoshka_dims": [32, 8]}}
_LAYERS = {"task": {"adaptive_layer": {}}}
OWN: dict[str, dict[str, Place]] = {
    "sft": {
        "loss_on": Field("all"),
        "train_on_eot": Field("none"),
        "max_length": Field(24, {"data": {"over_length": "truncate_right"}}),
        "packing": Field(True, {"task": {"max_length": 128}}),
        "packing_strategy": Field(
            "wrapped", {"task": {"packing": True, "max_length": 128, "loss_on": "all"}}
        ),
        "padding_free": Field(True),
        "pad_to_multiple_of": Field(64),
        "eos_token": Field("<|endoftext|>"),
        "loss_type": Field("dft"),
        "kl_beta": Field(0.5),
        **_TEMPLATES,
    },
    "dpo": {
        **_COMPARED,
        "loss_type": Field(["hinge"]),
        "loss_weights": Field([0.5, 2.0], {"task": {"loss_type": ["sigmoid", "sft"]}}),
        "label_smoothing": Field(0.2, {"task": {"loss_type": ["robust"]}}),
        "ld_alpha": Field(0.5),
        "f_divergence_type": Field("forward_kl"),
        "f_alpha_divergence_coef": Field(0.9, {"task": {"f_divergence_type": "alpha_divergence"}}),
        "use_weighting": Field(True),
        "discopop_tau": Field(0.5, {"task": {"loss_type": ["discopop"]}}),
    },
    "kto": {
        **_COMPARED,
        "loss_type": Field("apo_zero_unpaired"),
        "desirable_weight": Field(3.0),
        "undesirable_weight": Field(3.0),
    },
    "grpo": {
        **_REWARDS,
        "num_generations": Field(2),
        "num_generations_eval": Field(2, _VALIDATES),
        "max_length": Field(24),
        "max_completion_length": Field(16),
        "temperature": Field(0.5),
        "top_p": Field(0.5),
        "top_k": Field(5),
        "min_p": Field(0.1),
        "repetition_penalty": Field(1.5),
        "beta": Field(0.5),
        "epsilon": Field(0.4),
        "epsilon_high": Field(0.5),
        "loss_type": Field("grpo"),
        "scale_rewards": Field("none"),
        "num_iterations": Field(2),
        "importance_sampling_level": Field("sequence"),
        "mask_truncated_completions": Field(True),
        "disable_dropout": Field(False),
        "eos_token": Field("<|endoftext|>"),
        **_TEMPLATES,
    },
    "clm": {
        "max_length": Field(32),
        "packing": Field("bfd"),
        "add_eos_token": Field(False),
        "embedding_learning_rate": Field(0.5),
        "from_config": Field({"attention_dropout": 0.3}),
    },
    "mlm": {
        "mlm_probability": Field(0.5),
        "whole_word_mask": Field(True),
        "max_length": Field(32),
        "line_by_line": Field(True),
        "pad_to_max_length": Field(True, {"task": {"line_by_line": True}}),
        "from_config": Field({"hidden_dropout_prob": 0.3}),
        "train_tokenizer.vocab_size": Field(
            60, {"task": {"from_config": {}, "train_tokenizer": {"vocab_size": 100}}}
        ),
    },
    "text_classification": {
        **_LABELS,
        "label_names": Field(["good", "bad"]),
        "problem_type": Field("multi_label_classification", rows="listed"),
        "label_separator": Field(
            "+", {"task": {"problem_type": "multi_label_classification"}}, rows="joined"
        ),
        "max_length": Field(5, {"data": {"over_length": "truncate_right"}}),
        "threshold": Field(0.01, {**_SEVERAL, **_VALIDATES}, rows="several", by="report"),
    },
    "image_classification": {
        **_LABELS,
        "label_names": Field(["고래", "dog", "cat"]),
        "augmentation.random_resized_crop": Field(0.5),
        "augmentation.horizontal_flip": Field(1.0),
        "augmentation.color_jitter": Field(0.5),
        "freeze_backbone": Field(True),
    },
    "multimodal": {
        "loss_on": Field("all"),
        "train_on_eot": Field("none"),
        "max_length": Field(16),
        "max_pixels": Field(1024, rows="large"),
        "freeze_vision_tower": Field(False),
        "freeze_projector": Field(False),
        "freeze_language_model": Field(True, {"task": {"freeze_projector": False}}),
        "chat_template": Field("<parts>"),
        "default_system": Field("Be kind."),
    },
    "sentence_transformer": {
        "loss": Field("cached_mnrl"),
        "loss_args.scale": Field(5.0, _embedding("mnrl")),
        "loss_args.temperature": Field(0.5, _GIST),
        "loss_args.mini_batch_size": Field(3, _embedding("cached_mnrl")),
        "loss_args.margin": Field(2.0, _TRIPLET, rows="triplets"),
        "loss_args.positive_margin": Field(0.5, _MEGA),
        "loss_args.negative_margin": Field(0.5, _MEGA),
        "loss_args.margin_strategy": Field("relative", _GIST),
        "loss_args.contrast_anchors": Field(False, _GIST),
        "loss_args.contrast_positives": Field(False, _GIST),
        "loss_args.distance": Field("cosine", _TRIPLET, rows="triplets"),
        "loss_args.similarity": Field("dot", _embedding("mnrl")),
        "loss_args.symmetric": Field(True, _embedding("mnrl")),
        **_further_model("guide", _GIST),
        "matryoshka_dims": Field([16, 8]),
        "matryoshka_weights": Field([1.0, 2.0], _NESTED),
        "matryoshka_dims_per_step": Field(1, _NESTED),
        "adaptive_layer.n_layers_per_step": Field(-1, _LAYERS),
        "adaptive_layer.last_layer_weight": Field(3.0, _LAYERS),
        "adaptive_layer.prior_layers_weight": Field(3.0, _LAYERS),
        "adaptive_layer.kl_div_weight": Field(3.0, _LAYERS),
        "adaptive_layer.kl_temperature": Field(0.9, _LAYERS),
        "max_length": Field(5, {"data": {"over_length": "truncate_right"}}),
        "prompts": Field("query: "),
        "pooling_mode": Field("cls"),
        "normalize": Field(True),
        "batch_sampler": Field("batch_sampler"),
        "learning_rate_mapping": Field({".*": 0.5}),
        "evaluator": Field("none"),
    },
    "evaluation": _further_model(
        "baseline", {"task": {"baseline": {"source": "folder", "name_or_path": "<the model>"}}}
    ),
}

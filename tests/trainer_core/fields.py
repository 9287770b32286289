"""Where each field of the schema is: what the table is made of that `test_every_field.py` goes
through, and its part of the tasks' own fields (`shared_fields.py` has the other one).

A field has a value that is not its default, what must be set beside it so that it matters
(`needs`), and how it is seen (`by`, an observer of `observed.py`). A field that is not here fails
the test, and so does one that changes nothing and is not refused.
"""

import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel

from tests.trainer_core.test_task_table import blocks
from trainer_core.spec import TrainSpec

Blocks = dict[str, Any]


@dataclass(frozen=True)
class Field:
    """One field: a value other than its default, and how it is seen to arrive.

    `needs` is merged into the spec with and without the value, `along` stands beside the value
    alone (a kind of reward comes with what that kind requires). `rows` names rows of
    `field_documents.ROWS`. `of` has other values and needs for single tasks.

    `refused_by` are the tasks whose `check` refuses the value and names the field; `on` are those
    of the others in which it is built and looked at (None: all of them). With `stops` the run ends
    with an error that names the field, which it does not without the value.
    """

    value: Any
    needs: Blocks = field(default_factory=dict)
    rows: str = "plain"
    by: str = "trainer"
    along: Blocks = field(default_factory=dict)
    of: Mapping[str, "Field"] = field(default_factory=dict)
    refused_by: Sequence[str] = ()
    on: Sequence[str] | None = None
    stops: bool = False


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


EVERY_TASK = tuple(blocks())
VALIDATES = {"data": {"validation": {"split_ratio": 0.25}}}

# ---- the tasks' own fields ----

_TEMPLATES: dict[str, Place] = {
    "chat_template": Field("zephyr"),
    "default_system": Field("Be kind."),
}


_REFUSED_OF_A_FURTHER_MODEL = (
    "source", "revision", "add_tokens", "add_special_tokens", "token.secret",
)  # fmt: skip


def _further_model(
    path: str, needs: Blocks, *more: str, other: str = "<another model>"
) -> dict[str, Place]:
    """A model beside the trained one; `needs` must name one already, `more` is refused as well."""
    fields: dict[str, Any] = {
        "source": "s3",
        "name_or_path": other,
        "revision": "v1",
        "subfolder": "inner",
        "dtype": "bf16",
        "attn_implementation": "eager",
        "add_tokens": ["<new>"],
        "add_special_tokens": ["<new>"],
        "token.secret": "hub",
    }
    refused = (*_REFUSED_OF_A_FURTHER_MODEL, *more)
    return {
        f"{path}.{name}": Field(value, needs, refused_by=EVERY_TASK if name in refused else ())
        for name, value in fields.items()
    }


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
    "max_length": Field(33, {"data": {"over_length": "truncate_right"}}),
    **_TEMPLATES,
}
_LABELS: dict[str, Place] = {
    "class_weights": Field("balanced"),
    "label_smoothing_factor": Field(0.3),
    "ignore_mismatched_sizes": Field(
        False,
        {"model": {"name_or_path": "<headed>"}, "task": {"ignore_mismatched_sizes": True}},
        stops=True,
    ),
}
_SEVERAL = {"task": {"problem_type": "multi_label_classification", "label_separator": "|"}}


def _reward(kind: str, values: Blocks, required: Blocks | None = None) -> dict[str, Place]:
    required = required or {}
    path = f"rewards[][{kind}]"
    other = {"type": "length", "max": 3} if kind == "exact_match" else {"type": "exact_match"}
    found: dict[str, Place] = {
        f"{path}.type": Field(kind, {"task": {"rewards": [other]}}, along=required)
    }
    for name, value in values.items():
        one = {"type": kind, **required}
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
_JUDGE = {"model": {"source": "folder", "name_or_path": "<judge>"}}
_JUDGED = {"task": {"rewards": [{"type": "reward_model", **_JUDGE}]}}
_REWARDS |= _reward("reward_model", {"weight": 2.0}, _JUDGE)
_REWARDS |= _further_model("rewards[][reward_model].model", _JUDGED, other="<another judge>")


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
        "padding_free": Field(True, refused_by=("sft",)),
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
        "num_generations_eval": Field(2, VALIDATES),
        "max_length": Field(29, {"data": {"over_length": "drop"}}),
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
        "problem_type": Field("regression", rows="numbered"),
        "label_separator": Field("+", _SEVERAL, rows="joined"),
        "max_length": Field(5, {"data": {"over_length": "truncate_right"}}),
        "threshold": Field(0.01, {**_SEVERAL, **VALIDATES}, rows="several", by="report"),
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
        "max_length": Field(37, {"data": {"over_length": "drop"}}),
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
        "baseline",
        {"task": {"baseline": {"source": "folder", "name_or_path": "<the model>"}}},
        "dtype",
        "attn_implementation",
    ),
}

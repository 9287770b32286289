"""How much memory training a transformer takes, estimated from its number of parameters."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trainer_core.optimizers import STATE_BYTES
from trainer_core.spec import (
    AdaLoraAdapter,
    FreezeAdapter,
    LoraAdapter,
    Quantization,
    TrainSpec,
    VeraAdapter,
)
from trainer_core.task import task_of

DTYPE_BYTES = {"bf16": 2, "fp16": 2, "fp32": 4}
_WIDTH_PER_LAYER = 128  # models are about 128 times as wide as they have layers
# A layer of a decoder: four projections of attention, three of the feed-forward part, which is
# 8/3 as wide; in units of the model's width:
_LAYER_WEIGHTS = 12  # of the width squared
_FEED_FORWARD = 8 / 3
_INS_AND_OUTS = 4 * 2 + 3 * (1 + _FEED_FORWARD)
_OUTS = 4 + 2 * _FEED_FORWARD + 1
_LINEAR_LAYERS = 7
_ACTIVATIONS_PER_LAYER = 17  # values kept per token, layer and unit of width
_VOCABULARY = 100_000
_LOGIT_BYTES = 8
_WIDTHS = ("hidden_size", "n_embd", "d_model", "dim")
_LAYERS = ("num_hidden_layers", "n_layer", "num_layers", "n_layers")


@dataclass(frozen=True)
class Need:
    """GB of weights, gradients and optimizer, and GB per row of a batch."""

    fixed_gb: float
    row_gb: float
    row_checkpointed_gb: float

    def batch(self, memory_gb: float, *, checkpointed: bool) -> int:
        """The largest batch that fits into `memory_gb`; 0 where not even one row does."""
        per_row = self.row_checkpointed_gb if checkpointed else self.row_gb
        return max(0, int((memory_gb - self.fixed_gb) / per_row))


@dataclass(frozen=True)
class Shape:
    """A model as its number of parameters suggests it, or as its configuration says.

    `vocabulary` counts the logits of a token.
    """

    parameters: int
    width: float
    layers: float
    vocabulary: int = _VOCABULARY

    @classmethod
    def of(cls, parameters: int) -> "Shape":
        """A decoder with all its parameters in its layers."""
        width = (parameters * _WIDTH_PER_LAYER / _LAYER_WEIGHTS) ** (1 / 3)
        return cls(parameters, width, width / _WIDTH_PER_LAYER)

    @classmethod
    def read(cls, config: Mapping[str, Any], parameters: int | None) -> "Shape | None":
        """From a model's configuration; None where it does not say enough.

        Without `parameters` they are those of the layers and of one embedding.
        """
        nested = config.get("text_config")
        said = {**config, **nested} if isinstance(nested, dict) else config
        width, layers = (_first(said, names) for names in (_WIDTHS, _LAYERS))
        if width is None or layers is None:
            return None
        vocabulary = _first(said, ("vocab_size",)) or 0
        counted = _LAYER_WEIGHTS * width**2 * layers + vocabulary * width
        return cls(parameters or counted, width, layers, vocabulary)

    @property
    def embedding(self) -> float:
        """Values of one embedding or head."""
        return min(self.vocabulary * self.width, self.parameters / 4)


def _first(said: Mapping[str, Any], names: Sequence[str]) -> int | None:
    return next((said[name] for name in names if isinstance(said.get(name), int)), None)


@dataclass(frozen=True)
class Parts:
    """Bytes of one process: what is there whatever the batch is, and what each token takes."""

    weights: float
    gradients: float
    optimizer: float
    activations: float
    logits: float

    @property
    def fixed(self) -> float:
        """Without any row."""
        return self.weights + self.gradients + self.optimizer

    @property
    def token(self) -> float:
        """Of one token."""
        return self.activations + self.logits


def memory_parts(
    spec: TrainSpec, shape: Shape, *, checkpointed: bool, trains: bool = True
) -> Parts:
    """Estimate for a spec whose precision and model.dtype are filled in.

    `checkpointed`: activations are computed again. Without `trains` nothing is kept for gradients.
    """
    compute = DTYPE_BYTES[spec.precision]
    copies = 1 + task_of(spec).FACTS.frozen_copies(spec)
    weights = copies * _base_bytes(spec, shape) + _passing_bytes(spec, shape)
    layer = _ACTIVATIONS_PER_LAYER * shape.width * compute
    logits = shape.vocabulary * _LOGIT_BYTES
    if not trains:
        return Parts(weights, 0.0, 0.0, layer, logits)
    kept = shape.layers * shape.width * compute
    activations = kept + layer if checkpointed else shape.layers * layer
    return Parts(
        weights + _own_bytes(spec, shape),
        _gradient_bytes(spec, shape),
        _optimizer_bytes(spec, shape),
        activations,
        logits,
    )


def memory_need(spec: TrainSpec, parameters: int) -> Need:
    """Estimate for a spec whose precision, model.dtype and max_length are filled in."""
    shape = Shape.of(parameters)
    plain, checkpointed = (memory_parts(spec, shape, checkpointed=on) for on in (False, True))
    tokens = (spec.task.row_length or 0) * task_of(spec).FACTS.defaults.sequences
    return Need(
        fixed_gb=plain.fixed / 1e9,
        row_gb=tokens * plain.token / 1e9,
        row_checkpointed_gb=tokens * checkpointed.token / 1e9,
    )


def values_beside(spec: TrainSpec) -> int:
    """Values that a checkpoint keeps for each trained one beside itself and its states.

    AdaLoRA: the whole weight, its importance, and two running means of that.
    """
    return 4 if isinstance(spec.adapter, AdaLoraAdapter) else 0


def trained_values(spec: TrainSpec, shape: Shape) -> float:
    """How many values are trained; for frozen models with patterns at most as many."""
    adapter = spec.adapter
    if adapter is None:
        return shape.parameters
    if isinstance(adapter, FreezeAdapter):
        found = sum(_fitting(pattern, shape) for pattern in adapter.trainable_patterns)
        return min(found, shape.parameters)
    whole = len(getattr(adapter, "modules_to_save", [])) + 2 * bool(spec.model.new_tokens)
    return _ADAPTERS[adapter.type](adapter, shape) + whole * shape.embedding


def _fitting(pattern: str, shape: Shape) -> float:
    """At most how many values a pattern of parameters' names fits, as far as names can tell."""
    if re.search(r"\.\d+\.", pattern):
        return shape.parameters / shape.layers
    if "norm" in pattern:
        return _layernorm(None, shape)
    if re.search(r"head|embed|classifier|score|wte", pattern):
        return shape.embedding
    return shape.parameters


def _lora(adapter: LoraAdapter, shape: Shape) -> float:
    magnitudes = _OUTS if adapter.use_dora else 0
    return (_INS_AND_OUTS * adapter.r + magnitudes) * shape.width * shape.layers


def _adalora(adapter: AdaLoraAdapter, shape: Shape) -> float:
    per_rank = _INS_AND_OUTS * shape.width + _LINEAR_LAYERS
    return per_rank * adapter.init_r * shape.layers


def _ia3(adapter: Any, shape: Shape) -> float:
    # PEFT's own choice: keys, values and the inputs of one feed-forward projection.
    scaled = 2 + _FEED_FORWARD if adapter.target_modules is None else _OUTS
    return float(scaled * shape.width * shape.layers)


def _vera(adapter: VeraAdapter, shape: Shape) -> float:
    return (_OUTS * shape.width + _LINEAR_LAYERS * adapter.r) * shape.layers


def _layernorm(_: Any, shape: Shape) -> float:
    return (2 * shape.layers + 1) * shape.width


_ADAPTERS: dict[str, Callable[[Any, Shape], float]] = {
    "lora": _lora,
    "adalora": _adalora,
    "ia3": _ia3,
    "vera": _vera,
    "layernorm": _layernorm,
}


def _own_bytes(spec: TrainSpec, shape: Shape) -> float:
    """An adapter's own weights in fp32."""
    own = 4 * trained_values(spec, shape) if spec.adapts else 0.0
    if isinstance(spec.adapter, VeraAdapter):
        own += 2 * 4 * spec.adapter.r * _FEED_FORWARD * shape.width  # its frozen projections
    return own


def _gradient_bytes(spec: TrainSpec, shape: Shape) -> float:
    """In fp32; DDP has buckets of them beside."""
    sent = 4 if (spec.distributed.processes or 1) > 1 else 0
    return trained_values(spec, shape) * (4 + sent)


def _optimizer_bytes(spec: TrainSpec, shape: Shape) -> float:
    """The optimizer's states, and what AdaLoRA measures of each weight."""
    measured = 3 * 4 if isinstance(spec.adapter, AdaLoraAdapter) else 0
    return trained_values(spec, shape) * (STATE_BYTES[spec.training.optim] + measured)


def _base_bytes(spec: TrainSpec, shape: Shape) -> float:
    """The model's weights; embeddings and head stay out of a quantization."""
    weight = DTYPE_BYTES[spec.model.dtype]
    if spec.quantization is None:
        return shape.parameters * weight
    whole = min(2 * shape.embedding, shape.parameters / 2)
    return whole * weight + (shape.parameters - whole) * quantized_bytes(spec.quantization)


def quantized_bytes(quantization: Quantization) -> float:
    """Bytes for each weight of a quantized layer, with its scales."""
    if quantization.bits == 8:
        return 1.0
    scales = 1 / 64 + 4 / (64 * 256) if quantization.double_quant else 4 / 64
    return 0.5 + scales


def _passing_bytes(spec: TrainSpec, shape: Shape) -> float:
    """The largest layer once more: dequantized for its product, or with DoRA for its norm."""
    copies = int(spec.quantization is not None)
    if isinstance(spec.adapter, LoraAdapter) and spec.adapter.use_dora:
        copies += 2
    return copies * _FEED_FORWARD * shape.width**2 * DTYPE_BYTES[spec.precision]

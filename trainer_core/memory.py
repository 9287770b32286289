"""How much memory training a transformer takes, estimated from its number of parameters."""

from dataclasses import dataclass

from trainer_core.spec import TrainSpec
from trainer_core.task import task_of

_BYTES = {"bf16": 2, "fp16": 2, "fp32": 4}
OPTIMIZER_STATES = {"adamw_torch": 2, "adamw_torch_fused": 2, "adafactor": 1, "sgd": 0}
"""Values that an optimizer keeps per trainable parameter."""
_LORA_SHARE_PER_RANK = 0.0006  # trained share of a model per LoRA rank, all linear layers
_WIDTH_PER_LAYER = 128  # models are about 128 times as wide as they have layers
_ACTIVATIONS_PER_LAYER = 17  # values kept per token, layer and unit of width
_VOCABULARY = 100_000
_LOGIT_BYTES = 8


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


def memory_need(spec: TrainSpec, parameters: int) -> Need:
    """Estimate for a spec whose precision, model.dtype and max_length are filled in."""
    weight = _BYTES[spec.model.dtype]
    compute = _BYTES[spec.precision]
    share = 1.0 if spec.adapter is None else min(1.0, _LORA_SHARE_PER_RANK * spec.adapter.r)
    # Trained weights have gradients and optimizer states in fp32 beside them.
    per_trained = 4 * (1 + OPTIMIZER_STATES[spec.training.optim]) + (
        0 if spec.adapter is None else 4
    )
    facts = task_of(spec).FACTS
    copies = 1 + facts.frozen_copies(spec)
    fixed = parameters * (copies * weight + share * per_trained)
    width = (parameters * _WIDTH_PER_LAYER / 12) ** (1 / 3)
    layers = width / _WIDTH_PER_LAYER
    layer = _ACTIVATIONS_PER_LAYER * width * compute
    logits = _VOCABULARY * _LOGIT_BYTES
    tokens = (spec.task.row_length or 0) * facts.defaults.sequences
    return Need(
        fixed_gb=fixed / 1e9,
        row_gb=tokens * (layers * layer + logits) / 1e9,
        row_checkpointed_gb=tokens * (layers * width * compute + layer + logits) / 1e9,
    )

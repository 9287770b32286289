"""Merging an adapter into its base, and how much that changes what the model says."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainer_core.context import Loaded

_PROBE_TOKENS = 16
_PROBE_PIXELS = 64
_LIMIT = 1e-3
_LIMIT_16_BIT = 5e-2  # rounding of a product in bf16, added up over the layers


@dataclass(frozen=True)
class Merged:
    """A merged model, and differences of logits as shares of the largest one.

    `drift` is what merging did: the adapter beside the same base against the merged weights.
    `quantization_drift` is between the model as it was trained, on a quantized base, and the merged
    one; None where the base was not quantized. `limit` is the default limit of `drift`.
    """

    model: Any
    drift: float
    quantization_drift: float | None
    limit: float


def merge(model: Any, loaded: Loaded, adapter: Path) -> Merged:
    """Merge the trained adapter onto a base in 16 or 32 bits, never onto a quantized one.

    `adapter` is the folder that it was saved to: a quantized base is loaded anew and whole.
    """
    import torch
    from peft import PeftModel

    trained = None
    if loaded.unpacked is not None:
        trained = _says(model)
        model = PeftModel.from_pretrained(loaded.unpacked(), adapter)
    beside = _says(model)
    merged = unload_merged(model)
    after = _says(merged)
    quantized = None if trained is None else _difference(trained, after)
    limit = _LIMIT if merged.dtype == torch.float32 else _LIMIT_16_BIT
    return Merged(merged, _difference(beside, after), quantized, limit)


def unload_merged(adapted: Any) -> Any:
    """The base with the adapter in its weights, all in the base's dtype.

    Embeddings and a head that were one tensor and were trained apart are two from here on.
    """
    frozen = (p for p in adapted.parameters() if not p.requires_grad and p.is_floating_point())
    dtype = next(frozen).dtype
    merged = adapted.merge_and_unload().to(dtype)
    head, embeddings = merged.get_output_embeddings(), merged.get_input_embeddings()
    text = merged.config.get_text_config()
    if getattr(text, "tie_word_embeddings", False) and head is not None:
        tied = head.weight.data_ptr() == embeddings.weight.data_ptr()
        text.tie_word_embeddings = merged.config.tie_word_embeddings = tied
    return merged


def _says(model: Any) -> Any:
    """What a model makes of a fixed input: tokens, or an image for models without them."""
    import torch

    model.eval()
    with torch.no_grad():
        return model(**_probe(model))[0].float().cpu()


def _probe(model: Any) -> dict[str, Any]:
    import torch

    rows = getattr(model.get_input_embeddings(), "num_embeddings", None)
    if rows is not None:
        ids = torch.arange(_PROBE_TOKENS, device=model.device)[None] * 7919 % rows
        return {"input_ids": ids}
    size = getattr(model.config, "image_size", _PROBE_PIXELS)
    shape = (1, model.config.num_channels, *([size] * 2 if isinstance(size, int) else size))
    pixels = torch.linspace(-1, 1, shape[1] * shape[2] * shape[3], device=model.device)
    return {"pixel_values": pixels.reshape(shape).to(model.dtype)}


def _difference(one: Any, other: Any) -> float:
    largest = max(one.abs().max().item(), 1e-6)
    return float((one - other).abs().max().item() / largest)

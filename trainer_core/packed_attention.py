"""Attention of packed rows on a CPU, sample by sample.

Torch's kernel computes every pair of tokens in a row and leaves out by mask those of different
samples; a packed row of n samples has about n times as many pairs as the samples themselves. On a
GPU such slices would cost more launches than they save, and its kernels of variable length serve.
"""

from typing import Any


def attend_by_sample() -> None:
    """Let models with `sdpa` attention do so from here on; rows that aren't packed stay as is."""
    from transformers import AttentionInterface

    AttentionInterface.register("sdpa", _by_sample)


def _by_sample(
    module: Any,
    query: Any,
    key: Any,
    value: Any,
    attention_mask: Any,
    *,
    position_ids: Any = None,
    **settings: Any,
) -> tuple[Any, None]:
    """As `sdpa_attention_forward`: query, key and value are (rows, heads, tokens, width), the
    result is (rows, tokens, heads, width).

    The mask keeps what it says inside of a sample (causal, windows): it is cut with the tokens.
    """
    import torch
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    def attend(*parts: Any) -> Any:
        return sdpa_attention_forward(module, *parts, **settings)[0]

    lengths = _samples(query, key, attention_mask, position_ids)
    if lengths is None or settings.get("position_bias") is not None:
        return attend(query, key, value, attention_mask), None
    rows = []
    for row, sizes in enumerate(lengths):
        ends = torch.tensor(sizes).cumsum(0).tolist()
        spans = [slice(end - size, end) for size, end in zip(sizes, ends, strict=True)]
        whole = [part[row : row + 1] for part in (query, key, value, attention_mask)]
        cut = [[*(p[:, :, s] for p in whole[:3]), whole[3][:, :, s, s]] for s in spans]
        rows.append(torch.cat([attend(*parts) for parts in cut], dim=1))
    return torch.cat(rows), None


def _samples(query: Any, key: Any, mask: Any, positions: Any) -> list[list[int]] | None:
    """How long the samples of each row are, in tokens; None where rows are not packed."""
    import torch
    from transformers.masking_utils import find_packed_sequence_indices

    square = (len(query), query.shape[2], query.shape[2])
    if positions is None or mask is None or positions.ndim != 2:
        return None
    if (mask.shape[0], *mask.shape[-2:]) != square or key.shape[2] != query.shape[2]:
        return None
    numbers = find_packed_sequence_indices(positions.expand(len(query), -1))
    if numbers is None:
        return None
    return [torch.unique_consecutive(row, return_counts=True)[1].tolist() for row in numbers]

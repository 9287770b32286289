"""What each optimizer keeps for a trained value."""

_FULL = 8.0  # two running means in fp32
STATE_BYTES = {
    "adamw_torch": _FULL,
    "adamw_torch_fused": _FULL,
    "stable_adamw": _FULL,
    "adamw_8bit": 2 + 2 * 4 / 256,  # a scale for each block of 256 states
    "paged_adamw_8bit": 2 + 2 * 4 / 256,
    "adafactor": 4.0,
    "sgd": 0.0,
}
"""Bytes for each trained value; keys are those of `training.optim`."""
_SMALLEST_IN_8_BITS = 4096  # values; smaller parameters keep states in 32 bits


def state_bytes(optim: str, values: int) -> float:
    """Bytes of an optimizer's states for each value of a parameter that has `values` of them."""
    if optim.endswith("_8bit") and values < _SMALLEST_IN_8_BITS:
        return _FULL
    return STATE_BYTES[optim]

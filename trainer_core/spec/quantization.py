"""`quantization`: how the frozen base of an adapter is held."""

from typing import Literal

from pydantic import Field

from trainer_core.spec.base import Strict


class Quantization(Strict):
    """The base's linear layers in 8 or 4 bits (bitsandbytes); the adapter and what is trained whole
    beside it stay in 32 bits."""

    bits: Literal[4, 8]
    quant_type: Literal["nf4", "fp4"] = Field("nf4", description="For 4 bits.")
    double_quant: bool = Field(True, description="Quantize the scales, too. For 4 bits.")
    compute_dtype: Literal["auto", "bf16", "fp16", "fp32"] = Field(
        "auto", description="What 4-bit layers compute in. Default: the run's precision."
    )

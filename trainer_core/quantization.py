"""A base in 8 or 4 bits (bitsandbytes), on the one device of this process."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from trainer_core.spec import TrainSpec

_FLAGS = ("is_loaded_in_4bit", "is_loaded_in_8bit")


def quantized_loading(spec: TrainSpec, left_whole: Sequence[str]) -> dict[str, Any]:
    """Arguments of `from_pretrained` for a resolved spec; none without `quantization`.

    `left_whole` are modules that are not packed. The whole model lies on the device of this process
    (`LOCAL_RANK`), as every rank trains it.
    """
    wanted = spec.quantization
    if wanted is None:
        return {}
    import torch
    from transformers import BitsAndBytesConfig

    dtypes = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
    if wanted.bits == 8:
        config = BitsAndBytesConfig(load_in_8bit=True, llm_int8_skip_modules=[*left_whole])
    else:
        config = BitsAndBytesConfig(
            load_in_4bit=True,
            bnb_4bit_quant_type=wanted.quant_type,
            bnb_4bit_use_double_quant=wanted.double_quant,
            bnb_4bit_compute_dtype=dtypes[wanted.compute_dtype],
            llm_int8_skip_modules=[*left_whole],  # for 4 bits as well
        )
    rank = int(os.environ.get("LOCAL_RANK", "0"))
    place = f"cuda:{rank}" if torch.cuda.is_available() else "cpu"
    return {"quantization_config": config, "device_map": {"": place}}


def keep_as_loaded(model: Any) -> None:
    """Have an evaluation leave 4-bit weights alone.

    On some CPUs bitsandbytes repacks them, with scales in bf16, when a layer first computes
    outside of training: from there on the run would train another model than one without that
    evaluation, and a resumed one a third.
    """
    for module in model.modules():
        if hasattr(module, "support_avx512bf16_for_cpu"):
            module.support_avx512bf16_for_cpu = False


@contextmanager
def kept_in_fp32(model: Any) -> Iterator[None]:
    """While a trainer is built: TRL casts what is trained beside a quantized base to bf16.

    AdamW's steps are often smaller than bf16 can tell; our trained weights are in 32 bits.
    """
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    held = {name: getattr(base, name) for name in _FLAGS if name in vars(base)}
    for name in held:
        setattr(base, name, False)
    try:
        yield
    finally:
        for name, value in held.items():
            setattr(base, name, value)

"""`training` and `distributed`: the loop, and how it is spread."""

from typing import Literal

from pydantic import Field

from trainer_core.spec.base import MOST, Strict

Optimizer = Literal[
    "adamw_torch", "adamw_torch_fused", "adamw_8bit", "paged_adamw_8bit", "stable_adamw",
    "adafactor", "sgd",
]  # fmt: skip


class Training(Strict):
    """The loop; names as in Transformers' TrainingArguments."""

    learning_rate: float | None = Field(None, gt=0, le=10)
    num_train_epochs: float | None = Field(None, gt=0, le=10_000)
    max_steps: int | None = Field(None, ge=1, le=MOST, description="Wins over `num_train_epochs`.")
    per_device_train_batch_size: int | None = Field(None, ge=1, le=65_536)
    per_device_eval_batch_size: int | None = Field(None, ge=1, le=65_536)
    gradient_accumulation_steps: int | None = Field(None, ge=1, le=65_536)
    optim: Optimizer = Field(
        "adamw_torch_fused",
        description="`adamw_8bit` holds its states in 8 bits, `paged_adamw_8bit` moves them to the "
        "host's memory when the GPU's is full, `stable_adamw` clips each tensor's step by itself.",
    )
    adam_beta1: float = Field(0.9, ge=0, lt=1)
    adam_beta2: float = Field(0.999, ge=0, lt=1)
    adam_epsilon: float = Field(1e-8, gt=0, le=1)
    lr_scheduler_type: Literal[
        "linear", "cosine", "constant", "constant_with_warmup", "polynomial"
    ] = "cosine"
    warmup_steps: float = Field(
        0.1, ge=0, le=MOST, description="Steps; a value below 1 is a share of all steps."
    )
    weight_decay: float = Field(0.0, ge=0, le=1000)
    max_grad_norm: float = Field(1.0, ge=0)
    seed: int = Field(42, ge=0, le=2**32 - 1)
    data_seed: int | None = Field(None, ge=0, le=2**32 - 1)
    gradient_checkpointing: bool | None = None
    neftune_noise_alpha: float | None = Field(None, gt=0, le=1000)
    logging_steps: int = Field(1, ge=1, le=MOST)


class Distributed(Strict):
    """How the work is spread over devices."""

    strategy: Literal["auto", "none", "ddp"] = Field(
        "auto",
        description="`ddp`: processes on one host share the rows of each step. `auto`: one process "
        "for each GPU where the task can be spread, one on a CPU.",
    )
    processes: int | None = Field(
        None, ge=1, le=64, description="Default: one for each GPU; with `ddp` on a CPU 2."
    )

"""`training`, `adapter` and `distributed`: the loop, and what of the model is trained."""

from typing import Annotated, Literal

from pydantic import Field

from trainer_core.spec.base import MOST, Strict

TargetModules = Literal["all-linear"] | Annotated[list[str], Field(min_length=1)]


class Training(Strict):
    """The loop; names as in Transformers' TrainingArguments."""

    learning_rate: float | None = Field(None, gt=0, le=10)
    num_train_epochs: float | None = Field(None, gt=0, le=10_000)
    max_steps: int | None = Field(None, ge=1, le=MOST, description="Wins over `num_train_epochs`.")
    per_device_train_batch_size: int | None = Field(None, ge=1, le=65_536)
    per_device_eval_batch_size: int | None = Field(None, ge=1, le=65_536)
    gradient_accumulation_steps: int | None = Field(None, ge=1, le=65_536)
    optim: Literal["adamw_torch", "adamw_torch_fused", "adafactor", "sgd"] = "adamw_torch_fused"
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


class LoraAdapter(Strict):
    """Low-rank adapter (PEFT's LoraConfig)."""

    type: Literal["lora"]
    r: int = Field(16, ge=1, le=1024)
    lora_alpha: float = Field(32, gt=0, le=65_536)
    lora_dropout: float = Field(0.05, ge=0, lt=1)
    target_modules: TargetModules = "all-linear"
    modules_to_save: list[str] = Field(default_factory=list)
    use_rslora: bool = False
    bias: Literal["none", "all", "lora_only"] = "none"


class Distributed(Strict):
    """How the work is spread over devices."""

    strategy: Literal["auto", "none"] = "auto"

"""`adapter`: what of the model is trained, if not all of it."""

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from trainer_core.spec.base import MOST, Strict

ModuleName = Annotated[str, StringConstraints(min_length=1, max_length=512)]
ModuleNames = Annotated[list[ModuleName], Field(min_length=1, max_length=1000)]
TargetModules = Literal["all-linear"] | ModuleNames
Initialization = (
    bool
    | Literal["gaussian", "orthogonal", "olora", "pissa", "eva", "corda", "loftq"]
    | Annotated[str, StringConstraints(pattern=r"^pissa_niter_[1-9][0-9]{0,2}$")]
)
_SAVED = "Modules that are trained whole beside the adapter, such as `lm_head`."


class LoraAdapter(Strict):
    """Low-rank adapter (PEFT's LoraConfig)."""

    type: Literal["lora"]
    r: int = Field(16, ge=1, le=1024)
    lora_alpha: float = Field(32, gt=0, le=65_536)
    lora_dropout: float = Field(0.05, ge=0, lt=1)
    target_modules: TargetModules = "all-linear"
    modules_to_save: list[ModuleName] = Field(default_factory=list, description=_SAVED)
    use_rslora: bool = Field(False, description="Scale by alpha/√r, which suits high ranks.")
    use_dora: bool = Field(False, description="Train the magnitudes of the weights as well.")
    init_lora_weights: Initialization = Field(
        True,
        description="How A and B begin: `true` as in the paper, `gaussian`, `orthogonal`; from the "
        "base's weights: `olora`, `pissa`, `pissa_niter_16`, `loftq` (from the 4-bit error); from "
        "training rows: `eva`, `corda`. `false`: both at random.",
    )
    bias: Literal["none", "all", "lora_only"] = "none"

    @property
    def changes_base(self) -> bool:
        """Whether its beginning moves a part of the base's weights into the adapter."""
        return str(self.init_lora_weights).startswith(("olora", "pissa", "corda"))


class AdaLoraAdapter(Strict):
    """Low-rank adapter whose ranks are a budget that moves between layers (AdaLoraConfig)."""

    type: Literal["adalora"]
    init_r: int = Field(12, ge=2, le=1024, description="Rank of every layer at the beginning.")
    target_r: int = Field(8, ge=1, le=1023, description="Average rank at the end; below `init_r`.")
    lora_alpha: float = Field(32, gt=0, le=65_536)
    lora_dropout: float = Field(0.05, ge=0, lt=1)
    target_modules: TargetModules = "all-linear"
    modules_to_save: list[ModuleName] = Field(default_factory=list, description=_SAVED)
    tinit: float = Field(
        0.1, ge=0, le=MOST, description="Steps before ranks fall; below 1: a share of all steps."
    )
    tfinal: float = Field(
        0.3, ge=0, le=MOST, description="Steps at the end with fixed ranks; below 1: a share."
    )
    delta_t: int = Field(1, ge=1, le=MOST, description="Steps between two allocations.")
    orth_reg_weight: float = Field(
        0.5, ge=0, le=1000, description="Weight of the penalty that keeps A and B orthogonal; the "
        "reported training loss holds it."
    )  # fmt: skip


class Ia3Adapter(Strict):
    """Learned factors for keys, values and feed-forward layers (PEFT's IA3Config)."""

    type: Literal["ia3"]
    target_modules: TargetModules | None = Field(
        None, description="Default: what PEFT knows for the model's architecture."
    )
    feedforward_modules: list[ModuleName] | None = Field(
        None,
        max_length=1000,
        description="Those of `target_modules` whose inputs are scaled instead of their outputs.",
    )
    modules_to_save: list[ModuleName] = Field(default_factory=list, description=_SAVED)


class VeraAdapter(Strict):
    """Two trained vectors per layer around one frozen random projection (PEFT's VeraConfig)."""

    type: Literal["vera"]
    r: int = Field(256, ge=1, le=8192)
    vera_dropout: float = Field(0.0, ge=0, lt=1)
    d_initial: float = Field(0.1, gt=0, le=10)
    projection_prng_key: int = Field(0, ge=0, le=2**32 - 1)
    target_modules: TargetModules = "all-linear"
    modules_to_save: list[ModuleName] = Field(default_factory=list, description=_SAVED)


class LayerNormAdapter(Strict):
    """The norms alone are trained (PEFT's LNTuningConfig)."""

    type: Literal["layernorm"]
    target_modules: ModuleNames | None = Field(
        None, description="Default: every norm of the model."
    )
    modules_to_save: list[ModuleName] = Field(default_factory=list, description=_SAVED)


class FreezeAdapter(Strict):
    """No new weights: only those parameters of the model itself are trained that a pattern fits."""

    type: Literal["freeze"]
    trainable_patterns: list[ModuleName] = Field(
        min_length=1,
        max_length=1000,
        description="Names of parameters with `*`, such as `lm_head.*` or `model.layers.2[0-3].*`; "
        "all others are frozen, but for the head of a classifier or of mlm, and for embeddings "
        "that new tokens are added to. The whole model is published.",
    )


PeftAdapter = LoraAdapter | AdaLoraAdapter | Ia3Adapter | VeraAdapter | LayerNormAdapter
Adapter = Annotated[PeftAdapter | FreezeAdapter, Field(discriminator="type")]

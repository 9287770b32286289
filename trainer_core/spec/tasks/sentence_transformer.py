"""`task: {type: sentence_transformer}`: vectors of texts that mean the same lie close together."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field, StringConstraints

from trainer_core.spec.base import Strict, TaskBlock
from trainer_core.spec.model import ModelRef

EmbeddingLoss = Literal[
    "auto",
    "mnrl", "cached_mnrl", "gist", "cached_gist", "mega_batch_margin", "triplet",
    "cosent", "angle", "cosine_similarity", "contrastive", "online_contrastive", "softmax",
    "batch_all_triplet", "batch_hard_triplet", "batch_semi_hard_triplet",
    "batch_hard_soft_margin_triplet",
    "mse", "embed_distill", "margin_mse", "distill_kl_div", "contrastive_tension",
]  # fmt: skip
Prompt = Annotated[str, StringConstraints(min_length=1, max_length=4096)]
PromptColumn = Literal[
    "anchor", "positive", "negative", "sentence1", "sentence2", "sentence3", "text"
]
Pattern = Annotated[str, StringConstraints(min_length=1, max_length=256)]
Dimension = Annotated[int, Field(ge=1, le=65_536)]
DimensionWeight = Annotated[float, Field(gt=0, le=1_000_000)]


class LossArgs(Strict):
    """Settings of the loss, by the names of Sentence Transformers; None: the loss's own default.

    Each works with some losses only, and is refused with the others.
    """

    scale: float | None = Field(
        None, gt=0, le=10_000, description="Factor of similarities: 1 / temperature (usually 20)."
    )
    temperature: float | None = Field(None, gt=0, le=1000)
    mini_batch_size: int | None = Field(
        None,
        ge=1,
        le=65_536,
        description="Cached losses: rows that are embedded at once; memory depends on it and not "
        "on the batch (usually 32).",
    )
    margin: float | None = Field(None, ge=0, le=1_000_000)
    positive_margin: float | None = Field(None, ge=-1, le=1)
    negative_margin: float | None = Field(None, ge=-1, le=1)
    margin_strategy: Literal["absolute", "relative"] | None = None
    contrast_anchors: bool | None = None
    contrast_positives: bool | None = None
    distance: Literal["cosine", "euclidean", "manhattan"] | None = None
    similarity: Literal["cosine", "dot"] | None = None
    symmetric: bool | None = Field(
        None, description="Also find the anchor among the anchors of the batch, for its positive."
    )


class AdaptiveLayer(Strict):
    """AdaptiveLayerLoss: earlier layers learn as well, so that later ones may be taken away."""

    n_layers_per_step: int = Field(
        1, ge=-1, le=1000, description="Layers drawn for each step; -1: all of them."
    )
    last_layer_weight: float = Field(1.0, gt=0, le=1_000_000)
    prior_layers_weight: float = Field(1.0, gt=0, le=1_000_000)
    kl_div_weight: float = Field(1.0, ge=0, le=1_000_000)
    kl_temperature: float = Field(0.3, ge=0, le=1000, description="0: no divergence is added.")


class SentenceTransformerTask(TaskBlock):
    """Training of a model that turns texts into vectors; names as in Sentence Transformers."""

    without_effect_on_rows: ClassVar[frozenset[str]] = frozenset(
        {
            "loss", "loss_args", "guide", "matryoshka_dims", "matryoshka_weights",
            "matryoshka_dims_per_step", "adaptive_layer", "pooling_mode", "normalize",
            "batch_sampler", "learning_rate_mapping", "evaluator",
        }
    )  # fmt: skip

    type: Literal["sentence_transformer"]
    loss: EmbeddingLoss = Field(
        "auto",
        description="`auto` by the data's shape: `mnrl` for anchors with positives (and "
        "negatives), `cosent` for pairs with a number, `contrastive` for pairs with 0 or 1, "
        "`softmax` for pairs with a class, `batch_all_triplet` for texts with a class, "
        "`margin_mse` for triplets with numbers, `mse` for texts with a vector, "
        "`contrastive_tension` for texts alone.",
    )
    loss_args: LossArgs = LossArgs()
    guide: ModelRef | None = Field(
        None, description="`gist` and `cached_gist`: the model that sorts out false negatives."
    )
    matryoshka_dims: list[Dimension] | None = Field(
        None,
        min_length=1,
        max_length=32,
        description="MatryoshkaLoss: vectors that are cut to these lengths serve as well.",
    )
    matryoshka_weights: list[DimensionWeight] | None = None
    matryoshka_dims_per_step: int = Field(
        -1, ge=-1, le=32, description="Lengths drawn for each step; -1: all of them."
    )
    adaptive_layer: AdaptiveLayer | None = None
    max_length: int | None = Field(
        None,
        ge=4,
        le=131_072,
        description="Tokens per text, in training and in what is published. Default: 128.",
    )
    prompts: Prompt | dict[PromptColumn, Prompt] | None = Field(
        None,
        description="What is put before each text, or before those of some columns; published "
        "with the model (`anchor` as its prompt `query`, `positive` as `document`).",
    )
    pooling_mode: (
        Literal["cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken"] | None
    ) = Field(
        None,
        description="Default: the model's own; for one without: `mean`, for a causal language "
        "model `lasttoken`.",
    )
    normalize: bool | None = Field(
        None, description="Vectors of length 1. Default: as the model does it."
    )
    batch_sampler: Literal["auto", "batch_sampler", "no_duplicates", "group_by_label"] = Field(
        "auto",
        description="`no_duplicates` keeps equal texts out of one batch, where they would be false "
        "negatives; `group_by_label` puts texts of the same class together. `auto`: as the loss "
        "needs it.",
    )
    learning_rate_mapping: dict[Pattern, Annotated[float, Field(gt=0, le=10)]] = Field(
        default_factory=dict,
        max_length=32,
        description="Regular expression of parameters' names → their learning rate.",
    )
    evaluator: Literal["auto", "none", "similarity", "binary", "triplet", "ir"] = Field(
        "auto",
        description="What is measured of the validation rows: correlation with their numbers, "
        "pairs told apart, triplets in the right order, positives found among all. `auto`: all "
        "that their shape allows.",
    )

    def prompt(self, column: str) -> str:
        """What stands before the texts of a column; empty where nothing does."""
        if isinstance(self.prompts, str):
            return self.prompts
        return {str(name): text for name, text in (self.prompts or {}).items()}.get(column, "")

"""The losses as modules of Sentence Transformers, from a task's block."""

from collections.abc import Callable
from typing import Any

from trainer_core.embedding.losses import NUMBERS, Shape
from trainer_core.errors import InvalidSpec
from trainer_core.spec import SentenceTransformerTask

CLASSES = {
    "mnrl": "MultipleNegativesRankingLoss",
    "cached_mnrl": "CachedMultipleNegativesRankingLoss",
    "gist": "GISTEmbedLoss",
    "cached_gist": "CachedGISTEmbedLoss",
    "mega_batch_margin": "MegaBatchMarginLoss",
    "triplet": "TripletLoss",
    "cosent": "CoSENTLoss",
    "angle": "AnglELoss",
    "cosine_similarity": "CosineSimilarityLoss",
    "contrastive": "ContrastiveLoss",
    "online_contrastive": "OnlineContrastiveLoss",
    "softmax": "SoftmaxLoss",
    "batch_all_triplet": "BatchAllTripletLoss",
    "batch_hard_triplet": "BatchHardTripletLoss",
    "batch_semi_hard_triplet": "BatchSemiHardTripletLoss",
    "batch_hard_soft_margin_triplet": "BatchHardSoftMarginTripletLoss",
    "mse": "MSELoss",
    "embed_distill": "EmbedDistillLoss",
    "margin_mse": "MarginMSELoss",
    "distill_kl_div": "DistillKLDivLoss",
    "contrastive_tension": "ContrastiveTensionLossInBatchNegatives",
}
_BATCH_TRIPLETS = "batch_"


def loss_module(
    model: Any, guide: Any, task: SentenceTransformerTask, name: str, shape: Shape
) -> Any:
    """The loss `name` over `model`, with what is wrapped around it.

    Raises InvalidSpec where the sizes of vectors do not fit.
    """
    from sentence_transformers.sentence_transformer import losses

    _check_sizes(task, model.get_embedding_dimension(), name, shape)
    options = _options(task, name)
    if guide is not None:
        options["guide"] = guide
    if name == "softmax":
        options |= {
            "embedding_dimension": model.get_embedding_dimension(),
            "num_labels": max(2, len(shape.labels)),
        }
    loss = getattr(losses, CLASSES[name])(model, **options)
    if task.matryoshka_dims is not None:
        loss = losses.MatryoshkaLoss(
            model,
            loss,
            task.matryoshka_dims,
            task.matryoshka_weights,
            task.matryoshka_dims_per_step,
        )
    if task.adaptive_layer is not None:
        loss = losses.AdaptiveLayerLoss(model, loss, **task.adaptive_layer.model_dump())
    return loss


def _options(task: SentenceTransformerTask, name: str) -> dict[str, Any]:
    """Arguments of the loss's class: what is said, by the library's names."""
    said = task.loss_args.model_dump(exclude_none=True)
    if (distance := said.pop("distance", None)) is not None:
        said["distance_metric"] = _distance(name, distance)
    if (similarity := said.pop("similarity", None)) is not None:
        said["similarity_fct"] = _similarity(name, similarity)
    if said.pop("symmetric", False):
        said |= {"directions": ("query_to_doc", "doc_to_query"), "partition_mode": "per_direction"}
    if name == "triplet" and "margin" in said:
        said["triplet_margin"] = said.pop("margin")
    return said


def _distance(name: str, wanted: str) -> Callable[..., Any]:
    from sentence_transformers.sentence_transformer import losses

    if name.startswith(_BATCH_TRIPLETS):
        functions = losses.BatchHardTripletLossDistanceFunction
        found: Callable[..., Any] = getattr(functions, f"{wanted}_distance")
        return found
    metrics = losses.TripletDistanceMetric if name == "triplet" else losses.SiameseDistanceMetric
    names = {"cosine": "COSINE" if name == "triplet" else "COSINE_DISTANCE"}
    metric: Callable[..., Any] = getattr(metrics, names.get(wanted, wanted.upper()))
    return metric


def _similarity(name: str, wanted: str) -> Callable[..., Any]:
    """Between all texts of a batch, or between pairs of them."""
    from sentence_transformers import util

    of_all = {"cosine": util.cos_sim, "dot": util.dot_score}
    of_pairs = {"cosine": util.pairwise_cos_sim, "dot": util.pairwise_dot_score}
    found: Callable[..., Any] = (of_all if name.endswith("mnrl") else of_pairs)[wanted]
    return found


def _check_sizes(task: SentenceTransformerTask, size: int, name: str, shape: Shape) -> None:
    too_large = [dim for dim in task.matryoshka_dims or [] if dim > size]
    if too_large:
        raise InvalidSpec(
            f"task.matryoshka_dims has {max(too_large)}, but this model makes vectors of {size}"
            " numbers: leave larger ones out",
            "task.matryoshka_dims",
        )
    if name in ("mse", "embed_distill") and shape.label == NUMBERS and shape.width != size:
        raise InvalidSpec(
            f"the rows have vectors of {shape.width} numbers, but this model makes {size}: loss"
            f" '{name}' needs a teacher whose vectors are as long",
            "task.loss",
        )

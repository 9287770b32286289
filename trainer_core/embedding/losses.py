"""The losses of sentence embeddings: the data, settings and batches that each needs. Light."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from trainer_core.errors import InvalidSpec
from trainer_core.spec import SentenceTransformerTask, TrainSpec
from trainer_core.task_facts import block_of

MAX_LENGTH = 128
"""Tokens of a text, unless a spec says more."""
MANY = 32
"""Texts of a row at most."""
NUMBER, NUMBERS, CLASS, BINARY, NONE = "number", "numbers", "class", "binary", "none"
_SIGNS = {
    NONE: "no label",
    BINARY: "a label that is 0 or 1",
    CLASS: "a class",
    NUMBER: "a number",
    NUMBERS: "a list of numbers",
}


@dataclass(frozen=True)
class LossKind:
    """One loss.

    `texts` (least, most) and `labels` say which rows it takes, `args` which fields of `loss_args`.
    With `each_row` it is a mean over rows that know nothing of each other, so that accumulated
    batches are as one; all others compare the rows of a batch. A `cached` one embeds a batch piece
    by piece. `wrapped` says which of the losses around a loss it works with.
    """

    texts: tuple[int, int]
    labels: tuple[str, ...]
    args: tuple[str, ...] = ()
    each_row: bool = False
    cached: bool = False
    sampler: str = "batch_sampler"
    distances: tuple[str, ...] = ("cosine", "euclidean", "manhattan")
    wrapped: tuple[str, ...] = ("matryoshka_dims", "adaptive_layer")


_RANKED = ("scale", "symmetric", "similarity")
_GUIDED = ("temperature", "margin", "margin_strategy", "contrast_anchors", "contrast_positives")
_CLASSES = (CLASS, BINARY)
_IN_MATRYOSHKA = ("matryoshka_dims",)


def _grouped(*args: str) -> LossKind:
    distances = ("cosine", "euclidean")
    return LossKind((1, 1), _CLASSES, args, sampler="group_by_label", distances=distances)


LOSSES: dict[str, LossKind] = {
    "mnrl": LossKind((2, MANY), (NONE,), _RANKED, sampler="no_duplicates"),
    "cached_mnrl": LossKind(
        (2, MANY),
        (NONE,),
        (*_RANKED, "mini_batch_size"),
        cached=True,
        sampler="no_duplicates",
        wrapped=_IN_MATRYOSHKA,
    ),
    "gist": LossKind((2, 3), (NONE,), _GUIDED, sampler="no_duplicates"),
    "cached_gist": LossKind(
        (2, MANY),
        (NONE,),
        (*_GUIDED, "mini_batch_size"),
        cached=True,
        sampler="no_duplicates",
        wrapped=_IN_MATRYOSHKA,
    ),
    "mega_batch_margin": LossKind(
        (2, 2),
        (NONE,),
        ("positive_margin", "negative_margin", "mini_batch_size"),
        cached=True,
        sampler="no_duplicates",
        wrapped=_IN_MATRYOSHKA,
    ),
    "triplet": LossKind((3, 3), (NONE,), ("distance", "margin"), each_row=True),
    "cosent": LossKind((2, 2), (NUMBER, BINARY), ("scale",)),
    "angle": LossKind((2, 2), (NUMBER, BINARY), ("scale",)),
    "cosine_similarity": LossKind((2, 2), (NUMBER, BINARY), each_row=True),
    "contrastive": LossKind((2, 2), (BINARY,), ("distance", "margin"), each_row=True),
    "online_contrastive": LossKind((2, 2), (BINARY,), ("distance", "margin")),
    "softmax": LossKind((2, 2), _CLASSES, each_row=True, wrapped=("adaptive_layer",)),
    "batch_all_triplet": _grouped("distance", "margin"),
    "batch_hard_triplet": _grouped("distance", "margin"),
    "batch_semi_hard_triplet": _grouped("distance", "margin"),
    "batch_hard_soft_margin_triplet": _grouped("distance"),
    "mse": LossKind((1, MANY), (NUMBERS,), each_row=True),
    "embed_distill": LossKind((1, MANY), (NUMBERS,), each_row=True),
    "margin_mse": LossKind((3, MANY), (NUMBER, NUMBERS), ("similarity",), each_row=True),
    "distill_kl_div": LossKind((3, MANY), (NUMBERS,), ("similarity", "temperature"), each_row=True),
    "contrastive_tension": LossKind((1, 1), (NONE,), ("scale",), wrapped=()),
}


@dataclass(frozen=True)
class Shape:
    """What the rows are, as preparation found it: texts a row, kind of label, its classes, and how
    many numbers a list of them has."""

    texts: int
    label: str
    labels: tuple[str, ...] = ()
    width: int = 0

    @classmethod
    def of(cls, facts: Mapping[str, Any]) -> "Shape":
        """From the facts of prepared rows."""
        labels = tuple(facts.get("labels", ()))
        return cls(facts["texts"], facts["label"], labels, facts.get("width", 0))

    def __str__(self) -> str:
        return f"{self.texts} text{'s' if self.texts > 1 else ''} and {_SIGNS[self.label]}"


def default_loss(shape: Shape) -> str | None:
    """The loss for a shape of data; None where there is none."""
    if shape.label == NONE:
        return "contrastive_tension" if shape.texts == 1 else "mnrl"
    if shape.texts == 1:
        return {CLASS: "batch_all_triplet", BINARY: "batch_all_triplet", NUMBERS: "mse"}.get(
            shape.label
        )
    if shape.texts == 2:
        return {NUMBER: "cosent", BINARY: "contrastive", CLASS: "softmax", NUMBERS: "mse"}[
            shape.label
        ]
    return "margin_mse" if shape.label in (NUMBER, NUMBERS) else None


def settled_loss(spec: TrainSpec, shape: Shape) -> str:
    """The loss of a run, given or chosen by the shape of its data.

    Raises InvalidSpec where it does not fit the data, or the settings do not fit it.
    """
    task = block_of(spec, SentenceTransformerTask)
    name = default_loss(shape) if task.loss == "auto" else task.loss
    if name is None or not _fits(LOSSES[name], shape):
        raise InvalidSpec(_misfit(task, shape), "task.loss")
    _refuse_odd_width(name, shape)
    for field, message in loss_problems(spec, name):
        raise InvalidSpec(message, field)
    if needs_others(name, shape) and spec.training.per_device_train_batch_size == 1:
        field = "training.per_device_train_batch_size"
        text = f"{field} is 1, but loss '{name}' compares each row with others of its batch: raise"
        raise InvalidSpec(f"{text} it to 2 or more", field)
    return name


def needs_others(name: str, shape: Shape) -> bool:
    """Whether a row alone has no loss: it is compared with other rows, and brings no negative."""
    kind = LOSSES[name]
    return shape.texts == 2 and not kind.each_row


def loss_problems(spec: TrainSpec, name: str) -> Iterator[tuple[str, str]]:
    """(field, message) of each setting that does not go with the loss `name`."""
    task = block_of(spec, SentenceTransformerTask)
    kind = LOSSES[name]
    for field, value in task.loss_args:
        if value is not None and field not in kind.args:
            yield (
                f"task.loss_args.{field}",
                f"task.loss_args.{field} has no effect with loss '{name}': leave it out",
            )
    distance = task.loss_args.distance
    if distance is not None and "distance" in kind.args and distance not in kind.distances:
        yield (
            "task.loss_args.distance",
            f"task.loss_args.distance is '{distance}', which loss '{name}' does not know: use "
            + " or ".join(f"'{d}'" for d in kind.distances),
        )
    yield from _guide(task, name)
    yield from _wrappers(task, name)
    yield from _batches(spec, name)


def sampler_of(task: SentenceTransformerTask, name: str) -> str:
    """How rows are put into batches."""
    return LOSSES[name].sampler if task.batch_sampler == "auto" else task.batch_sampler


def _guide(task: SentenceTransformerTask, name: str) -> Iterator[tuple[str, str]]:
    guided = name in ("gist", "cached_gist")
    if guided and task.guide is None:
        yield (
            "task.guide",
            f"task.guide is missing: loss '{name}' needs a model that sorts out false negatives",
        )
    if not guided and task.guide is not None:
        yield "task.guide", f"task.guide has no effect with loss '{name}': leave it out"


def _wrappers(task: SentenceTransformerTask, name: str) -> Iterator[tuple[str, str]]:
    for field in ("matryoshka_dims", "adaptive_layer"):
        if getattr(task, field) is not None and field not in LOSSES[name].wrapped:
            yield (
                f"task.{field}",
                f"task.{field} cannot be used with loss '{name}': leave it out, or choose another "
                "loss",
            )


def _batches(spec: TrainSpec, name: str) -> Iterator[tuple[str, str]]:
    training = spec.training
    accumulation = training.gradient_accumulation_steps or 1
    if accumulation > 1 and not LOSSES[name].each_row:
        yield (
            "training.gradient_accumulation_steps",
            f"training.gradient_accumulation_steps is {accumulation}, but loss '{name}' compares "
            "the rows of one batch, so accumulated batches are not one large batch: set it to 1 "
            "and raise training.per_device_train_batch_size"
            + (
                " (a cached loss with a small mini_batch_size keeps memory low)" * _has_cached(name)
            ),
        )
    task = block_of(spec, SentenceTransformerTask)
    batch = training.per_device_train_batch_size
    if (
        sampler_of(task, name) == "group_by_label"
        and batch is not None
        and (batch < 4 or batch % 2)
    ):
        yield (
            "training.per_device_train_batch_size",
            f"training.per_device_train_batch_size is {batch}, but batches that are grouped by "
            "label need an even number of rows, 4 or more",
        )


def _has_cached(name: str) -> bool:
    return not LOSSES[name].cached and f"cached_{name}" in LOSSES


def _fits(kind: LossKind, shape: Shape) -> bool:
    return kind.texts[0] <= shape.texts <= kind.texts[1] and shape.label in kind.labels


def _misfit(task: SentenceTransformerTask, shape: Shape) -> str:
    fitting = [name for name, kind in LOSSES.items() if _fits(kind, shape)]
    rows = f"the rows have {shape}"
    hint = ""
    if shape.label in (CLASS, BINARY) and shape.texts > 1:
        hint = "; whole numbers that say how alike texts are belong into the column `score`"
    if not fitting:
        return f"{rows}, which no loss can use: change the data or data.train[].columns{hint}"
    said = f"task.loss is '{task.loss}', but {rows}"
    return f"{said}: use {', '.join(fitting)}, or other columns (data.train[].columns){hint}"


def _refuse_odd_width(name: str, shape: Shape) -> None:
    """How many numbers a row needs, where the loss alone decides it."""
    negatives = shape.texts - 2
    allowed = {
        "margin_mse": (negatives, negatives + 1) if shape.label == NUMBERS else (1,),
        "distill_kl_div": (shape.texts - 1,),
    }.get(name)
    has = shape.width if shape.label == NUMBERS else 1
    if allowed is None or (has in allowed and (shape.label == NUMBERS or negatives == 1)):
        return
    raise InvalidSpec(
        f"loss '{name}' needs {' or '.join(map(str, allowed))} numbers for a row of {shape.texts} "
        f"texts, and there {'is 1' if has == 1 else f'are {has}'}: give the scores of the anchor "
        "with each other text (margin_mse: or their differences from the first one)",
        "task.loss",
    )

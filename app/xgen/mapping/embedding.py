"""The block `task` of sentence transformers."""

from collections.abc import Iterator, Mapping
from typing import Any

from app.xgen.mapping.draft import Draft, shown
from trainer_core.embedding.loss_modules import CLASSES
from trainer_core.embedding.losses import LOSSES

LOSS_OF = {**{given: name for name, given in CLASSES.items()}, **{name: name for name in CLASSES}}
_EVALUATORS = {
    "EmbeddingSimilarityEvaluator": "similarity",
    "BinaryClassificationEvaluator": "binary",
    "TripletEvaluator": "triplet",
    "InformationRetrievalEvaluator": "ir",
    **{name: name for name in ("auto", "none", "similarity", "binary", "triplet", "ir")},
}
_GUIDED = ("gist", "cached_gist")
_BY_LOSS = {
    "st_cache_minibatch": "mini_batch_size",
    "st_triplet_margin": "margin",
    "st_cache_gist_temperature": "temperature",
}
_FIELDS = (
    *("st_pooling_mode", "st_dense_feature", "st_loss_func", "st_evaluation", "st_guide_model"),
    *_BY_LOSS,
    *("st_use_adaptivelayerloss", "st_adaptivelayerloss_n_layer"),
)


def loss_of(draft: Draft) -> str:
    """Return the loss by our name; `auto` where nobody chose one and the usual one has no score."""
    form = draft.form
    if "st_loss_func" not in form.model_fields_set and not form.dataset_last_column:
        return "auto"
    return LOSS_OF.get(form.st_loss_func, "auto")


def accumulates(loss: str) -> bool:
    """Say whether batches of this loss may be added up; of `auto` nobody knows."""
    return loss in LOSSES and LOSSES[loss].each_row


def describe(draft: Draft) -> None:
    """Fill what sentence transformers have; other tasks have nothing of it."""
    form = draft.form
    if draft.task != "sentence_transformer":
        draft.without_effect(_FIELDS, "it is for sentence transformers")
        return
    loss = loss_of(draft)
    draft.put("task.loss", loss, "st_loss_func")
    draft.put("task.pooling_mode", form.st_pooling_mode, "st_pooling_mode")
    _word(draft, "st_loss_func", LOSS_OF)
    if form.st_evaluation:
        _word(draft, "st_evaluation", _EVALUATORS)
        evaluator = _EVALUATORS.get(form.st_evaluation, "auto")
        draft.put("task.evaluator", evaluator, "st_evaluation")
    draft.without_effect(["st_dense_feature"], "no dense layer is added behind the pooling")
    _arguments(draft, loss)
    _guide(draft, loss)
    _layers(draft)


def _word(draft: Draft, name: str, known: Mapping[str, str]) -> None:
    given = getattr(draft.form, name)
    if given not in known:
        ways = ", ".join(known)
        draft.refuse(name, f"is {shown(given)}, which is not known: use one of {ways}")


def _arguments(draft: Draft, loss: str) -> None:
    taken = dict(_taken(loss))
    for name, argument in _BY_LOSS.items():
        if name in taken:
            draft.put(f"task.loss_args.{argument}", getattr(draft.form, name), name)
        else:
            draft.without_effect([name], f"loss {shown(loss)} has no such setting")


def _taken(loss: str) -> Iterator[tuple[str, Any]]:
    args = LOSSES[loss].args if loss in LOSSES else ()
    for name, argument in _BY_LOSS.items():
        fits = {"margin": loss == "triplet", "temperature": loss in _GUIDED}
        if argument in args and fits.get(argument, True):
            yield name, argument


def _guide(draft: Draft, loss: str) -> None:
    name = draft.form.st_guide_model
    if loss not in _GUIDED:
        draft.without_effect(["st_guide_model"], f"loss {shown(loss)} has no guide")
        return
    where = "folder" if name.startswith("/") else "hub"
    draft.put("task.guide", {"source": where, "name_or_path": name}, "st_guide_model")


def _layers(draft: Draft) -> None:
    form = draft.form
    if form.st_use_adaptivelayerloss:
        layers = {"n_layers_per_step": form.st_adaptivelayerloss_n_layer}
        draft.put("task.adaptive_layer", layers, "st_use_adaptivelayerloss")
    else:
        why = "st_use_adaptivelayerloss is false"
        draft.without_effect(["st_adaptivelayerloss_n_layer"], why)

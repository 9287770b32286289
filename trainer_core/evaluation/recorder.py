"""What a model makes of each validation row, by its task's own trainer."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any

from trainer_core.embedding.measures import EmbeddingScores
from trainer_core.evaluation.base import Groups
from trainer_core.measures import LabelScores, NumberScores
from trainer_core.token_scores import TokenScores

_ACCURACY = "mean_token_accuracy"


def record(trainer: Any) -> Groups:
    """Every validation row alone (in batches where its loss depends on others), in order.

    Draws from no random generator of the training. Raises Interrupted when a signal asks to stop.
    """
    scores = trainer.scores()
    rows: dict[str, list[Any]] = defaultdict(list)
    with trainer.apart_from_training():
        batches = _Alone(trainer) if trainer.rows_stand_alone else trainer.get_eval_dataloader()
        with trainer.measuring(batches):
            for inputs in batches:
                trainer.flow.stop.check()
                for name, values in _of_batch(trainer, scores, inputs).items():
                    rows[name] += values
                trainer.flow.say_it_lives(trainer.state)
    _noted(trainer).clear()  # else the next evaluation takes the last row for one of its own
    whole = {name: values for name, values in rows.items() if len(values) == len(rows["loss"])}
    return [whole, *(scores.groups() if isinstance(scores, EmbeddingScores) else ())]


def _of_batch(trainer: Any, scores: Any, inputs: Any) -> dict[str, list[Any]]:
    loss_only = scores is None or not scores.needs_logits
    weight = trainer.batch_weight(inputs)
    loss, logits, _ = trainer.prediction_step(trainer.model, inputs, loss_only)
    found = {"loss": loss.item(), "weight": weight, **_measured(trainer)}
    labels = _labels(scores, inputs, logits)
    if scores is not None:
        scores.add(inputs, logits, weight)
    return {name: [value] for name, value in found.items()} | labels


class _Alone:
    """Every validation row as a batch of its own."""

    def __init__(self, trainer: Any) -> None:
        self._rows, self._collate = trainer.eval_dataset, trainer.data_collator

    def __iter__(self) -> Iterator[Any]:
        for number in range(len(self._rows)):
            yield self._collate([self._rows[number]])


def _measured(trainer: Any) -> dict[str, float]:
    """The library's own measures of the batch."""
    found = {name: float(values[-1]) for name, values in _noted(trainer).items() if values}
    for values in _noted(trainer).values():
        del values[:-1]
    return found


def _noted(trainer: Any) -> MutableMapping[str, list[float]]:
    noted: MutableMapping[str, list[float]] = getattr(trainer, "_metrics", {}).get("eval", {})
    return noted


def _labels(scores: Any, inputs: Mapping[str, Any], logits: Any) -> dict[str, list[Any]]:
    if isinstance(scores, NumberScores):
        said = logits.float().reshape(-1).tolist()
        return {"number": inputs["labels"].float().reshape(-1).tolist(), "said": said}
    if isinstance(scores, TokenScores):
        alone = TokenScores()
        alone.add(inputs, logits, 0.0)
        return {_ACCURACY: [alone.results(0.0)[_ACCURACY]]}
    if not isinstance(scores, LabelScores):
        return {}
    if scores.threshold is not None:
        predicted = (logits.sigmoid() > scores.threshold).int().tolist()
        return {"label": inputs["labels"].int().tolist(), "predicted": predicted}
    labels = inputs["labels"].tolist()
    found = {"label": labels, "predicted": logits.argmax(-1).tolist()}
    if logits.shape[-1] == 2:
        found["score"] = (logits[:, 1] - logits[:, 0]).tolist()
    return found

"""Pairs of answers: batches of them, and which losses and references go together."""

from collections.abc import Iterator
from typing import Any

from trainer_core.meter import Meter
from trainer_core.problems import Problem
from trainer_core.references import reference_problems
from trainer_core.spec import DpoTask
from trainer_core.task_rules import dotted

_SMOOTHED = {"robust", "exo_pair", "aot", "aot_unpaired"}
_DIVERGENT = {
    "sigmoid",
    "sigmoid_norm",
    "hinge",
    "ipo",
    "exo_pair",
    "robust",
    "discopop",
    "sft",
}
_SORTED = {"aot", "aot_unpaired"}
_REFERENCES = ("ref_chosen_logps", "ref_rejected_logps")


class PairCollator:
    """Tensors of shape (2 · pairs, longest): first all chosen sides, then all rejected ones.

    `completion_mask` is 1 where a token carries loss. Padding is masked by length.
    """

    def __init__(self, pad_token_id: int, meter: Meter | None = None) -> None:
        self.pad_token_id = pad_token_id
        self._meter = meter

    def __call__(self, rows: list[dict[str, Any]]) -> dict[str, Any]:
        """One batch of pairs."""
        import torch

        sides = [
            (row[f"{s}_ids"], row[f"{s}_labels"]) for s in ("chosen", "rejected") for row in rows
        ]
        lengths = [len(ids) for ids, _ in sides]
        if self._meter is not None:
            self._meter.fetched(len(rows), sum(lengths))
        width = max(lengths)
        fill = [(self.pad_token_id, 0)] * width
        batch = {
            "input_ids": [ids + [p for p, _ in fill[len(ids) :]] for ids, _ in sides],
            "attention_mask": [[1] * n + [0] * (width - n) for n in lengths],
            "completion_mask": [
                [int(label != -100) for label in labels] + [0] * (width - len(labels))
                for _, labels in sides
            ],
        }
        columns = {name: [row[name] for row in rows] for name in _REFERENCES if name in rows[0]}
        return {name: torch.tensor(values) for name, values in (batch | columns).items()}


def preference_problems(task: DpoTask, reference: str, *, adapted: bool) -> Iterator[Problem]:
    """What cannot work about a preference task whose reference is `reference`."""
    for field, message in (*_losses(task), *reference_problems(task, reference, adapted=adapted)):
        yield Problem(pointer=f"/task/{field}", message=f"task.{dotted(field)} {message}")


def _losses(task: DpoTask) -> Iterator[tuple[str, str]]:
    losses = set[str](task.loss_type)
    if task.loss_weights is not None and len(task.loss_weights) != len(task.loss_type):
        yield (
            "loss_weights",
            f"has {len(task.loss_weights)} numbers for {len(task.loss_type)} losses: give one each",
        )
    if task.use_weighting and losses & _SORTED:
        yield "use_weighting", f"cannot weigh the pairs that {_listed(losses & _SORTED)} sorts"
    if task.use_weighting and "sft" in losses:
        yield "use_weighting", "cannot weigh the tokens of 'sft', which is no loss of pairs"
    if task.differs("discopop_tau") and "discopop" not in losses:
        yield "discopop_tau", "needs loss_type 'discopop': leave it out"
    yield from _smoothing(task, losses)
    yield from _divergence(task, losses)


def _smoothing(task: DpoTask, losses: set[str]) -> Iterator[tuple[str, str]]:
    if task.label_smoothing and not losses & _SMOOTHED:
        yield "label_smoothing", f"works only with loss_type {_listed(_SMOOTHED)}: leave it out"
    if "robust" in losses and task.label_smoothing >= 0.5:
        yield "label_smoothing", "must be below 0.5 with loss_type 'robust': lower it"
    if "exo_pair" in losses and not task.label_smoothing:
        yield "label_smoothing", "must be above 0 with loss_type 'exo_pair': 0.001 is usual"


def _divergence(task: DpoTask, losses: set[str]) -> Iterator[tuple[str, str]]:
    if task.f_divergence_type != "reverse_kl" and (others := losses - _DIVERGENT):
        yield (
            "f_divergence_type",
            f"is '{task.f_divergence_type}', which loss_type {_listed(others)} cannot use: leave it"
            " out",
        )
    if task.differs("f_alpha_divergence_coef") and task.f_divergence_type != "alpha_divergence":
        yield "f_alpha_divergence_coef", "needs f_divergence_type 'alpha_divergence': leave it out"


def _listed(names: set[str]) -> str:
    return ", ".join(f"'{name}'" for name in sorted(names))

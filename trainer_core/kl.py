"""Likelihood with a KL divergence from the model that was started from, on trained tokens."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from trainer_core.loop import IGNORED, ExactLoop

_TOKENS_AT_ONCE = 1024
"""More are computed in pieces, and again in the backward pass, to bound the memory."""


class KlLoop(ExactLoop):
    """Adds `kl_beta` · KL(model ‖ reference), summed over trained tokens as the likelihood is.

    `reference` is a frozen model, or None: the trained one with its adapter switched off.
    """

    kl_beta: float
    reference: Any

    def compute_loss(
        self,
        model: Any,
        inputs: Any,
        return_outputs: bool = False,  # noqa: FBT001, FBT002 - Trainer's signature
        num_items_in_batch: Any = None,
    ) -> Any:
        """Mean over the trained tokens of the step (alone: of the batch)."""
        import torch

        trainer: Any = self
        labels = inputs["labels"][:, 1:]
        learned = labels != IGNORED
        fed = {n: v for n, v in inputs.items() if n != "labels"} | {"use_cache": False}
        with torch.no_grad(), self._frozen() as frozen:
            other = frozen(**fed).logits[:, :-1][learned]
        outputs = model(**fed)
        values = _token_values(outputs.logits[:, :-1][learned], other, labels[learned])
        losses, kl, entropy, top = values
        if trainer.args.loss_type == "dft":
            losses = losses * (-losses).exp().detach()
        items = learned.sum() if num_items_in_batch is None else num_items_in_batch
        loss = (losses.sum() + self.kl_beta * kl.sum()) / torch.as_tensor(items).clamp(min=1)
        self._note(kl=kl, entropy=entropy, mean_token_accuracy=top)
        return (loss, outputs) if return_outputs else loss

    def _note(self, **values: Any) -> None:
        """Keep means for the library's own log."""
        trainer: Any = self
        measured = trainer._metrics["train" if trainer.model.training else "eval"]
        for name, each in values.items():
            measured[name].append(each.detach().float().mean().item() if len(each) else 0.0)

    @contextmanager
    def _frozen(self) -> Iterator[Any]:
        """The reference: without dropout, so that it draws no random number."""
        trainer: Any = self
        if self.reference is not None:
            yield self.reference
            return
        model = trainer.accelerator.unwrap_model(trainer.model)
        training = model.training
        model.eval()
        with model.disable_adapter():
            yield model
        model.train(training)


def _token_values(logits: Any, other: Any, targets: Any) -> tuple[Any, ...]:
    """Per token: negative log-likelihood, KL, entropy, whether the target is the likeliest."""
    import torch
    from torch.utils.checkpoint import checkpoint

    if len(targets) <= _TOKENS_AT_ONCE:
        return _piece(logits, other, targets)
    parts = zip(*(t.split(_TOKENS_AT_ONCE) for t in (logits, other, targets)), strict=True)
    pieces = [checkpoint(_piece, *part, use_reentrant=False) for part in parts]
    return tuple(torch.cat(column) for column in zip(*pieces, strict=True))


def _piece(logits: Any, other: Any, targets: Any) -> tuple[Any, ...]:
    ours, theirs = (values.float().log_softmax(-1) for values in (logits, other))
    chosen = ours.gather(-1, targets[:, None])[:, 0]
    weights = ours.exp()
    kl = (weights * (ours - theirs)).sum(-1)
    entropy = -(weights * ours).sum(-1).detach()
    return -chosen, kl, entropy, ours.argmax(-1) == targets

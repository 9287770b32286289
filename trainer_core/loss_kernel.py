"""The token loss where TRL's own kernel cannot run: TRL 1.15 has it in Triton alone.

TRL's SFTTrainer projects only trained positions through the LM head, with a kernel that it looks
up by name. Where that kernel is missing (no Triton: every CPU build of torch), the same function
in plain torch takes its place. TRL 1.16 brings one of its own, which is left alone.
"""

from functools import cache
from typing import Any

_LOGITS_AT_ONCE = 2**25
"""More than these (128 MB of float32) are computed in pieces, and again in the backward pass."""
_TOKENS_AT_ONCE = 1024
"""A piece has at least so many tokens, however large the vocabulary."""
SMALL_PIECE = 128
"""The size of a piece where memory has run out."""


def is_ours() -> bool:
    """Whether TRL's token loss is this one, so that its pieces can be made smaller."""
    from trl.trainer import utils

    return utils._ChunkedLogProbFunction is TorchLogProbs


def compute_at_once(tokens: int | None) -> None:
    """Set the size of a piece, from here on; None leaves it to the size of the vocabulary."""
    TorchLogProbs.tokens_at_once = tokens


def ensure_loss_kernel() -> None:
    """Give TRL a token loss if it has none here; called before a trainer is built."""
    from trl.trainer import utils

    if utils._ChunkedLogProbFunction is None:
        utils._ChunkedLogProbFunction = TorchLogProbs


class TorchLogProbs:
    """Takes the place of TRL's `ChunkedLogProbFunction`; only `apply` is called."""

    tokens_at_once: int | None = None

    @classmethod
    def apply(  # noqa: PLR0913 - the signature that TRL calls
        cls,
        hidden: Any,
        weight: Any,
        bias: Any,
        targets: Any,
        temperature: float,
        _chunk_size: int,
        softcap: float | None = None,
        scale: float = 1.0,
        outputs: tuple[str, ...] = (),
    ) -> tuple[Any, ...]:
        """Per token: log-probability, entropy, log of the sum of squared probabilities, mean logit
        and whether the target is the likeliest.

        The third and fourth are None unless `outputs` names them (`log_sum_sq_probs`,
        `mean_logits`). `hidden` is (tokens, width), `weight` (vocabulary, width), `targets`
        (tokens,).
        """
        import torch
        from torch.utils.checkpoint import checkpoint

        def piece(h: Any, t: Any) -> tuple[Any, ...]:
            logits = _logits(h, weight, bias, (scale, softcap, temperature))
            return _token_statistics(logits, t, outputs)

        size = cls.tokens_at_once or max(_TOKENS_AT_ONCE, _LOGITS_AT_ONCE // len(weight))
        if len(targets) <= size:
            return piece(hidden, targets)
        pieces = zip(hidden.split(size), targets.split(size), strict=True)
        results = [checkpoint(piece, h, t, use_reentrant=False) for h, t in pieces]
        columns = zip(*results, strict=True)
        return tuple(None if c[0] is None else torch.cat(c) for c in columns)


def _logits(hidden: Any, weight: Any, bias: Any, shape: tuple[float, float | None, float]) -> Any:
    import torch

    scale, softcap, temperature = shape
    logits = torch.nn.functional.linear(hidden, weight, bias).float()
    if scale != 1.0:
        logits = logits * scale
    if softcap is not None:
        logits = softcap * torch.tanh(logits / softcap)
    return logits if temperature == 1.0 else logits / temperature


def _token_statistics(logits: Any, targets: Any, outputs: tuple[str, ...]) -> tuple[Any, ...]:
    chosen, entropy, top, log_probs = _likelihood().apply(logits, targets)
    squares = (2 * log_probs).logsumexp(-1) if "log_sum_sq_probs" in outputs else None
    mean = logits.detach().mean(-1) if "mean_logits" in outputs else None
    return chosen, entropy, squares, mean, top


@cache
def _likelihood() -> Any:
    """An autograd function: logits (tokens, vocabulary) and targets (tokens,) to the target's
    log-probability, entropy, whether the target is the likeliest, and all log-probabilities.

    Only the first has a gradient, g · (one-hot − probabilities). Entropy needs the probabilities
    anyway: kept for the backward pass, they spare it a pass over the vocabulary.
    """
    import torch

    class Likelihood(torch.autograd.Function):  # type: ignore[misc] # torch is untyped
        @staticmethod
        def forward(ctx: Any, logits: Any, targets: Any) -> tuple[Any, ...]:
            log_probs = torch.log_softmax(logits, dim=-1)
            probabilities = log_probs.exp()
            chosen = log_probs.gather(-1, targets[:, None]).squeeze(-1)
            entropy = -torch.linalg.vecdot(probabilities, log_probs)
            top = chosen == log_probs.amax(-1)
            ctx.save_for_backward(probabilities, targets)
            ctx.mark_non_differentiable(entropy, top, log_probs)
            return chosen, entropy, top, log_probs

        @staticmethod
        def backward(ctx: Any, gradient: Any, *_: Any) -> tuple[Any, None]:
            probabilities, targets = ctx.saved_tensors
            back = probabilities * -gradient[:, None]
            return back.scatter_add_(1, targets[:, None], gradient[:, None]), None

    return Likelihood

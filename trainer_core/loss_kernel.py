"""The token loss where TRL's own kernel cannot run: TRL 1.15 has it in Triton alone.

TRL's SFTTrainer projects only trained positions through the LM head, with a kernel that it looks
up by name. Where that kernel is missing (no Triton: every CPU build of torch), the same function
in plain torch takes its place. TRL 1.16 brings one of its own, which is left alone.
"""

from typing import Any

_TOKENS_AT_ONCE = 1024
"""More are computed in pieces, and again in the backward pass, to bound the memory of logits."""


def ensure_loss_kernel() -> None:
    """Give TRL a token loss if it has none here; called before a trainer is built."""
    from trl.trainer import utils

    if utils._ChunkedLogProbFunction is None:
        utils._ChunkedLogProbFunction = TorchLogProbs


class TorchLogProbs:
    """Takes the place of TRL's `ChunkedLogProbFunction`; only `apply` is called."""

    @staticmethod
    def apply(  # noqa: PLR0913 - the signature that TRL calls
        hidden: Any,
        weight: Any,
        bias: Any,
        targets: Any,
        temperature: float,
        _chunk_size: int,
        softcap: float | None = None,
        scale: float = 1.0,
        _outputs: tuple[str, ...] = (),
    ) -> tuple[Any, Any, None, None, Any]:
        """Per token: log-probability, entropy and whether the target is the likeliest.

        `hidden` is (tokens, width), `weight` (vocabulary, width), `targets` (tokens,).
        """
        import torch
        from torch.utils.checkpoint import checkpoint

        def piece(h: Any, t: Any) -> tuple[Any, Any, Any]:
            return _token_statistics(_logits(h, weight, bias, (scale, softcap, temperature)), t)

        if len(targets) <= _TOKENS_AT_ONCE:
            log_probs, entropy, top = piece(hidden, targets)
            return log_probs, entropy, None, None, top
        pieces = zip(hidden.split(_TOKENS_AT_ONCE), targets.split(_TOKENS_AT_ONCE), strict=True)
        results = [checkpoint(piece, h, t, use_reentrant=False) for h, t in pieces]
        log_probs, entropy, top = (torch.cat(column) for column in zip(*results, strict=True))
        return log_probs, entropy, None, None, top


def _logits(hidden: Any, weight: Any, bias: Any, shape: tuple[float, float | None, float]) -> Any:
    import torch

    scale, softcap, temperature = shape
    logits = torch.nn.functional.linear(hidden, weight, bias).float()
    if scale != 1.0:
        logits = logits * scale
    if softcap is not None:
        logits = softcap * torch.tanh(logits / softcap)
    return logits if temperature == 1.0 else logits / temperature


def _token_statistics(logits: Any, targets: Any) -> tuple[Any, Any, Any]:
    import torch

    log_probs = torch.log_softmax(logits, dim=-1)
    with torch.no_grad():
        entropy = -(log_probs.exp() * log_probs).sum(-1)
        top = log_probs.argmax(-1) == targets
    return log_probs.gather(-1, targets[:, None]).squeeze(-1), entropy, top

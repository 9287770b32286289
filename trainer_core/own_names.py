"""Checkpoints whose weights have the names that they have in memory, and no others.

Transformers publishes many kinds of models under the names of their first release (vision models,
vision-language models, mixtures of experts) and translates when it loads them. Its Trainer does
not: resuming from such a checkpoint would leave the weights as they are, without an error.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from trainer_core.errors import TrainerError


@contextmanager
def own_names(model: Any) -> Iterator[None]:
    """Have a model of Transformers save its weights untranslated; others are let be."""
    from transformers import PreTrainedModel

    if not isinstance(model, PreTrainedModel):
        yield
        return
    model.save_pretrained = partial(model.save_pretrained, save_original_format=False)
    try:
        yield
    finally:
        del model.save_pretrained


def require_known(unexpected: list[str]) -> None:
    """Raise TrainerError for weights of a checkpoint that the model has under another name."""
    if unexpected:
        raise TrainerError(
            f"the checkpoint holds weights that the model does not have ({unexpected[0]} and"
            f" {len(unexpected) - 1} more): start from scratch with checkpoint.resume: never"
        )

"""Switching an adapter off and on again for a reference, several times a step."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


def switch_quickly(model: Any) -> None:
    """Have `model.disable_adapter()` (a PeftModel's) set nothing but flags, without gradients.

    The library's own one looks through the state of every layer and turns its gradients off and
    on; in a small model that takes as long as computing the reference does. Where gradients are
    wanted inside, it still does.
    """
    thorough = model.disable_adapter

    @contextmanager
    def disable_adapter() -> Iterator[None]:
        import torch

        if torch.is_grad_enabled():
            with thorough():
                yield
            return
        with _off(model):
            yield

    model.disable_adapter = disable_adapter


@contextmanager
def _off(model: Any) -> Iterator[None]:
    from peft.tuners.tuners_utils import BaseTunerLayer
    from peft.utils import AuxiliaryTrainingWrapper

    switched = (BaseTunerLayer, AuxiliaryTrainingWrapper)
    on = [m for m in model.modules() if isinstance(m, switched) and not m._disable_adapters]
    for module in on:
        module._disable_adapters = True
    try:
        yield
    finally:
        for module in on:
            module._disable_adapters = False

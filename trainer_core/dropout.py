"""Switching dropout off where it would disturb what is compared."""

from typing import Any


def switch_off_dropout(model: Any) -> None:
    """The rates that layers hold as plain numbers (attention's), which libraries leave on."""
    for module in model.modules():
        rates = [name for name, value in vars(module).items() if isinstance(value, float)]
        for name in rates:
            if "dropout" in name:
                setattr(module, name, 0.0)


def switch_off_every_dropout(model: Any) -> None:
    """Layers of dropout too: two runs can be compared although their random numbers differ."""
    from torch.nn.modules.dropout import _DropoutNd

    switch_off_dropout(model)
    for module in model.modules():
        if isinstance(module, _DropoutNd):
            module.p = 0.0

"""AdaLoRA's budget: moved after each step, and resumed to the last digit.

PEFT asks its caller to move the budget, adds the penalty to losses that it computes itself (the
trainers here compute theirs), and saves no more than the ranks that are alive. So all three are
done here: a checkpoint holds every parameter and the importance that was measured so far.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from trainer_core.errors import InvalidSpec
from trainer_core.spec import AdaLoraAdapter

_TENSORS = "rank_budget.safetensors"
_STATE = "rank_budget.json"
_IMPORTANCE = ("ipt", "exp_avg_ipt", "exp_avg_unc")
_FEWEST = 2  # steps that move the budget: the first one only measures


class RankBudget:
    """The budget of one model with an AdaLoRA adapter."""

    def __init__(self, model: Any, adapter: AdaLoraAdapter) -> None:
        self._model = model
        self._adapter = adapter
        self._tuner = model.base_model
        self._config = model.peft_config["default"]
        tuner = self._tuner
        # PEFT's own forward adds its penalty to some losses and not to others.
        tuner.forward = lambda *args, **kwargs: tuner.model(*args, **kwargs)

    def begin(self, total_steps: int) -> None:
        """Plan the budget over the steps of the run. Raises InvalidSpec where they are too few."""
        first = _steps(self._adapter.tinit, total_steps)
        last = _steps(self._adapter.tfinal, total_steps)
        if total_steps - last - first < 1 or total_steps - last < _FEWEST:
            raise InvalidSpec(
                f"adapter.tinit ({first} steps) and adapter.tfinal ({last} steps) leave none of the"
                f" run's {total_steps} steps to move ranks: lower them or train longer",
                "adapter.tinit",
            )
        self._config.tinit, self._config.tfinal = first, last
        self._config.total_step = total_steps

    def allocate(self, step: int) -> None:
        """Move the budget, after step `step` (from 1) of the optimizer, with its gradients."""
        self._tuner.update_and_allocate(step)

    def penalty(self) -> Any:
        """How far A and B are from orthogonal, weighted: the mean of ‖AAᵀ−I‖ and ‖BᵀB−I‖."""
        import torch

        kind = next(self._model.parameters()).device.type
        with torch.autocast(kind, enabled=False):
            distances = list(self._distances())
        return self._adapter.orth_reg_weight * torch.stack(distances).mean()

    def _distances(self) -> Iterator[Any]:
        import torch

        for name, parameter in self._model.named_parameters():
            if "lora_A.default" in name or "lora_B.default" in name:
                wide = parameter @ parameter.T if "lora_A" in name else parameter.T @ parameter
                yield torch.linalg.norm(wide - torch.eye(*wide.shape).to(wide))

    def save(self, folder: Path) -> None:
        """Write the whole adapter and the measured importance to a checkpoint."""
        from safetensors.torch import save_file

        allocator = self._tuner.rankallocator
        tensors = {f"weights.{name}": p.detach() for name, p in self._trained()}
        for part in _IMPORTANCE:
            measured = getattr(allocator, part)
            tensors |= {f"{part}.{name}": tensor for name, tensor in measured.items()}
        save_file({n: t.contiguous() for n, t in tensors.items()}, folder / _TENSORS)
        names = ("tinit", "tfinal", "total_step", "rank_pattern")
        state = {name: getattr(self._config, name) for name in names}
        (folder / _STATE).write_text(json.dumps(state))

    def load(self, folder: Path) -> None:
        """Read it back."""
        import torch
        from safetensors.torch import load_file

        tensors = load_file(folder / _TENSORS)
        with torch.no_grad():
            for name, parameter in self._trained():
                parameter.copy_(tensors[f"weights.{name}"])
        allocator = self._tuner.rankallocator
        devices = {name: parameter.device for name, parameter in self._trained()}
        for part in _IMPORTANCE:
            begins = f"{part}."
            measured = {
                n.removeprefix(begins): t for n, t in tensors.items() if n.startswith(begins)
            }
            measured = {
                name: t.to(devices[f"base_model.model.{name}"]) for name, t in measured.items()
            }
            setattr(allocator, part, measured)
        for name, value in json.loads((folder / _STATE).read_text()).items():
            setattr(self._config, name, value)

    def _trained(self) -> list[tuple[str, Any]]:
        return [(name, p) for name, p in self._model.named_parameters() if p.requires_grad]


def as_callback(budget: RankBudget) -> Any:
    """`budget` as a TrainerCallback: planned when training begins, moved after each step."""
    from transformers import TrainerCallback

    class Moves(TrainerCallback):  # type: ignore[misc]
        def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002 - the protocol's
            budget.begin(state.max_steps)

        def on_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002 - the protocol's
            # A step that fp16's scaler skipped has no gradients to measure.
            if not getattr(kwargs.get("optimizer"), "step_was_skipped", False):
                budget.allocate(state.global_step + 1)

    return Moves()


def _steps(given: float, total: int) -> int:
    return round(given * total) if given < 1 else round(given)

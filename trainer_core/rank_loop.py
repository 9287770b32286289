"""Our part of the trainer where several ranks train: one step, one loss, one checkpoint."""

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from trainer_core.callbacks import Flow
from trainer_core.context import transformer_of
from trainer_core.rank_share import FILLER, shared_loader
from trainer_core.ranks import Ranks

_RANDOM_STATE = "rng_state_{}.pth"


class RankPart:
    """Mixed in around a task's loop; changes nothing for a process that trains alone.

    DDP averages gradients over ranks. A rank's loss is divided by the items of the whole step, on
    all ranks, and multiplied by their number, so that the average is the mean over all items.
    """

    flow: Flow
    _is_filler = False
    _evaluates_now = False
    _random_states: list[bytes]
    _told_names: dict[str, list[str]]

    @property
    def _ranks(self) -> Ranks:
        return self.flow.ranks

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Any:
        """One micro-batch; what the library notes of a filler is forgotten."""
        self._is_filler = isinstance(inputs, dict) and bool(inputs.pop(FILLER, False))
        if not self._is_filler:
            return super().training_step(model, inputs, num_items_in_batch)  # type: ignore[misc]
        noted = {name: len(values) for name, values in self._noted("train").items()}
        loss = super().training_step(model, inputs, num_items_in_batch)  # type: ignore[misc]
        for name, values in self._noted("train").items():
            del values[noted.get(name, 0) :]
        return loss

    def compute_loss(
        self,
        model: Any,
        inputs: Any,
        return_outputs: bool = False,  # noqa: FBT001, FBT002 - Trainer's signature
        num_items_in_batch: Any = None,
    ) -> Any:
        """The task's loss as this rank's share of the step's."""
        found = super().compute_loss(  # type: ignore[misc]
            model, inputs, return_outputs=return_outputs, num_items_in_batch=num_items_in_batch
        )
        if self._ranks.count == 1 or self._evaluates_now:
            return found
        return found * (0 if self._is_filler else self._ranks.count)

    def _get_num_items_in_batch(self, batch_samples: list[Any], device: Any) -> Any:
        """The items of a step, on all ranks, without fillers; of an evaluation's batch alone."""
        if self._ranks.count == 1 or self._evaluates_now:
            return super()._get_num_items_in_batch(batch_samples, device)  # type: ignore[misc]
        real = [batch for batch in batch_samples if FILLER not in batch]
        items = super()._get_num_items_in_batch(real, device)  # type: ignore[misc]
        [total] = self._ranks.sums([0.0 if items is None else float(items)])
        return total

    def evaluate(self, *arguments: Any, **named: Any) -> dict[str, float]:
        """Validation batches are parted without fillers, and each has its own mean loss."""
        self._evaluates_now = True
        try:
            found: dict[str, float] = super().evaluate(*arguments, **named)  # type: ignore[misc]
            return found
        finally:
            self._evaluates_now = False

    @contextmanager
    def alone(self) -> Iterator[None]:
        """What happens inside is this rank's own business, on all rows."""
        together, self.flow.ranks = self.flow.ranks, Ranks()
        try:
            yield
        finally:
            self.flow.ranks = together

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """What the library noted batch by batch is that of all ranks."""
        if self._ranks.count > 1:
            self._share_notes()
        super().log(logs, start_time)  # type: ignore[misc]

    def _noted(self, mode: str) -> dict[str, list[float]]:
        found: dict[str, list[float]] = getattr(self, "_metrics", {}).get(mode, {})
        return found

    def _share_notes(self) -> None:
        """Each list of values that are to be logged becomes the mean of all ranks' values."""
        mode = "eval" if self._evaluates_now else "train"
        noted = self._noted(mode)
        own = {name: (float(sum(values)), len(values)) for name, values in noted.items()}
        for name, (total, count) in self._sums_of(own, mode).items():
            if count:
                noted[name] = [total / count]

    def _sums_of(self, own: dict[str, tuple[float, int]], mode: str) -> dict[str, Sequence[float]]:
        """Sums and counts by name, over all ranks.

        Which names there are is told once; after that one sum of numbers is a quarter of the work.
        """
        while True:
            names = self._told_names.get(mode, [])
            numbers = [number for name in names for number in own.get(name, (0.0, 0))]
            unheard = float(not own.keys() <= set(names))
            found, *sums = self._ranks.sums([unheard, *numbers])
            if not found:
                return dict(zip(names, zip(sums[::2], sums[1::2], strict=True), strict=True))
            self._told_names[mode] = sorted(set(names).union(*self._ranks.collect([*own])))

    def store_flos(self) -> None:
        """Nothing: nobody reads them, and the library would ask the other ranks."""

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        """Rank 0 writes for all; random states of the others travel to it."""
        if self._ranks.count == 1:
            super()._save_checkpoint(model, trial)  # type: ignore[misc]
            return
        self._random_states = self._ranks.collect(self._random_state())
        if self._ranks.leads:
            super()._save_checkpoint(model, trial)  # type: ignore[misc]
        self._ranks.meet()

    def _random_state(self) -> bytes:
        with tempfile.TemporaryDirectory() as folder:
            super()._save_rng_state(folder)  # type: ignore[misc]
            return (Path(folder) / _RANDOM_STATE.format(self._ranks.number)).read_bytes()

    def _save_rng_state(self, output_dir: str) -> None:
        if self._ranks.count == 1:
            super()._save_rng_state(output_dir)  # type: ignore[misc]
            return
        folder = Path(output_dir)
        folder.mkdir(parents=True, exist_ok=True)
        for number, state in enumerate(self._random_states):
            (folder / _RANDOM_STATE.format(number)).write_bytes(state)


def connect(trainer: Any, ranks: Ranks) -> None:
    """Have a built trainer part its batches among ranks; each draws random numbers of its own.

    What libraries gather for their measures stays a rank's own: it is shared when it is logged.
    """
    import torch
    from torch.nn.modules.batchnorm import _BatchNorm

    trainer._told_names = {}
    accelerator = trainer.accelerator
    # Buffers are the same on all ranks, but for running means of batches.
    runs = any(isinstance(module, _BatchNorm) for module in transformer_of(trainer.model).modules())
    accelerator.ddp_handler.broadcast_buffers = runs

    def prepare(loader: Any, *_: Any, **__: Any) -> Any:
        flow, fills = trainer.flow, not trainer._evaluates_now
        return shared_loader(loader, flow.ranks, accelerator, flow.meter, fills=fills)

    if hasattr(transformer_of(trainer.model).config, "vision_config"):
        # Vision towers end with layers that nobody reads.
        accelerator.ddp_handler.find_unused_parameters = True
    accelerator.prepare_data_loader = prepare
    accelerator.gather = accelerator.gather_for_metrics = _own_alone
    torch.manual_seed(trainer.args.seed + ranks.number)


def _own_alone(values: Any, *_: Any, **__: Any) -> Any:
    return values

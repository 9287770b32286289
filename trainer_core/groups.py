"""Our part of TRL's GRPOTrainer: prepared prompts, exact resume, evaluations that draw alike."""

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from trainer_core.loop import ExactLoop, Scores
from trainer_core.measures import BatchMeans

_STATE = "answers.json"
_TENSORS = "answers.safetensors"


class GroupLoop(ExactLoop):
    """Answers are drawn from the run's own random generator, whose state checkpoints keep."""

    rows_stand_alone = False

    def _tokenize_prompts(
        self, prompts: list[list[int]]
    ) -> tuple[list[list[int]], None, dict[str, Any]]:
        """Prompts are tokens already, rendered when the data was prepared."""
        return prompts, None, {}

    def _prepare_inputs(self, generation_batch: Any) -> Any:
        """The library's, which makes the answers; what is trained on is counted here."""
        trainer: Any = self
        inputs = super()._prepare_inputs(generation_batch)  # type: ignore[misc]
        if trainer.model.training and "prompt_ids" in inputs:
            tokens = inputs["prompt_mask"].sum() + inputs["completion_mask"].sum()
            self.flow.meter.fetched(len(inputs["prompt_ids"]), int(tokens))
        return inputs

    def _get_train_sampler(self, dataset: Any = None) -> Any:
        """As the library's, but each epoch has an order of its own that a resumed run finds too."""
        trainer: Any = self
        return _epoch_sampler(super()._get_train_sampler(dataset), trainer.args.data_seed)  # type: ignore[misc]

    def batch_weight(self, inputs: Any) -> float:
        """Answers."""
        return float(len(inputs))

    def scores(self) -> Scores:
        """Rewards, as the library measures them for each batch."""
        trainer: Any = self
        return BatchMeans(trainer._metrics["eval"])

    @contextmanager
    def measuring(self, batches: Iterable[Any]) -> Iterator[None]:
        """Every evaluation begins with the same seed, so that they can be compared."""
        import torch

        trainer: Any = self
        with super().measuring(batches):
            torch.manual_seed(trainer.args.seed)
            yield

    def save_more(self, folder: Path) -> None:
        """Answers that further steps are still to learn from, and how often they were used."""
        from safetensors.torch import save_file

        trainer: Any = self
        used_up = trainer._step % (trainer.args.steps_per_generation * trainer.num_iterations) == 0
        buffered = [] if used_up else trainer._buffered_inputs or []
        tensors = {
            f"{number}.{name}": value.detach().cpu().contiguous().clone()
            for number, batch in enumerate(buffered)
            for name, value in batch.items()
            if value is not None
        }
        save_file(tensors, folder / _TENSORS)
        state = {"step": trainer._step, "batches": len(buffered)}
        (folder / _STATE).write_text(json.dumps(state))

    def load_more(self, folder: Path) -> None:
        """Both as they were."""
        from safetensors.torch import load_file

        trainer: Any = self
        state = json.loads((folder / _STATE).read_text())
        tensors = load_file(folder / _TENSORS, device=str(trainer.args.device))
        batches: list[dict[str, Any]] = [{} for _ in range(state["batches"])]
        for key, value in tensors.items():
            number, _, name = key.partition(".")
            batches[int(number)][name] = value
        trainer._step = state["step"]
        trainer._buffered_inputs = batches or None


def _epoch_sampler(sampler: Any, seed: int) -> Any:
    """The sampler with an order that seed and epoch decide, and not how often it was begun."""

    class EpochSampler(type(sampler)):  # type: ignore[misc]
        epoch = 0

        def set_epoch(self, epoch: int) -> None:
            self.epoch = epoch

        def __iter__(self) -> Iterator[int]:
            self.generator.manual_seed(seed + self.epoch)
            yield from super().__iter__()

    sampler.__class__ = EpochSampler
    return sampler

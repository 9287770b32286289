"""`TrainSpec`: all blocks together."""

from typing import Literal

from trainer_core.spec.adapter import Adapter, FreezeAdapter
from trainer_core.spec.base import Strict
from trainer_core.spec.data import Data
from trainer_core.spec.model import ModelRef
from trainer_core.spec.quantization import Quantization
from trainer_core.spec.results import Checkpoint, Evaluation, Publish, Tracking
from trainer_core.spec.task import TaskSpec
from trainer_core.spec.training import Distributed, Training


class TrainSpec(Strict):
    """What is trained: everything that the trainer knows about a job."""

    task: TaskSpec
    model: ModelRef
    data: Data
    training: Training = Training()
    adapter: Adapter | None = None
    quantization: Quantization | None = None
    backend: Literal["auto", "hf"] = "auto"
    precision: Literal["auto", "bf16", "fp16", "fp32"] = "auto"
    distributed: Distributed = Distributed()
    evaluation: Evaluation = Evaluation()
    checkpoint: Checkpoint = Checkpoint()
    tracking: Tracking = Tracking()
    publish: Publish = Publish()

    @property
    def adapts(self) -> bool:
        """Whether new weights beside a frozen base are trained, which are published alone."""
        return self.adapter is not None and not isinstance(self.adapter, FreezeAdapter)

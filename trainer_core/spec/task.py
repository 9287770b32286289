"""The table of task types: `task` is one of these blocks, told apart by its `type`."""

from typing import Annotated

from pydantic import Field

from trainer_core.spec.tasks.clm import ClmTask
from trainer_core.spec.tasks.dpo import DpoTask
from trainer_core.spec.tasks.evaluation import EvaluationTask
from trainer_core.spec.tasks.grpo import GrpoTask
from trainer_core.spec.tasks.image_classification import ImageClassificationTask
from trainer_core.spec.tasks.kto import KtoTask
from trainer_core.spec.tasks.mlm import MlmTask
from trainer_core.spec.tasks.multimodal import MultimodalTask
from trainer_core.spec.tasks.sentence_transformer import SentenceTransformerTask
from trainer_core.spec.tasks.sft import SftTask
from trainer_core.spec.tasks.text_classification import TextClassificationTask

Trained = (
    SftTask  # the order is that of the API's description
    | DpoTask
    | GrpoTask
    | ClmTask
    | MlmTask
    | TextClassificationTask
    | ImageClassificationTask
    | MultimodalTask
    | SentenceTransformerTask
    | KtoTask
)
"""The tasks that train."""

TrainedTask = Annotated[Trained, Field(discriminator="type")]
TaskSpec = Annotated[Trained | EvaluationTask, Field(discriminator="type")]
EvaluationTask.model_rebuild(_types_namespace={"TrainedTask": TrainedTask})

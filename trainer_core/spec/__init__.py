"""`TrainSpec`: the single schema of what is trained, on every backend and target.

Only `task`, `model` and `data` are required. A field left out (None, or `auto`) is filled by
`trainer_core.resolve.resolve`. Names and defaults follow the libraries that users already know
(Transformers, TRL, PEFT).
"""

from trainer_core.spec.adapter import (
    AdaLoraAdapter,
    Adapter,
    FreezeAdapter,
    Ia3Adapter,
    LayerNormAdapter,
    LoraAdapter,
    PeftAdapter,
    TargetModules,
    VeraAdapter,
)
from trainer_core.spec.base import Name, SecretRef, Strict, TaskBlock
from trainer_core.spec.data import Data, DataFormat, DataSource, SplitRatio
from trainer_core.spec.hub import HubPush, is_repo_id
from trainer_core.spec.job import JobSpec
from trainer_core.spec.launch import Launch, Paths
from trainer_core.spec.model import ModelRef
from trainer_core.spec.quantization import Quantization
from trainer_core.spec.results import (
    Checkpoint,
    EarlyStopping,
    Evaluation,
    Gate,
    Generation,
    MlflowTracking,
    Publish,
    Tracking,
)
from trainer_core.spec.task import TaskSpec
from trainer_core.spec.tasks.clm import ClmTask
from trainer_core.spec.tasks.dpo import DpoTask
from trainer_core.spec.tasks.evaluation import EvaluationTask
from trainer_core.spec.tasks.grpo import GrpoTask
from trainer_core.spec.tasks.image_classification import Augmentation, ImageClassificationTask
from trainer_core.spec.tasks.kto import KtoTask
from trainer_core.spec.tasks.labels import LabelledTask
from trainer_core.spec.tasks.mlm import MlmTask, TokenizerTraining
from trainer_core.spec.tasks.multimodal import MultimodalTask
from trainer_core.spec.tasks.sentence_transformer import SentenceTransformerTask
from trainer_core.spec.tasks.sft import SftTask
from trainer_core.spec.tasks.text_classification import TextClassificationTask
from trainer_core.spec.train import TrainSpec
from trainer_core.spec.training import Distributed, Training

__all__ = [
    "AdaLoraAdapter",
    "Adapter",
    "Augmentation",
    "Checkpoint",
    "ClmTask",
    "Data",
    "DataFormat",
    "DataSource",
    "Distributed",
    "DpoTask",
    "EarlyStopping",
    "Evaluation",
    "EvaluationTask",
    "FreezeAdapter",
    "Gate",
    "Generation",
    "GrpoTask",
    "HubPush",
    "Ia3Adapter",
    "ImageClassificationTask",
    "JobSpec",
    "KtoTask",
    "LabelledTask",
    "Launch",
    "LayerNormAdapter",
    "LoraAdapter",
    "MlflowTracking",
    "MlmTask",
    "ModelRef",
    "MultimodalTask",
    "Name",
    "Paths",
    "PeftAdapter",
    "Publish",
    "Quantization",
    "SecretRef",
    "SentenceTransformerTask",
    "SftTask",
    "SplitRatio",
    "Strict",
    "TargetModules",
    "TaskBlock",
    "TaskSpec",
    "TextClassificationTask",
    "TokenizerTraining",
    "Tracking",
    "TrainSpec",
    "Training",
    "VeraAdapter",
    "is_repo_id",
]

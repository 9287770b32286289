"""What someone writes who uses the underlying library by itself: one function a task type.

Rows of tokens are those that `trainer_core prepare` made (`prepared`), so that both sides train
the same ones; where the library itself reads texts, it gets the texts.
"""

import io
import json
import re
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image

from bench.task_cases import LORA, VOWELS, TaskCase
from bench.turns import Run, Watch
from trainer_core.data.prepared import open_prepared
from trainer_core.loss_kernel import ensure_loss_kernel


@dataclass(frozen=True)
class Job:
    """One case with its folders and its length; both sides do it."""

    case: TaskCase
    folder: Path
    total: int
    threads: int

    @property
    def model(self) -> Path:
        return self.folder / "model"

    @property
    def rows(self) -> Path:
        """The file of rows: `.jsonl`, or `.zip` with images."""
        [path] = self.folder.glob("rows.*")
        return path

    @property
    def save_at(self) -> int:
        return self.total // 2 + 1  # one in a run

    def raw(self) -> list[dict[str, Any]]:
        """The rows as they are in the file; names of images have become bytes."""
        if self.rows.suffix == ".zip":
            with zipfile.ZipFile(self.rows) as archive:
                lines = archive.read("rows.jsonl").decode().splitlines()
                return [_with_images(json.loads(line), archive) for line in lines]
        return [json.loads(line) for line in self.rows.read_text(encoding="utf-8").splitlines()]

    def prepared(self, *columns: str) -> Any:
        """Prepared rows as a data set."""
        found = open_prepared(self.folder / "prepared").train
        return found.select_columns([name for name in columns if name in found.column_names])


def _with_images(row: dict[str, Any], archive: zipfile.ZipFile) -> dict[str, Any]:
    if "image" in row:
        return row | {"image": archive.read(row["image"])}
    return row | {"images": [archive.read(name) for name in row["images"]]}


def bare(job: Job, name: str) -> Run:
    """Train once by the library alone."""
    import torch

    torch.set_num_threads(job.threads)
    ensure_loss_kernel()  # TRL 1.15 cannot compute its loss on a CPU; later versions can
    watch = Watch(job.case.measure)
    trainer = TRAINERS[job.case.task["type"]](job, job.folder / name)
    trainer.add_callback(watch.callback())
    trainer.train()
    return watch.run


def _arguments(job: Job, out: Path) -> dict[str, Any]:
    return {
        "output_dir": str(out),
        "per_device_train_batch_size": job.case.batch,
        "learning_rate": LEARNING_RATE,
        "max_steps": job.total,
        "lr_scheduler_type": "cosine",
        "optim": "adamw_torch_fused",
        "warmup_steps": 0.1,
        "logging_steps": 1,
        "save_steps": job.save_at,
        "data_seed": 42,
        "bf16": False,
        "use_cpu": True,
        "gradient_checkpointing": False,
        "disable_tqdm": True,
        "report_to": "none",
    }


LEARNING_RATE = 1e-4


def _peft() -> Any:
    from peft import LoraConfig

    values = {name: value for name, value in LORA.items() if name != "type"}
    return LoraConfig(task_type="CAUSAL_LM", target_modules="all-linear", **values)


def _causal(job: Job) -> dict[str, Any]:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    return {
        "model": AutoModelForCausalLM.from_pretrained(job.model, dtype=torch.float32),
        "processing_class": AutoTokenizer.from_pretrained(job.model),
        "peft_config": _peft() if job.case.lora else None,
    }


def _tokens(job: Job, out: Path) -> Any:
    from trl import SFTConfig, SFTTrainer

    settings = {"max_length": None, "dataset_kwargs": {"skip_prepare_dataset": True}}
    return SFTTrainer(
        args=SFTConfig(**_arguments(job, out), **settings),
        train_dataset=job.prepared("input_ids", "labels"),
        **_causal(job),
    )


def _dpo(job: Job, out: Path) -> Any:
    from datasets import Dataset
    from trl import DPOConfig, DPOTrainer

    return DPOTrainer(
        args=DPOConfig(**_arguments(job, out), max_length=None),
        train_dataset=Dataset.from_list(job.raw()),
        **_causal(job),
    )


def _kto(job: Job, out: Path) -> Any:
    from datasets import Dataset
    from trl import KTOConfig, KTOTrainer

    return KTOTrainer(
        args=KTOConfig(**_arguments(job, out), max_length=None),
        train_dataset=Dataset.from_list(job.raw()),
        **_causal(job),
    )


def _grpo(job: Job, out: Path) -> Any:
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    task = job.case.task
    chosen = {name: task[name] for name in ("num_generations", "max_completion_length")}
    return GRPOTrainer(
        args=GRPOConfig(**_arguments(job, out), **chosen),
        reward_funcs=_has_vowels,
        train_dataset=Dataset.from_list(job.raw()),
        **_causal(job),
    )


def _has_vowels(completions: Any, **_: Any) -> list[float]:
    return [float(bool(re.search(VOWELS, answer[0]["content"]))) for answer in completions]


def _masked(job: Job, out: Path) -> Any:
    from transformers import AutoModelForMaskedLM, DataCollatorForLanguageModeling

    return _by_transformers(
        job,
        out,
        model=AutoModelForMaskedLM.from_pretrained(job.model),
        data_collator=DataCollatorForLanguageModeling(_tokenizer(job), mlm_probability=0.15),
        train_dataset=job.prepared("input_ids"),
    )


def _labelled(job: Job, out: Path) -> Any:
    from transformers import AutoModelForSequenceClassification, DataCollatorWithPadding

    return _by_transformers(
        job,
        out,
        model=AutoModelForSequenceClassification.from_pretrained(job.model),
        data_collator=DataCollatorWithPadding(_tokenizer(job)),
        train_dataset=job.prepared("input_ids", "token_type_ids", "labels"),
    )


def _tokenizer(job: Job) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(job.model)


def _by_transformers(job: Job, out: Path, **parts: Any) -> Any:
    from transformers import Trainer, TrainingArguments

    settings = TrainingArguments(**_arguments(job, out), remove_unused_columns=False)
    return Trainer(args=settings, **parts)


def _images(job: Job, out: Path) -> Any:
    import torch
    from transformers import AutoModelForImageClassification

    # Where torchvision is missing, `transformers` itself gives an empty class under this name.
    from transformers.models.auto.image_processing_auto import AutoImageProcessor

    processor = AutoImageProcessor.from_pretrained(job.model)
    model = AutoModelForImageClassification.from_pretrained(job.model)
    numbers = model.config.label2id

    def collate(rows: list[Mapping[str, Any]]) -> dict[str, Any]:
        images = [_decoded(row["image"]) for row in rows]
        labels = torch.tensor([numbers[row["label"]] for row in rows])
        return {**processor(images, return_tensors="pt"), "labels": labels}

    return _by_transformers(job, out, model=model, data_collator=collate, train_dataset=job.raw())


def _decoded(data: bytes) -> Any:
    return Image.open(io.BytesIO(data)).convert("RGB")


def _pictured(job: Job, out: Path) -> Any:
    import torch
    from transformers import AutoModelForImageTextToText
    from transformers.models.auto.processing_auto import AutoProcessor

    processor = AutoProcessor.from_pretrained(job.model)
    model = AutoModelForImageTextToText.from_pretrained(job.model)
    model.model.vision_tower.requires_grad_(False)

    def collate(rows: list[Mapping[str, Any]]) -> dict[str, Any]:
        made = processor(
            text=[row["text"] for row in rows],
            images=[[_decoded(data) for data in row["images"]] for row in rows],
            padding=True,
            padding_side="right",
            return_tensors="pt",
        )
        width = made["input_ids"].shape[1]
        labels = [row["labels"] + [-100] * (width - len(row["labels"])) for row in rows]
        return {**made, "labels": torch.tensor(labels)}

    return _by_transformers(
        job,
        out,
        model=model,
        data_collator=collate,
        train_dataset=job.prepared("text", "images", "labels"),
    )


def _embeddings(job: Job, out: Path) -> Any:
    from datasets import Dataset
    from sentence_transformers import (
        SentenceTransformer,
        SentenceTransformerTrainer,
        SentenceTransformerTrainingArguments,
    )
    from sentence_transformers.losses import MultipleNegativesRankingLoss

    model = SentenceTransformer(str(job.model), device="cpu")
    return SentenceTransformerTrainer(
        model=model,
        args=SentenceTransformerTrainingArguments(
            **_arguments(job, out), batch_sampler="no_duplicates"
        ),
        train_dataset=Dataset.from_list(job.raw()),
        loss=MultipleNegativesRankingLoss(model),
    )


TRAINERS: dict[str, Callable[[Job, Path], Any]] = {
    "sft": _tokens,
    "clm": _tokens,
    "mlm": _masked,
    "text_classification": _labelled,
    "image_classification": _images,
    "dpo": _dpo,
    "kto": _kto,
    "grpo": _grpo,
    "multimodal": _pictured,
    "sentence_transformer": _embeddings,
}

"""What `bench.tasks` trains: for each task type a small model, rows, a batch and the task's block.

Models are as large as it takes for a step of some 50 to 150 ms on one core, so that a step's fixed
costs weigh about what they weigh beside a small real model.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.trainer_core.small_images import labelled_images, make_tiny_llava, visual_questions
from tests.trainer_core.small_tasks import (
    documents,
    make_tiny_bert,
    opinions,
    preferences,
    questions,
)
from tests.trainer_core.small_texts import answers, pairs
from tests.trainer_core.tiny import SENTENCES, make_tiny_model

Rows = list[dict[str, Any]]
LORA = {"type": "lora", "r": 8, "lora_alpha": 16, "lora_dropout": 0.0}
VOWELS = "[aeiou]"


@dataclass(frozen=True)
class TaskCase:
    """One task type; `make` writes its model to a folder, `rows` makes that many rows."""

    make: Callable[[Path], Path]
    rows: Callable[[int], Rows]
    task: dict[str, Any]
    batch: int
    lora: bool = False
    drawn: bool = False
    """Whether chance decides the losses, so that only their mean can agree."""
    measure: str = "loss"
    rows_per_step: int | None = None


def llama(path: Path) -> Path:
    """A Llama of 4 million parameters."""
    return make_tiny_model(path, hidden_size=256, layers=4, vocab_size=4096)


def bert(path: Path) -> Path:
    """A BERT of 2 million parameters, without dropout: both sides then compute the same."""
    return make_tiny_bert(path, **_SIZES, **_CALM, intermediate_size=1024)


def classifier(path: Path) -> Path:
    """The same with a head, so that both sides begin with the same one."""
    from transformers import AutoModelForSequenceClassification

    labels = {0: "bad", 1: "good"}
    bert(path)
    with _seeded():
        model = AutoModelForSequenceClassification.from_pretrained(
            path, num_labels=2, id2label=labels, label2id={n: i for i, n in labels.items()}
        )
    model.save_pretrained(path)
    return path


def masked(path: Path) -> Path:
    """The same with a head that predicts masked tokens."""
    from transformers import AutoModelForMaskedLM

    bert(path)
    with _seeded():
        AutoModelForMaskedLM.from_pretrained(path).save_pretrained(path)
    return path


def vit(path: Path) -> Path:
    """A ViT of 2 million parameters for images of 64 × 64, with a head."""
    from transformers import ViTConfig, ViTForImageClassification
    from transformers.models.vit.image_processing_pil_vit import ViTImageProcessorPil

    names = dict(enumerate(("cat", "dog", "고래")))
    with _seeded():
        ViTForImageClassification(
            ViTConfig(
                **_SIZES,
                intermediate_size=1024,
                image_size=64,
                patch_size=8,
                id2label=names,
                label2id={name: number for number, name in names.items()},
            )
        ).save_pretrained(path)
    ViTImageProcessorPil(size={"height": 64, "width": 64}).save_pretrained(path)
    return path


def llava(path: Path) -> Path:
    """The tests' LLaVA without dropout."""
    return make_tiny_llava(path, dropout=0.0, layers=3, width=256)


_SIZES = {"hidden_size": 256, "num_hidden_layers": 3, "num_attention_heads": 8}
_CALM = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


def _seeded() -> Any:
    import torch

    torch.manual_seed(0)
    return torch.random.fork_rng(devices=[])


def _conversations(count: int) -> Rows:
    rng = random.Random(0)  # noqa: S311 - not a secret
    return [{"messages": [*_turn(rng), *_turn(rng)]} for _ in range(count)]


def _turn(rng: random.Random) -> Rows:
    question, answer = (f"{rng.choice(SENTENCES)} {rng.randrange(1000)}" for _ in range(2))
    return [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]


def _pairs(count: int) -> Rows:
    """Each text once: a batch of in-batch negatives holds no text twice."""
    return [
        {name: f"{text}, said customer {number}" for name, text in row.items()}
        for number, row in enumerate(pairs(count))
    ]


def _long(make: Callable[[int], Rows], count: int, column: str, times: int) -> Rows:
    """Rows whose text is that of several rows."""
    rows = make(count * times)
    parts = [rows[n : n + times] for n in range(0, len(rows), times)]
    return [part[0] | {column: ". ".join(str(row[column]) for row in part)} for part in parts]


CASES: dict[str, TaskCase] = {
    "sft": TaskCase(
        llama, _conversations, {"type": "sft", "loss_on": "assistant"}, batch=4, lora=True
    ),
    "clm": TaskCase(
        llama, documents, {"type": "clm", "max_length": 256, "packing": "none"}, batch=4
    ),
    "mlm": TaskCase(masked, documents, {"type": "mlm", "max_length": 128}, batch=8, drawn=True),
    "text_classification": TaskCase(
        classifier,
        lambda count: _long(opinions, count, "text", 4),
        {"type": "text_classification"},
        batch=8,
    ),
    "image_classification": TaskCase(
        vit, labelled_images, {"type": "image_classification"}, batch=8
    ),
    "dpo": TaskCase(llama, preferences, {"type": "dpo"}, batch=4, lora=True),
    "kto": TaskCase(llama, answers, {"type": "kto"}, batch=4, lora=True, drawn=True),
    "grpo": TaskCase(
        llama,
        questions,
        {
            "type": "grpo",
            "rewards": [{"type": "regex", "pattern": VOWELS}],
            "num_generations": 4,
            "max_length": 64,
            "max_completion_length": 16,
        },
        batch=8,
        lora=True,
        drawn=True,
        measure="reward",
        rows_per_step=2,
    ),
    "multimodal": TaskCase(
        llava, visual_questions, {"type": "multimodal", "freeze_projector": False}, batch=8
    ),
    "sentence_transformer": TaskCase(
        bert, _pairs, {"type": "sentence_transformer"}, batch=16, drawn=True
    ),
}

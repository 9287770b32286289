"""Launches of every task type on tiny models, with rows that are prepared by the run itself."""

import json
import random
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.trainer_core.tiny import SENTENCES, make_tiny_model

GOOD = ["fast", "friendly", "perfect", "lovely", "great"]
BAD = ["slow", "rude", "broken", "awful", "late"]
THINGS = ["delivery", "shop", "parcel", "answer", "refund", "price", "service"]


def make_tiny_bert(path: Path, *, seed: int = 0, vocabulary: int = 400, **config: Any) -> Path:
    """Write a random BERT without a head (about 40,000 parameters) and a WordPiece tokenizer."""
    import torch
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
    from transformers import BertConfig, BertModel, BertTokenizerFast

    specials = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocabulary, special_tokens=specials, show_progress=False
    )
    words = [*SENTENCES, " ".join([*GOOD, *BAD, *THINGS, "the", "was", "is", "and"])]
    tokenizer.train_from_iterator(words * 3, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    wrapped = BertTokenizerFast(tokenizer_object=tokenizer, model_max_length=128)
    sizes = {
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 64,
        "max_position_embeddings": 128,
    }
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = BertModel(BertConfig(vocab_size=len(wrapped), **(sizes | config)))
    model.save_pretrained(path)
    wrapped.save_pretrained(path)
    return path


def opinion(rng: random.Random) -> tuple[str, bool]:
    """A sentence and whether it is a good one."""
    good = rng.random() < 0.5
    words = GOOD if good else BAD
    return f"the {rng.choice(THINGS)} was {rng.choice(words)} and {rng.choice(words)}", good


def opinions(count: int, seed: int = 0) -> list[dict[str, Any]]:
    """Rows whose label is the kind of their words."""
    rng = random.Random(seed)  # noqa: S311 - test data
    pairs = [opinion(rng) for _ in range(count)]
    return [{"text": text, "label": "good" if good else "bad"} for text, good in pairs]


def documents(count: int, seed: int = 0) -> list[dict[str, Any]]:
    """Documents of one to nine opinions: their words follow each other in few ways."""
    rng = random.Random(seed)  # noqa: S311 - test data
    return [
        {"text": ". ".join(opinion(rng)[0] for _ in range(rng.randint(1, 9)))} for _ in range(count)
    ]


def preferences(count: int, seed: int = 0) -> list[dict[str, Any]]:
    """Questions with a friendly answer that is preferred to a rude one, or the other way."""
    rng = random.Random(seed)  # noqa: S311 - test data
    return [
        {
            "prompt": [{"role": "user", "content": f"How was the {rng.choice(THINGS)}?"}],
            "chosen": [{"role": "assistant", "content": f"It was {rng.choice(GOOD)}."}],
            "rejected": [
                {"role": "assistant", "content": f"It was {rng.choice(BAD)} and {rng.choice(BAD)}."}
            ],
        }
        for _ in range(count)
    ]


def questions(count: int, seed: int = 0) -> list[dict[str, Any]]:
    """Questions whose right answer is one of the good words."""
    rng = random.Random(seed)  # noqa: S311 - test data
    return [
        {
            "prompt": [{"role": "user", "content": f"How was the {rng.choice(THINGS)}?"}],
            "answer": rng.choice(GOOD),
        }
        for _ in range(count)
    ]


def write_rows(path: Path, rows: Iterable[dict[str, Any]]) -> Path:
    """A JSONL file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8"
    )
    return path


@dataclass(frozen=True)
class Small:
    """Tiny models in one folder; `launch` puts a run of any task together."""

    folder: Path
    bert: Path
    llama: Path

    @classmethod
    def make(cls, folder: Path) -> "Small":
        return cls(
            folder,
            make_tiny_bert(folder / "bert"),
            make_tiny_model(folder / "llama", attention_dropout=0.1),
        )

    def launch(
        self,
        name: str,
        task: dict[str, Any],
        rows: list[dict[str, Any]],
        validation: list[dict[str, Any]] | None = None,
        **changes: Any,
    ) -> dict[str, Any]:
        """A launch with its work folder `name`; `changes` go into the spec, block by block.

        A BERT is trained for `text_classification`, `mlm` and `sentence_transformer`, a Llama for
        all others, two epochs of batches of 4 with a learning rate of 0.01.
        """
        is_encoder = task["type"] in ("text_classification", "mlm", "sentence_transformer")
        train = write_rows(self.folder / "rows" / f"{name}.jsonl", rows)
        data: dict[str, Any] = {"train": [{"source": "folder", "path": str(train)}]}
        if validation is not None:
            path = write_rows(self.folder / "rows" / f"{name}-validation.jsonl", validation)
            data["validation"] = [{"source": "folder", "path": str(path)}]
        model = self.bert if is_encoder else self.llama
        spec: dict[str, Any] = {
            "task": task,
            "model": {"source": "folder", "name_or_path": str(model)},
            "data": data,
            "training": {
                "learning_rate": 0.01,
                "num_train_epochs": 2,
                "per_device_train_batch_size": 4,
                "gradient_accumulation_steps": 1,
            },
            "checkpoint": {"save_steps": 4},
        }
        for block, values in changes.items():
            merge = isinstance(spec.get(block), dict) and isinstance(values, dict)
            spec[block] = spec[block] | values if merge else values
        return {
            "attempt_id": name,
            "job_id": "job",
            "job_name": "small",
            "spec": spec,
            "paths": {"work": str(self.folder / name)},
            "threads": 1,
        }

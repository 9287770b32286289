"""Launches of every task type on tiny models, with rows that are prepared by the run itself."""

import json
import random
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.trainer_core.small_images import make_tiny_llava, make_tiny_vit, write_archive
from tests.trainer_core.tiny import SENTENCES, make_tiny_model

GOOD = ["fast", "friendly", "perfect", "lovely", "great"]
BAD = ["slow", "rude", "broken", "awful", "late"]
THINGS = ["delivery", "shop", "parcel", "answer", "refund", "price", "service"]


def make_tiny_bert(path: Path, *, seed: int = 0, vocabulary: int = 400, **config: Any) -> Path:
    """Write a random BERT without a head (about 40,000 parameters) and a WordPiece tokenizer."""
    import torch
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
    from transformers import BertConfig, BertModel, BertTokenizerFast

    normalizer, splitter = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    vocabulary_of = _word_pieces(normalizer, splitter, vocabulary)
    tokenizer = Tokenizer(models.WordPiece(vocabulary_of, unk_token="[UNK]"))
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizer, splitter
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    sizes = {
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 64,
        "max_position_embeddings": 128,
    } | config
    longest = sizes["max_position_embeddings"]
    wrapped = BertTokenizerFast(tokenizer_object=tokenizer, model_max_length=longest)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = BertModel(BertConfig(vocab_size=len(wrapped), **sizes))
    model.save_pretrained(path)
    wrapped.save_pretrained(path)
    return path


def _word_pieces(normalizer: Any, splitter: Any, size: int) -> dict[str, int]:
    """Special tokens, letters and the commonest words, always the same: the library's own trainer
    breaks ties by chance."""
    text = " ".join([*SENTENCES, *GOOD, *BAD, *THINGS, "the", "was", "is", "and"])
    words = [word for word, _ in splitter.pre_tokenize_str(normalizer.normalize_str(text))]
    letters = sorted(set("".join(words)))
    common = sorted(Counter(words).items(), key=lambda each: (-each[1], each[0]))
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, *(f"##{c}" for c in letters)]
    pieces += [word for word, _ in common if word not in letters]
    return {piece: number for number, piece in enumerate(pieces[:size])}


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


def second_opinions(count: int, seed: int = 0) -> list[dict[str, Any]]:
    """Pairs of texts; the label is the kind of the second one, and the first one's says nothing."""
    first, second = opinions(count, seed), opinions(count, seed + 1)
    return [
        {"text": one["text"], "text_pair": other["text"], "label": other["label"]}
        for one, other in zip(first, second, strict=True)
    ]


def talks(count: int, seed: int = 0) -> list[dict[str, Any]]:
    """Conversations whose answer names what the question is about."""
    rng = random.Random(seed)  # noqa: S311 - test data
    rows = []
    for _ in range(count):
        thing = rng.choice(THINGS)
        asked = f"{rng.choice(GOOD)} or {rng.choice(BAD)}, how was the {thing}?"
        rows.append(
            {
                "messages": [
                    {"role": "user", "content": asked},
                    {"role": "assistant", "content": f"The {thing} was fine."},
                ]
            }
        )
    return rows


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


def write_any(stem: Path, rows: list[dict[str, Any]]) -> Path:
    """A JSONL file, or an archive for rows that bring files."""
    if "files" in rows[0]:
        return write_archive(stem.with_name(f"{stem.name}.zip"), rows)
    return write_rows(stem.with_name(f"{stem.name}.jsonl"), rows)


@dataclass(frozen=True)
class Small:
    """Tiny models in one folder; `launch` puts a run of any task together."""

    folder: Path
    bert: Path
    llama: Path
    vit: Path
    llava: Path

    @classmethod
    def make(cls, folder: Path) -> "Small":
        return cls(
            folder,
            make_tiny_bert(folder / "bert"),
            make_tiny_model(folder / "llama", attention_dropout=0.1),
            make_tiny_vit(folder / "vit"),
            make_tiny_llava(folder / "llava"),
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

        A BERT is trained for `text_classification`, `mlm` and `sentence_transformer`, a ViT for
        `image_classification`, a LLaVA for `multimodal`, a Llama for all others, two epochs of
        batches of 4 with a learning rate of 0.01. Rows with `files` come in an archive with them.
        """
        train = write_any(self.folder / "rows" / name, rows)
        data: dict[str, Any] = {"train": [{"source": "folder", "path": str(train)}]}
        if validation is not None:
            path = write_any(self.folder / "rows" / f"{name}-validation", validation)
            data["validation"] = [{"source": "folder", "path": str(path)}]
        encoders = dict.fromkeys(("text_classification", "mlm", "sentence_transformer"), self.bert)
        seeing = {"image_classification": self.vit, "multimodal": self.llava}
        model = (encoders | seeing).get(task["type"], self.llama)
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

"""Tiny random Llamas and hand-made prepared data: real parts, small enough for every test.

make_tiny_model(folder)                 weights, config and a tokenizer with a ChatML template
write_prepared(folder, rows)            a prepared-data folder as `trainer_core prepare` makes it
"""

import hashlib
import json
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from trainer_core.publish.manifest import write_manifest

CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|pad|>"]
SENTENCES = [
    "Where is my order? It was sent this morning and arrives tomorrow.",
    "Can I return the shoes? Yes, within thirty days, with the receipt.",
    "주문한 상품은 언제 도착하나요? 내일 오전에 도착합니다.",
    "환불은 어떻게 하나요? 영수증과 함께 보내 주세요.",
    "system user assistant You are a helpful shop assistant. 0123456789",
]


def make_tokenizer(*, vocab_size: int = 512, chat_template: str | None = CHATML) -> Any:
    """A byte-level BPE tokenizer, trained in milliseconds; `<|im_end|>` ends a sequence."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=SPECIALS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(SENTENCES, trainer)
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<|endoftext|>",
        eos_token="<|im_end|>",
        pad_token="<|pad|>",
        model_max_length=2048,
    )
    wrapped.chat_template = chat_template
    return wrapped


def make_tiny_model(
    path: Path,
    *,
    seed: int = 0,
    hidden_size: int = 32,
    layers: int = 2,
    vocab_size: int = 512,
    intermediate_size: int | None = None,
    attention_dropout: float = 0.0,
    chat_template: str | None = CHATML,
    **config: Any,
) -> Path:
    """Write a random Llama (about 50,000 parameters) with its tokenizer to `path`; returns it."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    tokenizer = make_tokenizer(vocab_size=vocab_size, chat_template=chat_template)
    llama = LlamaConfig(
        vocab_size=max(vocab_size, len(tokenizer)),
        hidden_size=hidden_size,
        intermediate_size=intermediate_size or 2 * hidden_size,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=2048,
        attention_dropout=attention_dropout,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        **config,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = LlamaForCausalLM(llama)
    path.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


def random_rows(
    count: int, *, seed: int = 0, low: int = 8, high: int = 24, vocab_size: int = 500
) -> list[dict[str, list[int]]]:
    """Rows of `low` to `high` random tokens; the first third carries no loss."""
    rng = random.Random(seed)  # noqa: S311 - test data
    rows = []
    for _ in range(count):
        ids = [rng.randrange(4, vocab_size) for _ in range(rng.randint(low, high))]
        cut = len(ids) // 3
        rows.append({"input_ids": ids, "labels": [-100] * cut + ids[cut:]})
    return rows


def pack_rows(
    rows: Sequence[dict[str, list[int]]], max_length: int
) -> Iterator[dict[str, list[int]]]:
    """Fill rows of at most `max_length` tokens in order; position ids restart with each sample."""
    open_row: dict[str, list[int]] = {"input_ids": [], "labels": [], "position_ids": []}
    for row in rows:
        if (
            open_row["input_ids"]
            and len(open_row["input_ids"]) + len(row["input_ids"]) > max_length
        ):
            yield open_row
            open_row = {"input_ids": [], "labels": [], "position_ids": []}
        open_row["input_ids"] += row["input_ids"]
        # A sample's first token is nobody's target: its predecessor belongs to another sample.
        open_row["labels"] += [-100, *row["labels"][1:]]
        open_row["position_ids"] += range(len(row["input_ids"]))
    yield open_row


def write_prepared(
    folder: Path,
    train: Sequence[dict[str, list[int]]],
    validation: Sequence[dict[str, list[int]]] = (),
) -> Path:
    """Write a prepared-data folder (Arrow IPC files, report, ledger, manifest); returns it."""
    folder.mkdir(parents=True, exist_ok=True)
    _write_arrow(folder / "train.arrow", train)
    if validation:
        _write_arrow(folder / "validation.arrow", validation)
    digest = hashlib.sha256(json.dumps([list(train), list(validation)]).encode()).hexdigest()
    report = {
        "rows_in": len(train),
        "rows_kept": len(train),
        "trained_tokens": sum(label != -100 for row in train for label in row["labels"]),
        "total_tokens": sum(len(row["input_ids"]) for row in train),
        "data_hash": digest,
        "template_hash": hashlib.sha256(CHATML.encode()).hexdigest(),
        "warnings": [],
    }
    (folder / "report.json").write_text(json.dumps(report))
    (folder / "ledger.jsonl").write_text("")
    write_manifest(folder, "prepared", 0, ("0" * 64, digest))
    return folder


def _write_arrow(path: Path, rows: Sequence[dict[str, list[int]]]) -> None:
    import pyarrow as pa

    columns = {
        name: pa.array([row[name] for row in rows], type=pa.list_(pa.int32())) for name in rows[0]
    }
    table = pa.table(columns)
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)

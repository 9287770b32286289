"""`trainer_core prepare` against `datasets.map` that makes the same masks; and its memory.

Both read the same file of conversations and write token ids and labels to Arrow files, in one
process each; a row of ours equals its row of theirs.

    python -m bench.prepare [--pairs 5] [--rows 10000]
"""

import argparse
import random
import resource
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from bench.turns import in_fork, rounds_asked, verdict
from tests.trainer_core.small_tasks import write_rows
from tests.trainer_core.tiny import SENTENCES, make_tiny_model
from trainer_core.data.prepared import open_prepared
from trainer_core.hardware import Hardware
from trainer_core.prepare import prepare
from trainer_core.resolve import resolve
from trainer_core.spec import Launch
from trainer_core.warm import preload

LIMIT = 0.8
GROWTH_MB = 100
MORE = 10  # times as many rows for the growth of memory
MARKED = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' }}"
    "{% if message['role'] == 'assistant' %}"
    "{% generation %}{{ message['content'] + '<|im_end|>' }}{% endgeneration %}{{ '\n' }}"
    "{% else %}{{ message['content'] + '<|im_end|>\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def conversations(count: int) -> Iterator[dict[str, Any]]:
    """One to three questions and answers of a sentence or two, no two conversations alike."""
    rng = random.Random(0)  # noqa: S311 - not a secret
    for number in range(count):
        messages = []
        for turn in range(rng.randint(1, 3)):
            question = f"{rng.choice(SENTENCES)} {number}.{turn}"
            answer = " ".join(rng.choices(SENTENCES, k=rng.randint(1, 2)))
            messages += [
                {"role": "user", "content": question},
                {"role": "assistant", "content": answer},
            ]
        yield {"messages": messages}


def ours(folder: Path, rows: Path, name: str) -> None:
    """Through our pipeline: formats, masks, lint, ledger, hashes, manifest."""
    launch = {
        "attempt_id": name,
        "job_id": "bench",
        "job_name": "bench",
        "spec": {
            "task": {"type": "sft", "loss_on": "assistant"},
            "model": {"source": "folder", "name_or_path": str(folder / "model")},
            "data": {"train": [{"source": "folder", "path": str(rows)}]},
        },
        "paths": {"work": str(folder / name)},
    }
    made = Launch.model_validate(launch)
    made = made.model_copy(update={"spec": resolve(made.spec, Hardware()).spec})
    prepare(made, folder / name)


def mapped(folder: Path, rows: Path, name: str) -> Any:
    """What someone writes who uses `datasets` and a template with markers."""
    from datasets import load_dataset
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder / "model")

    def encode(row: dict[str, Any]) -> dict[str, Any]:
        made = tokenizer.apply_chat_template(
            row["messages"], return_dict=True, return_assistant_tokens_mask=True
        )
        marks = zip(made["input_ids"], made["assistant_masks"], strict=True)
        labels = [token if mark else -100 for token, mark in marks]
        return {"input_ids": made["input_ids"], "labels": labels}

    read = load_dataset("json", data_files=str(rows), split="train", cache_dir=str(folder / name))
    return read.map(encode, remove_columns=["messages"])


def seconds(folder: Path, rows: Path, name: str) -> float:
    """How long one side takes; imports are done."""
    began = time.monotonic()
    (ours if name.startswith("ours") else mapped)(folder, rows, name)
    return time.monotonic() - began


def require_same(folder: Path, rows: Path) -> bool:
    """Raise AssertionError unless both sides make the same rows."""
    ours(folder, rows, "ours-same")
    own = open_prepared(folder / "ours-same").train
    theirs = mapped(folder, rows, "mapped-same")
    for column in ("input_ids", "labels"):
        assert own[column][:] == theirs[column][:], f"the sides made other {column}"
    return True


def peak_mb(folder: Path, rows: Path, name: str) -> float:
    """The most memory that our side has in a process of its own, in MB."""
    ours(folder, rows, name)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def compare(folder: Path, rows: Path, pairs: int) -> list[float]:
    """Ratios of rows per second, one a pair."""
    print(f"{'pair':>4} {'map':>8} {'ours':>8} {'ratio':>7}   seconds", flush=True)
    ratios = []
    for number in range(pairs):
        order = ["mapped", "ours"][:: -1 if number % 2 else 1]
        took = {}
        for side in order:
            name = f"{side}-{number}"
            log = folder / f"{name}.log"
            took[side] = in_fork(lambda name=name: seconds(folder, rows, name), log)
        ratios.append(took["mapped"] / took["ours"])
        shown = f"{took['mapped']:>8.2f} {took['ours']:>8.2f} {ratios[-1]:>7.3f}"
        print(f"{number + 1:>4} {shown}", flush=True)
    return ratios


def growth(folder: Path, rows: Path, count: int) -> float:
    """How much more memory ten times as many rows take, in MB."""
    many = write_rows(folder / "many.jsonl", conversations(MORE * count))
    log = folder / "peak.log"
    few_mb = in_fork(lambda: peak_mb(folder, rows, "ours-few"), log)
    many_mb = in_fork(lambda: peak_mb(folder, many, "ours-many"), log)
    print(f"peak: {few_mb:.0f} MB for {count} rows, {many_mb:.0f} MB for {MORE * count}")
    return float(many_mb - few_mb)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; 1 when a limit is broken."""
    options = _options(arguments)
    preload()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        log = folder / "lay.log"
        model = folder / "model"
        in_fork(lambda: str(make_tiny_model(model, vocab_size=4096, chat_template=MARKED)), log)
        rows = write_rows(folder / "rows.jsonl", conversations(options.rows))
        few = write_rows(folder / "few.jsonl", conversations(500))
        in_fork(lambda: require_same(folder, few), log)
        good = verdict("prepare / datasets.map", compare(folder, rows, options.pairs), LIMIT)
        more = [growth(folder, rows, options.rows)]
        good &= verdict("growth of memory in MB", more, GROWTH_MB, at_most=True)
    return 0 if good else 1


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--pairs", type=int, default=rounds_asked(5))
    parser.add_argument("--rows", type=int, default=10_000)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())

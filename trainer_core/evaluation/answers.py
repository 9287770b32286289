"""Answers that a model writes to the validation rows' prompts."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trainer_core.spec import Generation

IGNORED = -100
ANSWERED = {"tokens": ("input_ids", "labels"), "preferences": ("chosen_ids", "chosen_labels")}
"""Kind of rows → the columns that hold a prompt with its answer, and which tokens are answers."""
_LONGEST_TEXT = 20_000


@dataclass(frozen=True)
class Question:
    """Tokens of a prompt, and of the answer that the row gives."""

    prompt: list[int]
    reference: list[int]


def questions(rows: Any, kind: str, most: int) -> list[Question]:
    """The first `most` prompts of prepared rows: what stands before a row's last answer.

    Rows of plain text, whose first token is all that is given, have none.
    """
    ids, labels = ANSWERED[kind]
    found: list[Question] = []
    for row in rows:
        for sample_ids, sample_labels in _samples(row, ids, labels):
            question = _question(sample_ids, sample_labels)
            if question is not None:
                found.append(question)
            if len(found) == most:
                return found
    return found


def _samples(
    row: Mapping[str, Any], ids: str, labels: str
) -> Iterator[tuple[list[int], list[int]]]:
    """The samples of a row: one, or as many as were packed into it."""
    positions = row.get("position_ids") or range(len(row[ids]))
    starts = [i for i, position in enumerate(positions) if position == 0]
    for start, end in zip(starts, [*starts[1:], len(row[ids])], strict=True):
        yield row[ids][start:end], row[labels][start:end]


def _question(ids: Sequence[int], labels: Sequence[int]) -> Question | None:
    answered = [i for i, label in enumerate(labels) if label != IGNORED]
    if not answered:
        return None
    end = answered[-1] + 1
    start = end
    while start > 0 and labels[start - 1] != IGNORED:
        start -= 1
    return Question(list(ids[:start]), list(ids[start:end])) if start > 1 else None


def answer(trainer: Any, tokenizer: Any, wish: Generation, asked: Sequence[Question]) -> list[str]:
    """One text for each question, without special tokens; batches are padded on the left.

    Draws from no random generator of the training. Raises Interrupted when a signal asks to stop.
    """
    import torch

    size = trainer.args.per_device_eval_batch_size
    drawing = {"temperature": wish.temperature, "top_p": wish.top_p} if wish.do_sample else {}
    trainer.model.eval()
    texts: list[str] = []
    with trainer.apart_from_training(), torch.no_grad(), trainer.compute_loss_context_manager():
        torch.manual_seed(trainer.args.seed)
        for begin in range(0, len(asked), size):
            trainer.flow.stop.check()
            batch = _padded(asked[begin : begin + size], tokenizer.pad_token_id)
            inputs = {name: tensor.to(trainer.args.device) for name, tensor in batch.items()}
            written = trainer.model.generate(
                **inputs,
                max_new_tokens=wish.max_new_tokens,
                do_sample=wish.do_sample,
                pad_token_id=tokenizer.pad_token_id,
                use_cache=True,
                **drawing,
            )[:, inputs["input_ids"].shape[1] :]
            texts += tokenizer.batch_decode(written, skip_special_tokens=True)
            trainer.flow.say_it_lives(trainer.state)
    return [text[:_LONGEST_TEXT] for text in texts]


def told(tokenizer: Any, tokens: Sequence[int], *, special: bool = False) -> str:
    """Tokens as text, of bounded length."""
    text: str = tokenizer.decode(tokens, skip_special_tokens=not special)
    return text[:_LONGEST_TEXT]


def _padded(asked: Sequence[Question], pad: int) -> dict[str, Any]:
    import torch

    width = max(len(question.prompt) for question in asked)
    gaps = [width - len(question.prompt) for question in asked]
    pairs = list(zip(asked, gaps, strict=True))
    return {
        "input_ids": torch.tensor([[pad] * gap + q.prompt for q, gap in pairs]),
        "attention_mask": torch.tensor([[0] * gap + [1] * (width - gap) for gap in gaps]),
    }

"""The sample's rows in English: short, and quick to train on."""

import json
from typing import Any

from tests.services import ROOT

TRAIN, HELD_OUT = "shop", "shop-validation"
Rows = list[dict[str, Any]]


def answers(name: str) -> list[tuple[str, str]]:
    """Questions and answers; those that are held out are asked otherwise, about the same shop."""
    lines = (ROOT / "examples" / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
    turns = [[m["content"] for m in json.loads(line)["messages"]] for line in lines]
    return [(question, answer) for question, answer in turns if answer.isascii()]


def conversations(name: str) -> Rows:
    """As rows of `messages`."""
    return [
        {
            "messages": [
                {"role": "user", "content": question},
                {"role": "assistant", "content": answer},
            ]
        }
        for question, answer in answers(name)
    ]


def documents(name: str) -> Rows:
    """As plain texts."""
    return [{"text": f"{question}\n{answer}"} for question, answer in answers(name)]


def pairs(name: str) -> Rows:
    """An answer with the shop's greeting, which is preferred to the same without."""
    return [
        {"prompt": question, "chosen": answer, "rejected": answer.partition("! ")[2]}
        for question, answer in answers(name)
    ]

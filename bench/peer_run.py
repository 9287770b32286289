"""Runs a peer's own training in its own environment: `python peer_run.py PEER SETTINGS NOTES`.

SETTINGS is a JSON file of the peer's own settings. NOTES gets a JSON line for each step: when it
was done, its loss, and the tokens that went into the model so far.
"""
# ruff: noqa: TID253, PLC0415 - a script for an environment that holds the peer and nothing of ours

import json
import sys
import time
from functools import wraps
from pathlib import Path
from typing import Any

from transformers import TrainerCallback, trainer

NOTES = Path(sys.argv[3])


class Clock(TrainerCallback):
    """Notes when each step was done, and counts the tokens of its batches."""

    def __init__(self) -> None:
        self.tokens = 0

    def on_train_begin(self, _args: Any, _state: Any, _control: Any, **given: Any) -> None:
        """Count what the model is given."""

        def count(_model: Any, _given: Any, named: dict[str, Any]) -> None:
            self.tokens += named["input_ids"].numel()

        given["model"].register_forward_pre_hook(count, with_kwargs=True)

    def on_log(self, _args: Any, state: Any, _control: Any, **given: Any) -> None:
        """One line a step."""
        if "loss" in given["logs"]:
            line = [state.global_step, time.monotonic(), given["logs"]["loss"], self.tokens]
            with NOTES.open("a", encoding="utf-8") as notes:
                notes.write(json.dumps(line) + "\n")


def watch_every_trainer() -> None:
    """Give each Trainer a clock when it is made: peers replace the default callbacks."""
    make = trainer.Trainer.__init__

    @wraps(make)
    def made(self: Any, *given: Any, **named: Any) -> None:
        make(self, *given, **named)
        self.add_callback(Clock())

    trainer.Trainer.__init__ = made


def main() -> None:
    peer, settings, _ = sys.argv[1:]
    values = json.loads(Path(settings).read_text(encoding="utf-8"))
    watch_every_trainer()
    if peer == "llamafactory":
        from llamafactory.train.tuner import run_exp

        run_exp(values)
        return
    from swift import pretrain_main

    pretrain_main([word for name, value in values.items() for word in (f"--{name}", str(value))])


if __name__ == "__main__":
    main()

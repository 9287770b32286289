"""Runs a peer's own training in its own environment: `python peer_run.py PEER SETTINGS NOTES`.

SETTINGS is a JSON file of the peer's own settings. NOTES gets a JSON line for each step: when it
was done, its loss, and the tokens that went into the model so far. Steps are taken in turns with
another side (`bench.turns.Baton`); what is waited for one is no time of its own.
"""
# ruff: noqa: TID253, PLC0415 - a script for an environment that holds the peer and nothing of ours

import contextlib
import json
import os
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
        self._take, self._give, holds = map(int, os.environ["BATON"].split())
        self._holds = bool(holds)
        self._waited = 0.0

    def on_train_begin(self, _args: Any, _state: Any, _control: Any, **given: Any) -> None:
        """Count what the model is given."""

        def count(_model: Any, _given: Any, named: dict[str, Any]) -> None:
            self.tokens += named["input_ids"].numel()

        given["model"].register_forward_pre_hook(count, with_kwargs=True)

    def on_log(self, _args: Any, state: Any, _control: Any, **given: Any) -> None:
        """One line a step."""
        if "loss" in given["logs"]:
            now = time.monotonic()
            line = [state.global_step, now - self._waited, given["logs"]["loss"], self.tokens]
            with NOTES.open("a", encoding="utf-8") as notes:
                notes.write(json.dumps(line) + "\n")
            self._pass_on()
            self._waited += time.monotonic() - now

    def _pass_on(self) -> None:
        if self._holds:
            with contextlib.suppress(BrokenPipeError):
                os.write(self._give, b".")
        self._holds = bool(os.read(self._take, 1))


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

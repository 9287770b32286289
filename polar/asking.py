"""A model that answers in a process of its own, which has the training stack."""

import json
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self


class NoAnswer(Exception):
    """The model cannot be loaded, or asked so; the message says why."""


class Model:
    """One loaded model; `kind` is `chat`, `classify`, `images` or `embed`.

    with Model(folder) as model:
        for said in model.ask({"text": "Where is my order?"}): ...
    """

    def __init__(self, folder: Path, base: str | None = None) -> None:
        command = [sys.executable, "-P", "-m", "trainer_core", "answer", str(folder)]
        # A file: what nobody reads from a pipe would hold the process up.
        self._complaints = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115 - closed at the exit
        self._process = subprocess.Popen(
            [*command, *(["--base", base] if base else [])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._complaints,
            text=True,
        )
        self.kind = ""

    def __enter__(self) -> Self:
        self.kind = str(self._line()["ready"])
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.kill()
        self._process.communicate()
        self._complaints.close()

    def ask(self, request: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """Yield `{"piece": …}` as they come, then the whole answer; raises NoAnswer."""
        if self._process.stdin is not None:
            with suppress(BrokenPipeError):  # it has ended: why, is read below
                self._process.stdin.write(json.dumps(request) + "\n")
                self._process.stdin.flush()
        while True:
            said = self._line()
            if "error" in said:
                raise NoAnswer(str(said["error"]))
            if "done" in said:
                yield dict(said["done"])
                return
            yield said

    def _line(self) -> dict[str, Any]:
        line = self._process.stdout.readline() if self._process.stdout else ""
        if not line:
            if (code := self._process.wait()) < 0:
                name = signal.Signals(-code).name
                raise NoAnswer(f"the model's process was killed by {name}: is there memory enough?")
            self._complaints.seek(0)
            lines = [each.strip() for each in self._complaints if each.strip()]
            raise NoAnswer(lines[-1] if lines else "the model's process ended without a word")
        return dict(json.loads(line))

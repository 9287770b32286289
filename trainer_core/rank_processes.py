"""Starts the processes of a run that trains in several, and sees that they end together.

The launcher has the training stack imported and computes nothing, so that ranks are forked from it
within a moment. It starts rank 0, which prepares the data and then asks for the others; it hands
signals on to all of them; and when one dies it ends the rest and says why.
"""

import ctypes
import json
import os
import selectors
import signal
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from trainer_core.endings import Ending, ending_of
from trainer_core.errors import Interrupted, RankLost
from trainer_core.ranks import Seat
from trainer_core.spec import Launch, Paths
from trainer_core.stop import KILLED
from trainer_core.warm import preload
from trainer_core.words import flush

Work = Callable[[Launch, Seat], Ending]
"""What a rank does from its start to its end."""

_OTHERS_SAY_WHY = 2.0
"""Seconds between the first failure and the end of all: who failed first is heard first."""
_OTHERS_END = 15.0
"""Seconds for the rest to end after rank 0 has, or after a rank was interrupted."""
_TICK = 0.2
_PR_SET_PDEATHSIG = 1
_SIGNALS = (signal.SIGTERM, signal.SIGINT)


@dataclass
class _Rank:
    """One process; `ending` is what it said itself, `status` how the kernel saw it end."""

    number: int
    pid: int
    pipe: int
    heard: bytes = b""
    ending: Ending | None = None
    status: int | None = None
    killed: bool = False
    step: int = 0


@dataclass
class Crew:
    """All ranks of one run; used once."""

    launch: Launch
    count: int
    work: Work
    ranks: list[_Rank] = field(default_factory=list)
    _told: bool = False
    _deadline: float = float("inf")

    def __post_init__(self) -> None:
        self._store = Path(self.launch.paths.work) / f".ranks-{uuid.uuid4().hex[:12]}"
        self._failures: list[Ending] = []

    def run(self) -> tuple[Ending, int]:
        """From the first fork to the last death; how the run ended, and at which step.

        Ends in bounded time after the first rank has ended badly. Raises nothing of theirs.
        """
        preload()
        before = {number: signal.signal(number, self._hand_on) for number in _SIGNALS}
        try:
            self._start(0, self.launch)
            while any(rank.status is None for rank in self.ranks):
                self._hear()
                self._reap()
                if time.monotonic() > self._deadline:
                    self._kill()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            self._store.unlink(missing_ok=True)
        return self._ending(), max(rank.step for rank in self.ranks)

    # ---- processes ----

    def _start(self, number: int, launch: Launch) -> None:
        reading, writing = os.pipe()
        flush()
        launcher = os.getpid()
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        pid = os.fork()
        if pid == 0:
            self._become(number, launch, writing, launcher)
        os.close(writing)
        os.set_blocking(reading, False)
        self.ranks.append(_Rank(number, pid, reading))
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
        if self._told:
            _send(self.ranks[-1], signal.SIGTERM)

    def _become(self, number: int, launch: Launch, writing: int, launcher: int) -> None:
        """In the child: work, say how it ended, and leave without the launcher's clean-up."""
        code = RankLost.exit_code
        try:
            for signal_number in _SIGNALS:
                signal.signal(signal_number, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
            _die_with(launcher)
            os.setpgid(0, 0)  # a terminal's Ctrl-C reaches the launcher alone, which hands it on
            for rank in self.ranks:
                os.close(rank.pipe)
            seat = Seat(number, self.count, self._store, lambda message: _tell(writing, message))
            ending = self.work(launch, seat)
            code = ending.code
        finally:
            flush()
            os._exit(code)

    def _hand_on(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002 - handler
        self._told = True
        for rank in self.ranks:
            _send(rank, number)

    def _kill(self) -> None:
        for rank in self.ranks:
            if rank.status is None:
                rank.killed = True
                _send(rank, signal.SIGKILL)

    # ---- what they say and how they end ----

    def _hear(self) -> None:
        with selectors.DefaultSelector() as selector:
            for rank in self.ranks:
                if rank.status is None:
                    selector.register(rank.pipe, selectors.EVENT_READ, rank)
            for key, _ in selector.select(_TICK):
                self._read(key.data)

    def _read(self, rank: _Rank) -> None:
        while True:
            try:
                piece = os.read(rank.pipe, 65_536)
            except BlockingIOError:
                return
            if not piece:
                time.sleep(0.01)  # it ends: until then its pipe is ready again and again
                return
            rank.heard += piece
            while b"\n" in rank.heard:
                line, _, rank.heard = rank.heard.partition(b"\n")
                self._obey(rank, json.loads(line))

    def _obey(self, rank: _Rank, message: dict[str, Any]) -> None:
        if "peers" in message:
            # Only paths travel: which fields of a spec were said decides what is filled in.
            paths = Paths.model_validate(message["peers"])
            launch = self.launch.model_copy(update={"paths": paths})
            for number in range(1, self.count):
                self._start(number, launch)
            return
        rank.ending, rank.step = Ending(**message["ending"]), message["step"]
        if rank.ending.code not in (0, Interrupted.exit_code):
            self._failures.append(rank.ending)
            self._end_within(_OTHERS_SAY_WHY)
        elif rank.number == 0 or rank.ending.code:
            self._end_within(_OTHERS_END)

    def _reap(self) -> None:
        for rank in self.ranks:
            if rank.status is not None:
                continue
            done, status = os.waitpid(rank.pid, os.WNOHANG)
            if done:
                self._read(rank)  # what it said last
                os.close(rank.pipe)
                rank.status = os.waitstatus_to_exitcode(status)
                if rank.ending is None:
                    self._end_within(_OTHERS_SAY_WHY)

    def _end_within(self, seconds: float) -> None:
        self._deadline = min(self._deadline, time.monotonic() + seconds)

    # ---- why it ended ----

    def _ending(self) -> Ending:
        first = self.ranks[0].ending
        if first is not None and first.code in (0, Interrupted.exit_code):
            return first
        if lost := self._lost():
            return lost
        said = [rank.ending for rank in self.ranks if rank.ending is not None]
        stopped = [ending for ending in said if ending.code == Interrupted.exit_code]
        if self._told and stopped:
            return stopped[0]
        return (self._failures or said)[0]

    def _lost(self) -> Ending | None:
        """A rank that ended without a word, and not by our hand."""
        for rank in self.ranks:
            if rank.ending is None and not rank.killed:
                if self._told and rank.status in (KILLED, -signal.SIGTERM, -signal.SIGINT):
                    return ending_of(Interrupted("stopped by a signal"))
                return ending_of(RankLost(_how(rank, self.count)))
        return None


def _how(rank: _Rank, count: int) -> str:
    status = rank.status or 0
    how = f"ended without a word (exit code {status})"
    if status < 0:
        how = f"was killed by {signal.Signals(-status).name}"
        if status == -signal.SIGKILL:
            how += ", perhaps for lack of memory"
    return f"rank {rank.number} of {count} processes {how}; the others were ended"


def _tell(pipe: int, message: Mapping[str, Any]) -> None:
    data = json.dumps(message).encode() + b"\n"
    with suppress(BrokenPipeError):  # the launcher is gone, and takes this process along
        while data:
            data = data[os.write(pipe, data) :]


def _send(rank: _Rank, number: int) -> None:
    if rank.status is None:
        with suppress(ProcessLookupError):
            os.kill(rank.pid, number)


def _die_with(launcher: int) -> None:
    with suppress(OSError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != launcher:
        os._exit(KILLED)


def told(ending: Ending, step: int) -> dict[str, Any]:
    """A rank's message of its end."""
    return {"ending": asdict(ending), "step": step}

"""What the supervisor says about the running stack: run/state.json."""

import json
from contextlib import suppress
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, Field

from polar.stack import proctree
from polar.stack.home import Home
from polar.stack.private import write_private

Condition = Literal[
    "waiting", "starting", "ready", "done", "restarting", "failed", "stopping", "stopped"
]


class ProcessState(BaseModel):
    """One process of the table."""

    condition: Condition = "waiting"
    pid: int | None = None
    since: float = Field(0.0, description="Seconds since the epoch of the last change.")
    restarts: int = 0
    exit_code: int | None = None
    required: bool = True
    address: str | None = None


class StackState(BaseModel):
    """The whole stack; `identity` is `pid:start` of the supervisor, `guard` that of its parent."""

    identity: str
    guard: str = ""
    phase: Literal["starting", "ready", "stopping", "failed"] = "starting"
    url: str
    auth: Literal["keys", "none"] = "keys"
    role: Literal["service", "host"] = "service"
    message: str = ""
    processes: dict[str, ProcessState] = Field(default_factory=dict)


def state_file(home: Home) -> Path:
    """Where the state lies."""
    return home.run / "state.json"


def pid_of(state: StackState) -> int:
    """Return the supervisor's pid."""
    return int(state.identity.partition(":")[0])


def write_state(home: Home, state: StackState) -> None:
    """Put down the state in one step."""
    write_private(state_file(home), state.model_dump_json(indent=1))


def last_state(home: Home) -> StackState | None:
    """Return what was last put down, by a stack that may be gone."""
    with suppress(OSError, json.JSONDecodeError, ValueError):
        return StackState.model_validate_json(state_file(home).read_text(encoding="utf-8"))
    return None


def running_state(home: Home) -> StackState | None:
    """Return the state of the running stack, or None when none runs."""
    state = last_state(home)
    if state is None or not proctree.is_alive(state.identity):
        return None
    return state

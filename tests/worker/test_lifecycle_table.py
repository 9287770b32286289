"""Every state × every request, for real: the table in docs/lifecycle.md is what happens here.

`POLAR_WRITE_DOCS=1 pytest tests/worker/test_lifecycle_table.py` writes the document's tables again.
"""

import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from app.attempts.service import finalize
from app.db import transaction
from app.jobs.lifecycle import RULES
from app.main import create_app
from app.preparations.service import claim_preparation, finish_preparation
from app.settings import Settings, get_settings
from app.storage import Store
from tests.services import ROOT
from tests.worker.conftest import forget
from tests.worker.world import one, rows, run_sql
from worker import takeover
from worker.placement import place
from worker.stepper import Stepper
from worker.targets.fake import FakeTarget

DOCUMENT = ROOT / "docs" / "lifecycle.md"
HERE = "reconciler-1"
TERMINAL = ("succeeded", "failed", "cancelled")


@dataclass
class World:
    """The API, and a reconciler that moves only when it is told to."""

    api: TestClient
    settings: Settings
    spec: dict[str, Any]
    now: float = 0.0
    target: FakeTarget = field(init=False)

    def __post_init__(self) -> None:
        self.target = FakeTarget(clock=lambda: self.now)
        self.stepper = Stepper(self.target, Store(self.settings), self.settings, HERE)

    def submit(self, **labels: str) -> str:
        """A job on the fake target, its data not yet prepared."""
        named = {f"fake/{name}": value for name, value in {"pace": "1", **labels}.items()}
        answer = self.api.post("/jobs", json={**self.spec, "labels": named})
        assert answer.status_code == 201, answer.text
        return str(answer.json()["id"])

    def prepare(self, job: str, *, finish: bool = True) -> None:
        with transaction() as session:
            token = claim_preparation(session, job, "p1")
            assert token is not None
        if finish:
            with transaction() as session:
                finish_preparation(session, job, token, "a" * 64, {})

    def place(self) -> None:
        with transaction() as session:
            place(session, HERE)

    def step(self, seconds: float = 1.0) -> None:
        self.now += seconds
        self.place()
        with transaction() as session:
            takeover.meet_requests(session)
        self.stepper.step()

    def state(self, job: str) -> tuple[str, str | None]:
        return rows("SELECT status, phase FROM jobs WHERE id = :id", id=job)[0]

    def until(self, job: str, *wanted: str) -> str:
        for _ in range(40):
            if set(self.state(job)) & set(wanted):
                return job
            self.step()
        raise AssertionError(self.state(job))


@pytest.fixture
def world(
    store_settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[World]:
    del store_settings
    for name in ("model", "data"):
        (tmp_path / name).mkdir()
    (tmp_path / "model" / "config.json").write_text('{"model_type": "llama"}')
    (tmp_path / "data" / "rows.jsonl").write_text('{"text": "one"}\n')
    monkeypatch.setenv("POLAR_AUTH", "none")
    monkeypatch.setenv("POLAR_FAKE_TARGET", "true")
    monkeypatch.setenv("POLAR_PREPARE_SLOTS", "1000")  # one host prepares for all requests here
    monkeypatch.setenv("POLAR_MODEL_FOLDERS", f'["{tmp_path}"]')
    monkeypatch.setenv("POLAR_DATA_FOLDERS", f'["{tmp_path}"]')
    forget()
    settings = get_settings()
    spec = {
        "task": {"type": "sft"},
        "model": {"source": "folder", "name_or_path": str(tmp_path / "model")},
        "data": {"train": [{"source": "folder", "path": str(tmp_path / "data" / "rows.jsonl")}]},
        "compute": {"target": "fake"},
        "retry": {"max_attempts": 2},
    }
    with TestClient(create_app(settings)) as api:
        yield World(api, settings, spec)


def _preparing(world: World) -> str:
    job = world.submit()
    world.prepare(job, finish=False)
    return job


def _waiting(world: World) -> str:
    job = world.submit()
    world.prepare(job)
    return job


def _backing_off(world: World) -> str:
    job = world.submit(fault="gone")
    world.prepare(job)
    for _ in range(20):
        world.step()
        if one("SELECT 1 FROM attempts WHERE outcome = 'lost' AND job_id = :id", id=job):
            break
    run_sql("UPDATE jobs SET not_before = now() + interval '1 h' WHERE id = :id", id=job)
    return job


def _provisioning(world: World) -> str:
    job = _waiting(world)
    world.place()
    return job


def _held_in(phase: str) -> Callable[[World], str]:
    def reach(world: World) -> str:
        job = world.submit(hold=phase)
        world.prepare(job)
        return world.until(job, phase)

    return reach


def _finalizing(world: World) -> str:
    job = world.submit()
    world.prepare(job)
    world.until(job, "publishing")
    attempt, token = rows("SELECT id, lease_token FROM attempts WHERE job_id = :id", id=job)[0]
    with transaction() as session:
        assert finalize(session, attempt, token)
    return job


def _ended(how: str) -> Callable[[World], str]:
    def reach(world: World) -> str:
        job = world.submit(**({"fault": "error"} if how == "failed" else {}))
        world.prepare(job)
        if how == "cancelled":
            world.api.post(f"/jobs/{job}/cancel")
        return world.until(job, how)

    return reach


def _asked(reach: Callable[[World], str], wish: str) -> Callable[[World], str]:
    """The state in which nobody has met the wish yet."""

    def ask(world: World) -> str:
        job = reach(world)
        assert world.api.post(f"/jobs/{job}/{wish}").status_code == 202
        return job

    return ask


def _paused(reach: Callable[[World], str]) -> Callable[[World], str]:
    def pause(world: World) -> str:
        return world.until(_asked(reach, "pause")(world), "paused")

    return pause


def _unreleased(world: World) -> str:
    job = _ended("failed")(world)
    run_sql(
        "UPDATE attempts SET released_at = NULL, cleanup_error = 'device memory is in use'"
        " WHERE job_id = :id",
        id=job,
    )
    return job


STATES: dict[str, Callable[[World], str]] = {
    "queued, its data being prepared": _preparing,
    "queued, waiting for a device": _waiting,
    "queued, between two attempts": _backing_off,
    "provisioning": _provisioning,
    "provisioning, a pause asked for": _asked(_provisioning, "pause"),
    "running, loading": _held_in("loading"),
    "running, training": _held_in("training"),
    "running, a pause asked for": _asked(_held_in("training"), "pause"),
    "running, a cancel asked for": _asked(_held_in("training"), "cancel"),
    "running, evaluating": _held_in("evaluating"),
    "running, publishing": _held_in("publishing"),
    "finalizing": _finalizing,
    "paused while its data was prepared": _paused(_preparing),
    "paused while it trained": _paused(_held_in("training")),
    "succeeded": _ended("succeeded"),
    "failed": _ended("failed"),
    "failed, its machine not released": _unreleased,
    "cancelled": _ended("cancelled"),
}


def _cancel(world: World, job: str) -> Any:
    answer = world.api.post(f"/jobs/{job}/cancel")
    if answer.is_success:
        world.until(job, *TERMINAL)
    return answer


def _pause(world: World, job: str) -> Any:
    answer = world.api.post(f"/jobs/{job}/pause")
    if answer.is_success:
        world.until(job, "paused", *TERMINAL)
    return answer


REQUESTS: dict[str, Callable[[World, str], Any]] = {
    "pause": _pause,
    "resume": lambda w, job: w.api.post(f"/jobs/{job}/resume"),
    "cancel": _cancel,
    "change priority": lambda w, job: w.api.patch(f"/jobs/{job}", json={"priority": 7}),
    "rename": lambda w, job: w.api.patch(f"/jobs/{job}", json={"name": "other"}),
    "retry": lambda w, job: w.api.post(f"/jobs/{job}/retry"),
    "retry from scratch": lambda w, job: w.api.post(
        f"/jobs/{job}/retry", json={"from_scratch": True}
    ),
    "clone": lambda w, job: w.api.post(f"/jobs/{job}/clone", json={}),
    "delete": lambda w, job: w.api.delete(f"/jobs/{job}"),
}


def _outcome(world: World, job: str, before: str, request: str) -> str:
    """Send the request and say what came of it, as a cell of the table."""
    answer = REQUESTS[request](world, job)
    found = rows("SELECT status FROM jobs WHERE id = :id", id=job)
    if answer.status_code >= 400:
        assert found == [(before,)], "a refused request changes nothing"
        return f"{answer.status_code} `{answer.json()['code']}`"
    if answer.status_code == 201:
        assert found == [(before,)]
        assert answer.json()["status"] == "queued"
        return "201, a new job"
    if not found:
        return f"{answer.status_code}, gone"
    after = found[0][0]
    return f"{answer.status_code}" if after == before else f"{answer.status_code} → {after}"


_cells: dict[tuple[str, str], str] = {}


@pytest.mark.parametrize("state", STATES)
def test_requests_in_a_state(world: World, state: str):
    for request in REQUESTS:
        job = STATES[state](world)
        before = world.state(job)[0]
        assert before == re.split(r"[, ]", state)[0]
        _cells[state, request] = _outcome(world, job, before, request)


def test_the_document_says_what_happens():
    if len(_cells) < len(STATES) * len(REQUESTS):
        pytest.skip("needs every cell: run the whole file")
    document = DOCUMENT.read_text(encoding="utf-8")
    expected = filled(filled(document, "requests", _requests()), "reasons", _reasons())
    if os.environ.get("POLAR_WRITE_DOCS"):
        DOCUMENT.write_text(expected, encoding="utf-8")
    assert DOCUMENT.read_text(encoding="utf-8") == expected, "see this file's first lines"


def _requests() -> str:
    lines = [f"| state | {' | '.join(REQUESTS)} |", "|---" * (len(REQUESTS) + 1) + "|"]
    for state in STATES:
        lines.append(f"| {state} | {' | '.join(_cells[state, name] for name in REQUESTS)} |")
    return "\n".join(lines)


def _reasons() -> str:
    lines = ["| reason | tried again | else it is the turn of |", "|---|---|---|"]
    for reason, rule in RULES.items():
        again = "yes, rather elsewhere" if rule.machine else "yes" if rule.retried else "no"
        lines.append(f"| `{reason}` | {again} | {rule.turn} |")
    return "\n".join(lines)


def filled(document: str, name: str, table: str) -> str:
    found = re.compile(f"(<!-- {name} -->\n).*?(\n<!-- end -->)", re.DOTALL)
    assert found.search(document), f"docs/lifecycle.md has no place for {name}"
    return found.sub(lambda m: m.group(1) + table + m.group(2), document)

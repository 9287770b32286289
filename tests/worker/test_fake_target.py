"""A job on the fake target goes through every state by the reconciler's steps, faults included."""

import pytest
from sqlalchemy.exc import DBAPIError

from app.db import transaction
from app.settings import Settings
from app.storage import Store
from tests.worker.world import add_job, one, rows, run_sql
from worker.placement import place
from worker.stepper import Stepper
from worker.targets.fake import FakeTarget

HERE = "reconciler-1"


class World:
    """One reconciler with a fake target whose clock stands still until it is moved."""

    def __init__(self, settings: Settings) -> None:
        self.now = 0.0
        self.settings = settings
        self.target = FakeTarget(clock=lambda: self.now)
        self.stepper = Stepper(self.target, Store(settings), settings, HERE)

    def job(self, max_attempts: int = 1, **labels: str) -> str:
        named = {f"fake/{key}": value for key, value in labels.items()}
        return add_job(target="fake", labels={"fake/pace": "1", **named}, max_attempts=max_attempts)

    def step(self, seconds: float = 0.0) -> None:
        self.now += seconds
        run_sql("UPDATE jobs SET not_before = NULL WHERE status = 'queued'")
        with transaction() as session:
            place(session, HERE)
        self.stepper.step()

    def until_the_end(self, job: str) -> tuple[str, str | None]:
        for _ in range(60):
            found = rows("SELECT status, reason FROM jobs WHERE id = :id", id=job)[0]
            if found[0] in ("succeeded", "failed", "cancelled"):
                return found
            self.step(1.0)
        raise AssertionError(found)


@pytest.fixture
def world(store_settings: Settings) -> World:
    return World(store_settings)


def test_a_run_goes_through_its_states_and_publishes(world: World):
    job = world.job(steps="4")
    seen = []
    for _ in range(30):
        state = rows("SELECT status, phase FROM jobs WHERE id = :id", id=job)[0]
        if state not in seen:
            seen.append(state)
        world.step(1.0)
    assert seen == [
        ("queued", None),
        ("provisioning", None),
        ("running", "loading"),
        ("running", "training"),
        ("running", "evaluating"),
        ("running", "publishing"),
        ("succeeded", None),
    ]
    events = rows("SELECT type, data FROM job_events WHERE job_id = :id ORDER BY seq", id=job)
    losses = [d["loss"] for t, d in events if t == "metrics" and "loss" in d]
    assert losses == [3.0, 1.5, 1.0, 0.75]
    assert "finalizing" in [d["status"] for t, d in events if t == "status"]
    assert rows("SELECT outcome, released_at IS NULL FROM attempts") == [("succeeded", False)]
    prefix = one("SELECT prefix FROM model_versions")
    assert world.stepper._objects.head(f"{prefix}manifest.json")
    assert world.target.sweep("att_") == []


def test_b2_a_run_whose_handle_was_not_kept_is_found_again(world: World):
    """The reconciler is interrupted between the launch and the note about it."""
    job = world.job()
    with transaction() as session:
        place(session, HERE)
    run_sql(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN RAISE EXCEPTION 'interrupted'; END $$"
    )
    run_sql(
        "CREATE TRIGGER interrupt BEFORE UPDATE OF handle ON attempts EXECUTE FUNCTION refuse()"
    )
    with pytest.raises(DBAPIError, match="interrupted"):
        world.stepper.step()
    run_sql("DROP TRIGGER interrupt ON attempts")
    (launched,) = world.target.sweep("att_")
    assert rows("SELECT id, handle FROM attempts") == [(launched.label, None)]
    assert world.until_the_end(job) == ("succeeded", None)
    assert rows("SELECT id, outcome FROM attempts") == [(launched.label, "succeeded")]
    assert world.target.sweep("att_") == []


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("no_capacity", "no_capacity"),
        ("provisioning_failed", "provisioning_failed"),
        ("misconfigured", "target_misconfigured"),
        ("error", "trainer_error"),
        ("out_of_memory", "out_of_memory"),
        ("killed", "killed"),
        ("gone", "machine_lost"),
    ],
)
def test_every_fault_has_its_reason(world: World, fault: str, reason: str):
    job = world.job(fault=fault)
    assert world.until_the_end(job) == ("failed", reason)
    assert one("SELECT released_at IS NOT NULL FROM attempts")
    assert one("SELECT count(*) FROM model_versions") == 0
    assert world.target.sweep("att_") == []


def test_what_is_retried_is_tried_as_often_as_allowed(world: World):
    assert world.until_the_end(world.job(fault="gone", max_attempts=3)) == (
        "failed",
        "machine_lost",
    )
    assert rows("SELECT number, outcome, reason FROM attempts ORDER BY number") == [
        (number, "lost", "machine_lost") for number in (1, 2, 3)
    ]


def test_what_is_not_retried_ends_at_once(world: World):
    assert world.until_the_end(world.job(fault="error", max_attempts=3))[0] == "failed"
    assert one("SELECT count(*) FROM attempts") == 1


@pytest.mark.parametrize("phase", ["loading", "training", "evaluating", "publishing"])
def test_a_cancel_is_obeyed_in_every_phase(world: World, phase: str):
    job = world.job(hold=phase)
    for _ in range(15):
        world.step(1.0)
    assert rows("SELECT status, phase FROM jobs") == [("running", phase)]
    run_sql("UPDATE jobs SET cancel_requested_at = now()")
    world.step()
    world.step()
    assert rows("SELECT status FROM jobs WHERE id = :id", id=job) == [("cancelled",)]
    assert rows("SELECT outcome, released_at IS NULL FROM attempts") == [("cancelled", False)]
    assert world.target.sweep("att_") == []


def test_a_stop_that_failed_is_tried_again(world: World):
    world.job(hold="training", fault="stubborn")
    for _ in range(8):
        world.step(1.0)
    run_sql("UPDATE jobs SET cancel_requested_at = now()")
    world.step()
    assert one("SELECT status FROM jobs") == "running"
    world.step()
    world.step()
    assert one("SELECT status FROM jobs") == "cancelled"


def test_silence_ends_by_its_own_timeouts(world: World):
    job = world.job(fault="silent")
    world.step()
    world.step()
    run_sql("UPDATE attempts SET claimed_at = now() - interval '601 s'")  # start_timeout is 600
    assert world.until_the_end(job) == ("failed", "start_timeout")
    job = world.job(hold="training")
    for _ in range(10):
        world.step(1.0)
    run_sql("UPDATE attempts SET event_at = now() - interval '1801 s' WHERE finished_at IS NULL")
    assert world.until_the_end(job) == ("failed", "stalled")


def test_the_lease_is_renewed_and_a_fenced_attempt_is_stopped(world: World):
    world.job(hold="training")
    for _ in range(8):
        world.step(1.0)
    run_sql("UPDATE attempts SET lease_expires_at = now() + interval '5 s'")
    world.step()
    assert one("SELECT lease_expires_at > now() + interval '50 s' FROM attempts")
    stepper = world.stepper
    [row] = stepper._mine()
    stale = type(row)(**{**vars(row), "token": "someone-elses"})
    assert stepper._watch(stale, None) == 0
    assert world.target.sweep("att_") == []

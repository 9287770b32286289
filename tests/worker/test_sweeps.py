"""The end of a sweep on a real Postgres: the best run, its model, and who is told."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import app.comparison.service
import app.sweeps.finishing
from app.attempts import service as attempts
from app.attempts.service import Ending, Publication, StoredFile
from app.comparison.schemas import ComparisonQuery
from app.comparison.service import compare
from app.db import transaction
from app.errors import Conflict
from app.events.archive import get_archive
from app.events.archiving import archive_events
from app.jobs.lifecycle import FailureReason, Status, transition
from app.jobs.service import delete_job, prepare_deletion
from app.storage import get_store
from app.sweeps import service
from app.sweeps.finishing import finish_next
from app.sweeps.schemas import NewSweep, SweepOut
from app.webhooks.schemas import NewWebhook
from app.webhooks.service import create_webhook
from tests.worker.test_attempts import do, event, ingest
from tests.worker.world import PROJECT, add_host, one, rows, run_sql
from worker.placement import place

pytestmark = pytest.mark.usefixtures("settings")
HOST = "host-a"
SPEC = {
    "task": {"type": "sft"},
    "model": {"name_or_path": "org/model"},
    "data": {"train": [{"source": "hub", "path": "org/data"}]},
}


def start(runs: int = 4, **changes: Any) -> SweepOut:
    body = {
        "name": "rates",
        "spec": SPEC,
        "grid": {"training.seed": list(range(runs))},
        "metric": {"name": "eval_loss", "goal": "min"},
        **changes,
    }
    with transaction() as session:
        made = service.create_sweep(session, PROJECT, NewSweep.model_validate(body))
    run_sql("UPDATE jobs SET prepared_key = :key", key="a" * 64)
    return made


def show(sweep: SweepOut) -> SweepOut:
    with transaction() as session:
        return service.show_sweep(session, PROJECT, sweep.id)


def run(job_id: str, *points: dict[str, Any], fails: bool = False) -> None:
    """See a job through to its end, with these metrics on the way."""
    if not one("SELECT id FROM workers WHERE id = :id", id=HOST):
        add_host(HOST, slots=1)
    attempt_id = do(attempts.reserve, job_id, HOST, [0])
    claim = do(attempts.claim, attempt_id, HOST, "nonce")
    for n, point in enumerate(points, 1):
        ingest(claim, event(n, "metrics", **{"epoch": 1.0, **point}))
    if not points:
        ingest(claim, event(1, "phase", phase="training"))
    if fails:
        end = Ending("failed", FailureReason.DIVERGED, "the loss is not a number")
        do(attempts.finish, attempt_id, claim.token, end)
    else:
        assert do(attempts.finalize, attempt_id, claim.token)
        prefix = f"{PROJECT}/jobs/{job_id}/{attempt_id}/model/"
        files = [StoredFile("model/config.json", f"{prefix}config.json", "model", 2, "a" * 64)]
        made = Publication(prefix, "f" * 64, files, "adapter", "org/model")
        assert do(attempts.commit_model, attempt_id, claim.token, made)
    do(attempts.release, attempt_id)


def ids(sweep: SweepOut) -> list[str]:
    return [each.job_id for each in sweep.runs]


def versions() -> list[tuple[Any, ...]]:
    return rows("SELECT name, version, job_id FROM model_versions")


def test_the_best_run_is_named_and_its_model_alone_is_registered() -> None:
    with transaction() as session:
        hook = NewWebhook(url="https://hooks.example.com/", events=["sweep.finished"])
        create_webhook(session, PROJECT, hook)
    sweep = start(5)
    a, b, c, d, e = ids(sweep)
    run(a, {"step": 1, "eval_loss": 2.0})
    run(b, {"step": 1, "eval_loss": 0.1}, fails=True)  # the best number, and a run that failed
    run(c, {"step": 1, "eval_loss": 0.2}, {"step": 2, "loss": 1.0})  # ended with what is no number
    run(d, {"step": 1, "eval_loss": 9.0}, {"step": 2, "eval_loss": 1.5, "loss": 1.0})
    assert finish_next() == 0  # one of them still waits
    assert show(sweep).runs[3].value == 1.5
    assert versions() == []
    run(e, {"step": 1, "eval_loss": 1.5})  # as good, and later
    assert finish_next() == 1
    assert finish_next() == 0
    found = show(sweep)
    assert (found.status, found.reason) == ("finished", None)
    assert found.best is not None
    assert found.best.model_dump() == {
        "job_id": d,
        "number": 4,
        "value": 1.5,
        "model": {"name": "rates", "version": 1},
    }
    assert [each.value for each in found.runs] == [2.0, None, None, 1.5, 1.5]
    assert versions() == [("rates", 1, d)]
    [(body,)] = rows("SELECT body::jsonb FROM webhook_deliveries")
    assert (body["type"], body["links"]) == ("sweep.finished", {"self": f"/sweeps/{sweep.id}"})
    assert body["data"]["sweep"]["best"]["job_id"] == d
    assert "spec" not in body["data"]["sweep"]


@pytest.mark.parametrize(
    ("goal", "by", "best"), [("min", "final", 2), ("min", "best", 1), ("max", "best", 2)]
)
def test_the_value_is_that_of_the_end_or_the_best_on_the_way(goal: str, by: str, best: int) -> None:
    sweep = start(2, metric={"name": "eval_loss", "goal": goal, "by": by})
    one_, two = ids(sweep)
    run(one_, {"step": 1, "eval_loss": 1.0}, {"step": 2, "eval_loss": 4.0})
    run(two, {"step": 1, "eval_loss": 5.0}, {"step": 2, "eval_loss": 3.0})
    assert finish_next() == 1
    found = show(sweep).best
    assert found is not None
    assert found.number == best


def test_without_a_number_there_is_no_best_and_the_reason_is_told() -> None:
    none, failed = start(1), start(1)
    run(*ids(none), {"step": 1, "loss": 1.0})
    run(*ids(failed), fails=True)
    assert finish_next() + finish_next() == 2
    found = show(none)
    assert (found.status, found.best) == ("finished", None)
    assert "none of the 1 runs that succeeded has come to a number for eval_loss" in str(
        found.reason
    )
    assert show(failed).reason == "no run has succeeded"
    assert versions() == []


def test_a_cancelled_sweep_names_its_best_and_registers_nothing() -> None:
    sweep = start(2)
    run(ids(sweep)[0], {"step": 1, "eval_loss": 1.0})
    with transaction() as session:
        service.cancel_sweep(session, PROJECT, sweep.id)
    assert finish_next() == 1
    found = show(sweep)
    assert (found.status, found.best and found.best.number) == ("cancelled", 1)
    assert found.reason == "it was cancelled, so nothing was registered"
    assert versions() == []


def test_runs_that_register_themselves_are_left_alone() -> None:
    sweep = start(2, register_best=False)
    for number, job_id in enumerate(ids(sweep)):
        run(job_id, {"step": 1, "eval_loss": float(number)})
    assert finish_next() == 1
    assert [name for name, _, _ in versions()] == ["rates-1", "rates-2"]
    found = show(sweep).best
    assert found is not None
    assert (found.number, found.model) == (1, None)


def test_it_is_all_or_nothing_and_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that dies before the commit leaves nothing; of two at once one finishes it."""
    sweep = start(2)
    for number, job_id in enumerate(ids(sweep)):
        run(job_id, {"step": 1, "eval_loss": float(number)})

    class Killed(BaseException):
        """As a power cut would end it."""

    def dies(*_: Any) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(app.sweeps.finishing, "announce", dies)
        with pytest.raises(Killed):
            finish_next()
    assert show(sweep).status == "running"
    assert versions() == []
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(lambda _: finish_next(), range(3)))
    assert show(sweep).status == "finished"
    assert [version for _, version, _ in versions()] == [1]


def test_one_that_cannot_be_finished_lets_the_others_go_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first, second = start(1), start(1)
    for sweep in (first, second):
        run(*ids(sweep), {"step": 1, "eval_loss": 1.0})

    def breaks(*_: Any) -> None:
        raise RuntimeError("no store")

    with monkeypatch.context() as patch:
        patch.setattr(app.sweeps.finishing, "read_curves", breaks)
        with pytest.raises(RuntimeError, match="no store"):
            finish_next()
    assert finish_next() == 1
    assert finish_next() == 0
    assert (show(first).status, show(second).status) == ("running", "finished")
    monkeypatch.setattr(app.comparison.service, "LARGEST", 1)  # each is too large for two
    page = compare(PROJECT, [*ids(first), *ids(second)], ComparisonQuery())
    assert ([each.id for each in page.jobs], page.next_cursor) == (ids(first), ids(first)[0])
    run_sql("UPDATE sweeps SET finish_at = now()")
    assert finish_next() == 1
    assert show(first).status == "finished"


@pytest.mark.parametrize("comes_back", [True, False])
def test_damaged_metrics_are_tried_for_a_day_and_then_left_out(
    store_settings: object, *, comes_back: bool
) -> None:
    del store_settings
    get_archive.cache_clear()
    sweep, other = start(2), start(1)
    for job_id, value in zip((*ids(sweep), *ids(other)), (0.1, 0.5, 1.0), strict=True):
        run(job_id, {"step": 1, "eval_loss": value})
    assert archive_events(get_store(), 0.0, 60.0) > 0
    [(key, size)] = rows("SELECT key, size FROM event_ranges WHERE job_id = :j", j=ids(sweep)[0])
    whole = get_store().get_bytes(key, size)
    get_store().put_bytes(key, bytes(size))
    assert finish_next() + finish_next() == 2
    assert finish_next() == 0
    assert (show(sweep).status, show(other).status) == ("running", "finished")
    assert "the metrics of run 1 cannot be read: events 1-" in str(show(sweep).reason)
    if comes_back:
        get_store().put_bytes(key, whole)
    run_sql("UPDATE sweeps SET finish_at = now(), damaged_since = damaged_since - interval '25 h'")
    assert finish_next() == 1
    found = show(sweep)
    assert found.best is not None
    if comes_back:
        assert (found.best.number, found.reason) == (1, None)
    else:
        assert found.best.number == 2
        assert str(found.reason).endswith("the archived file is damaged, so it was left out")
    assert versions()[-1][2] == found.best.job_id


def test_a_run_that_may_be_registered_is_not_deleted_and_one_that_is_gone_is_not_the_best(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sweep = start(2)
    best, other = ids(sweep)
    run(best, {"step": 1, "eval_loss": 1.0})
    run(other, {"step": 1, "eval_loss": 2.0})
    with transaction() as session, pytest.raises(Conflict) as refused:
        prepare_deletion(session, PROJECT, best, artifacts=True)
    assert refused.value.code == "in_use"
    assert f"sweep {sweep.id} is not finished" in refused.value.message
    with transaction() as session:
        service.cancel_sweep(session, PROJECT, sweep.id)
    read = app.sweeps.finishing._values

    def deleted_meanwhile(*asked: Any) -> Any:
        found = read(*asked)
        with transaction() as session:
            delete_job(session, PROJECT, best)
        return found

    monkeypatch.setattr(app.sweeps.finishing, "_values", deleted_meanwhile)
    assert finish_next() == 1
    found = show(sweep)
    assert (found.status, found.best and found.best.job_id) == ("cancelled", other)


def test_only_so_many_runs_have_devices_at_once() -> None:
    add_host(HOST, slots=9)
    sweep, free = start(4, max_concurrent=2), start(2)
    with transaction() as session:
        assert place(session, "r") == 4
        assert place(session, "r") == 0
    assert show(sweep).counts == {"provisioning": 2, "queued": 2}
    assert show(free).counts == {"provisioning": 2}
    first, _, third, fourth = ids(sweep)
    waiting = "SELECT waiting_for FROM jobs WHERE id = :id"
    assert one(waiting, id=third) == "other runs of its sweep, which runs no more at once"
    with transaction() as session:
        transition(session, first, Status.CANCELLED)
        assert place(session, "r") == 1
    assert [one("SELECT status FROM jobs WHERE id = :id", id=each) for each in (third, fourth)] == [
        "provisioning",
        "queued",
    ]

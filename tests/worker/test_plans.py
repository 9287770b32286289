"""Plans on one host: a real trainer, store and database; what is planned is what is run."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from app.db import transaction
from app.errors import Conflict, NotFound
from app.ids import new_id
from app.jobs.lifecycle import FailureReason
from app.jobs.spec import JobSpec
from app.plans import leases, pins, service
from app.plans.schemas import PlanOut, PreviewOut
from app.settings import get_settings
from tests.services import wait_until
from tests.worker.conftest import forget
from tests.worker.rig import HOST, ROWS, Rig, host_online, make_rig, supervisors, warm_server
from tests.worker.world import PROJECT, one, rows, run_sql
from worker.preparing import PreparationFailed
from worker.supervisor_plan import MOST, read

pytestmark = pytest.mark.train


@pytest.fixture(scope="module")
def material(tmp_path_factory: pytest.TempPathFactory) -> Rig:
    return make_rig(tmp_path_factory.mktemp("계획 data"))


@pytest.fixture(scope="module")
def warm(tmp_path_factory: pytest.TempPathFactory, material: Rig) -> Iterator[Path]:
    with warm_server(tmp_path_factory.mktemp("warm"), material.folder / "hub") as path:
        yield path


@pytest.fixture
def rig(
    store_settings: object, warm: Path, material: Rig, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Rig]:
    del store_settings
    for name, value in {
        "POLAR_WORKER_ID": HOST,
        "POLAR_WARM_SOCKET": str(warm),
        "POLAR_DATA_FOLDERS": f'["{material.folder}"]',
        "POLAR_MODEL_FOLDERS": f'["{material.folder}"]',
        "HF_HOME": str(material.folder / "hub"),
        "HF_HUB_OFFLINE": "1",
        "POLAR_POLL": "0.05",
        "POLAR_CPU_SLOTS": str(len(os.sched_getaffinity(0))),
    }.items():
        monkeypatch.setenv(name, value)
    forget()
    host_online()
    yield material
    ids = [i for (i,) in rows("SELECT id FROM attempts UNION SELECT id FROM jobs")]
    ids += [i for (i,) in rows("SELECT id FROM plans")]
    wait_until(lambda: not supervisors(*ids))


def begin(rig: Rig, samples: int | None = None, **changes: Any) -> str:
    spec = JobSpec.model_validate(rig.spec(**changes))
    with transaction() as session:
        return service.begin(session, PROJECT, spec, samples).id


def shown(plan_id: str) -> PlanOut:
    with transaction() as session:
        return service.show(session, PROJECT, plan_id)


def carried(rig: Rig, plan_id: str, *states: str) -> PlanOut:
    """The plan once it has one of these states."""

    def reached() -> bool:
        rig.step()
        return one("SELECT status FROM plans WHERE id = :id", id=plan_id) in states

    try:
        wait_until(reached, 60)
    except AssertionError as error:
        raise AssertionError(rig.story(plan_id)) from error
    return shown(plan_id)


def prepared_folders() -> list[Path]:
    return [p for p in (get_settings().home / "prepared").iterdir() if not p.name.startswith(".")]


def own_copy(rig: Rig, tmp_path: Path) -> Path:
    """Data of one test alone, below the folder that may be read."""
    path = rig.folder / f"{tmp_path.name}.jsonl"
    path.write_bytes((rig.folder / "train.jsonl").read_bytes())
    return path


def test_a_pinned_job_runs_what_was_planned_and_tokenises_nothing(rig: Rig) -> None:
    """Steps and trained tokens are those of the run; its preparation finds the plan's data."""
    training = {"max_steps": None, "num_train_epochs": 1, "gradient_accumulation_steps": 1}
    epochs = {"training": training}
    plan_id = begin(rig, **epochs)
    assert begin(rig, **epochs) == plan_id
    plan = carried(rig, plan_id, "done", "failed")
    assert plan.problem is None, rig.story(plan_id)
    assert plan.exact
    assert plan.figures is not None
    assert plan.figures.bounds is None
    estimate = one("SELECT estimate FROM plans WHERE id = :id", id=plan_id)
    assert estimate["bounds"]["rows"] == {"low": ROWS, "likely": ROWS, "high": ROWS}
    [machine] = plan.machines
    assert (machine.price_per_hour, machine.seconds) == (0, None)
    assert "tells how fast" in str(machine.reason)
    [folder] = prepared_folders()
    made = (folder / "manifest.json").stat().st_mtime_ns
    job_id = rig.submit(**epochs, plan_id=plan_id)
    assert rig.until(job_id, "succeeded", "failed") == "succeeded", rig.story(job_id)
    assert prepared_folders() == [folder]
    assert (folder / "manifest.json").stat().st_mtime_ns == made
    assert plan.figures.steps is not None
    assert max(rig.losses(job_id)) == plan.figures.steps.total == 12
    [(report,)] = rows("SELECT report FROM preparations WHERE job_id = :id", id=job_id)
    assert report["trained_tokens"] == plan.figures.tokens.trained
    assert report["total_tokens"] == plan.figures.tokens.total
    log = get_settings().home / "logs" / "supervisors" / f"{job_id}.log"
    assert "inputs are here" in log.read_text()


@pytest.mark.sampled
def test_data_of_another_host_are_fetched_from_the_store(rig: Rig) -> None:
    plan = carried(rig, begin(rig), "done", "failed")
    [folder] = prepared_folders()
    there = (folder / "manifest.json").read_bytes()
    folder.rename(folder.with_name(".elsewhere"))
    job_id = rig.submit(plan_id=plan.id)
    rig.when(job_id, lambda: one("SELECT status = 'done' FROM preparations"))
    assert (folder / "manifest.json").read_bytes() == there  # it says when it was made
    assert rig.until(job_id, "succeeded", "failed") == "succeeded"


@pytest.mark.sampled
def test_a_job_waits_for_its_plan_and_is_called_when_that_ends(rig: Rig) -> None:
    plan_id = begin(rig)
    job_id = rig.submit(plan_id=plan_id)
    run_sql("DELETE FROM outbox WHERE handler = 'plan'")
    rig.step()
    wait_until(lambda: not supervisors(job_id))
    assert one("SELECT status FROM preparations") == "waiting"
    from worker.handlers import HANDLERS

    HANDLERS["plan"](plan_id)
    assert rig.until(job_id, "succeeded", "failed") == "succeeded"
    assert one("SELECT tries FROM preparations") == 1


def test_what_has_changed_since_is_refused_with_its_field(rig: Rig, tmp_path: Path) -> None:
    data = own_copy(rig, tmp_path)
    blocks = {"data": {"train": [{"source": "folder", "path": str(data)}]}}
    plan = carried(rig, begin(rig, **blocks), "done", "failed")
    with pytest.raises(Conflict, match="/training/learning_rate: it is not what was planned"):
        rig.submit(**blocks, plan_id=plan.id, training={"learning_rate": 0.5})
    rig.submit(**blocks, plan_id=plan.id, name="another", priority=3)
    with data.open("a") as file:
        file.write(json.dumps({"prompt": "a", "completion": "b"}) + "\n")
    with pytest.raises(Conflict, match=r"/data/train/0: its content has changed") as refused:
        rig.submit(**blocks, plan_id=plan.id)
    assert refused.value.code == "plan_outdated"
    assert begin(rig, **blocks) != plan.id  # a new one
    with pytest.raises(NotFound, match="POST /plans makes one"):
        rig.submit(**blocks, plan_id=new_id("plan"))
    run_sql("UPDATE plans SET expires_at = now()")
    with pytest.raises(NotFound):
        rig.submit(**blocks, plan_id=plan.id)


@pytest.mark.sampled
def test_what_only_the_preparation_sees_ends_the_job_and_the_plan(rig: Rig) -> None:
    """As it is for a hub or a store: their content is looked at then."""
    plan = carried(rig, begin(rig), "done", "failed")
    run_sql("UPDATE plans SET key = repeat('0', 64)")
    job_id = rig.submit(plan_id=plan.id)
    assert rig.until(job_id, "succeeded", "failed") == "failed"
    message = one("SELECT message FROM jobs WHERE id = :id", id=job_id)
    assert message.startswith(f"plan_id: the data or the model has changed since {plan.id}")
    assert begin(rig) != plan.id


def test_a_plan_of_bad_data_says_the_field_and_line(rig: Rig, tmp_path: Path) -> None:
    data = rig.folder / f"{tmp_path.name}.jsonl"
    data.write_text('{"prompt": "a", "completion": "b"}\nno json\n')
    blocks = {"data": {"train": [{"source": "folder", "path": str(data)}]}}
    plan = carried(rig, begin(rig, **blocks), "failed", "done")
    assert plan.problem is not None
    assert plan.problem.reason == "invalid_data"
    assert "line 2" in plan.problem.message
    assert plan.figures is None
    with pytest.raises(Conflict, match="has failed"):
        rig.submit(**blocks, plan_id=plan.id)
    assert begin(rig, **blocks) != plan.id  # once the data are mended it is asked for again


def test_a_preview_shows_the_first_samples_and_prepares_nothing_else(rig: Rig) -> None:
    plan_id = begin(rig, samples=2)
    with pytest.raises(NotFound):
        shown(plan_id)

    def said() -> PreviewOut | None:
        rig.step()
        with transaction() as session:
            found = service.said_of_preview(session, plan_id)
            return found if found.samples else None

    found = wait_until(said, 60)
    assert found is not None
    assert found.samples is not None
    [first, second] = found.samples
    assert "Order 0 arrives" in "".join(t.text for t in first.parts[0].tokens if t.trained)
    assert second.number == 2
    assert prepared_folders() == []


def test_samples_that_nobody_could_look_at_are_not_stored(tmp_path: Path) -> None:
    said = tmp_path / "plan.json"
    said.write_text('{"samples": []}')
    assert read(said) == {"samples": []}
    with said.open("ab") as file:
        file.truncate(MOST + 1)
    with pytest.raises(PreparationFailed, match="ask for fewer") as refused:
        read(said)
    assert refused.value.failure.reason is FailureReason.INVALID_SPEC


def test_leases_of_plans_are_those_of_preparations(rig: Rig) -> None:
    plan_id = begin(rig)
    with transaction() as session:
        token = leases.claim_plan(session, plan_id, "w")
    assert token
    with transaction() as session:
        assert leases.claim_plan(session, plan_id, "v") is None
        assert leases.renew_plan(session, plan_id, token).cancel is False
    run_sql("UPDATE plans SET lease_expires_at = now() - interval '1 hour'")

    def taken_over() -> str | None:
        """Nobody is before the database has been up for one lease."""
        with transaction() as session:
            return leases.claim_plan(session, plan_id, "v")

    taken = wait_until(taken_over, timeout=90)
    assert taken
    with pytest.raises(leases.LeaseLost), transaction() as session:
        leases.renew_plan(session, plan_id, token)
    with transaction() as session:
        leases.abandon_plan(session, plan_id, taken)
    assert rows("SELECT status, tries FROM plans") == [("waiting", 1)]
    run_sql("UPDATE plans SET expires_at = now() - interval '2 hours'")
    from app.housekeeping.service import forget_plans

    with transaction() as session:
        assert leases.claim_plan(session, plan_id, "w") is None
        assert forget_plans(session) == 1


def test_pointers_are_those_of_the_field_that_a_message_names() -> None:
    assert service.pointer_of("data.train[0].path is 'x', but") == "/data/train/0/path"
    assert service.pointer_of("data.train[0] line 2: no JSON") == "/data/train/0"
    assert service.pointer_of("no row is left") is None
    assert list(pins._differing({"a": {"b": 1}}, {"a": {"b": 2}, "c": 3}, "")) == ["/a/b", "/c"]

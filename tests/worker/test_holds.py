"""Devices held for a project: placed by, used up, given back, and over by themselves."""

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest

from app.attempts.service import reserve
from app.db import transaction
from app.errors import Conflict, NotFound
from app.holds import service
from app.holds.service import Hold
from app.housekeeping.service import forget_holds
from tests.worker.conftest import forget
from tests.worker.world import add_host, add_job, one, rows, run_sql
from worker.placement import place

pytestmark = pytest.mark.usefixtures("settings")
MINE, THEIRS = "prj_default", "prj_other"
BUSY = "next in line, all devices are busy, or held for another project's next job"


@pytest.fixture(autouse=True)
def _other_project(settings: object) -> None:
    del settings
    run_sql("INSERT INTO projects (id, name) VALUES (:id, 'other')", id=THEIRS)


def hold(project: str = MINE, offer: str = "local:h1:0", secret: str | None = None) -> Hold:
    with transaction() as session:
        return service.hold(session, project, offer, lambda: secret)[0]


def look(held: Hold, project: str = MINE) -> Hold:
    with transaction() as session:
        return service.find_hold(session, project, held.id)


def place_once() -> int:
    with transaction() as session:
        return place(session, "reconciler-1")


def waiting_for(job_id: str) -> str | None:
    return one("SELECT waiting_for FROM jobs WHERE id = :id", id=job_id)


def refusal(offer: str, project: str = MINE) -> tuple[str, str]:
    with pytest.raises((Conflict, NotFound)) as refused:
        hold(project, offer)
    return refused.value.code, refused.value.message


def test_the_project_s_next_job_uses_it_up_before_others_that_come_first():
    add_host("h1", slots=1)
    held = hold()
    theirs, mine, next_one = add_job(project=THEIRS, priority=9), add_job(), add_job()
    assert place_once() == 1
    assert rows("SELECT job_id FROM attempts") == [(mine,)]
    used = look(held)
    assert (used.state, used.job_id) == ("used", mine)
    assert used.attempt_id == one("SELECT id FROM attempts")
    assert waiting_for(theirs) == BUSY
    assert waiting_for(next_one) == "1 job ahead"


def test_others_wait_and_are_told_so_until_it_is_given_back():
    add_host("h1", slots=1)
    held, job = hold(), add_job(project=THEIRS)
    assert place_once() == 0
    assert waiting_for(job) == BUSY
    with transaction() as session:
        assert service.give_back(session, MINE, held.id).state == "given_back"
    with transaction() as session:
        assert service.give_back(session, MINE, held.id).state == "given_back"
    assert place_once() == 1


def test_its_time_ends_it_though_nothing_runs():
    """Whoever reads looks at the time: nobody has to have written down that it is over."""
    add_host("h1", slots=1)
    held = hold()
    run_sql("UPDATE holds SET expires_at = now() - interval '1 s'")
    assert look(held).state == "over"
    job = add_job(project=THEIRS)
    with transaction() as session:
        assert reserve(session, job, "h1", [0]) is not None
    assert one("SELECT reason FROM holds") is None
    place_once()
    assert rows("SELECT reason, ended_at = expires_at FROM holds") == [("over", True)]
    assert look(held).state == "over"


def test_after_its_time_another_may_have_it():
    add_host("h1", slots=1)
    hold()
    run_sql("UPDATE holds SET expires_at = now() - interval '1 s'")
    assert hold(THEIRS).state == "held"
    assert rows("SELECT reason FROM holds ORDER BY id") == [("over",), (None,)]


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE workers SET draining = true",
        "UPDATE workers SET seen_at = now() - interval '61 s'",
        "DELETE FROM devices",
    ],
)
def test_it_ends_with_its_host(change: str):
    add_host("h1", slots=1)
    held = hold()
    run_sql(change)
    place_once()
    assert look(held).state == "host_gone"


def test_a_repeated_call_gets_the_same_hold_also_from_many_at_once():
    add_host("h1", slots=1)
    together = Barrier(4)

    def call(_: int) -> str:
        together.wait(30)
        return hold().id

    with ThreadPoolExecutor(4) as pool:
        ids = set(pool.map(call, range(4)))
    assert len(ids) == 1
    assert one("SELECT count(*) FROM holds") == 1
    used = hold(secret="not kept again")
    assert (used.id in ids, used.secret) == (True, None)


def test_two_that_place_at_once_use_it_once():
    add_host("h1", slots=1)
    held = hold()
    jobs, together = [add_job(), add_job()], Barrier(2)

    def place_job(job: str) -> str | None:
        together.wait(30)
        with transaction() as session:
            return reserve(session, job, "h1", [0])

    with ThreadPoolExecutor(2) as pool:
        attempts = list(pool.map(place_job, jobs))
    [won] = [attempt for attempt in attempts if attempt]
    assert look(held).attempt_id == won


def test_nobody_else_reserves_what_is_held_even_if_the_plan_is_older():
    add_host("h1", slots=1)
    job = add_job(project=THEIRS)
    hold()
    with transaction() as session:
        assert reserve(session, job, "h1", [0]) is None
    assert one("SELECT status FROM jobs WHERE id = :id", id=job) == "queued"


def test_a_hold_and_a_job_that_want_the_device_at_once_do_not_both_get_it():
    add_host("h1", slots=1)
    for _ in range(5):
        job, together = add_job(project=THEIRS), Barrier(2)

        def reserve_it(job: str = job, together: Barrier = together) -> bool:
            together.wait(30)
            with transaction() as session:
                return reserve(session, job, "h1", [0]) is not None

        def hold_it(together: Barrier = together) -> bool:
            together.wait(30)
            try:
                return hold().state == "held"
            except Conflict:
                return False

        with ThreadPoolExecutor(2) as pool:
            reserved, held = pool.submit(reserve_it), pool.submit(hold_it)
            assert [reserved.result(), held.result()].count(True) == 1
        run_sql("UPDATE devices SET attempt_id = NULL")
        run_sql("DELETE FROM holds")


def test_what_cannot_be_had_is_refused_with_the_reason():
    add_host("h1", slots=3)
    run_sql("UPDATE devices SET attempt_id = NULL")
    job = add_job()
    with transaction() as session:
        assert reserve(session, job, "h1", [1])
    hold(THEIRS, "local:h1:2")
    for offer, code, said in (
        ("4711", "no_rented_machines", "rents no machines"),
        ("local:h1", "offer_not_found", "no such device"),
        ("local:h1:9", "offer_not_found", "no such device"),
        ("local:h1:99999999999", "offer_not_found", "no such device"),
        ("local:h1:1", "offer_taken", "busy with a job"),
        ("local:h1:2", "offer_taken", "held for another project until"),
    ):
        found, message = refusal(offer)
        assert (found, said in message, offer in message) == (code, True, True)
    run_sql("UPDATE workers SET draining = true")
    assert refusal("local:h1:0")[1].startswith("offer_id 'local:h1:0': its host is drained")
    run_sql("UPDATE workers SET draining = false, seen_at = now() - interval '61 s'")
    assert refusal("local:h1:0")[1].startswith("offer_id 'local:h1:0': its host does not answer")


def test_a_cpu_beside_gpus_is_not_held_since_jobs_pass_it_over():
    add_host("h1", slots=1)
    add_host("g", [("cuda", "NVIDIA A100", 40.0)])
    assert refusal("local:h1:0")[0] == "offer_unavailable"
    assert hold(offer="local:g:0").device_name == "NVIDIA A100"


def test_a_project_holds_so_many_at_once_also_of_calls_at_the_same_time(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setenv("POLAR_HOLDS", "2")
    forget()
    add_host("h1", slots=4)
    together = Barrier(4)

    def call(index: int) -> Hold | str:
        together.wait(30)
        try:
            return hold(offer=f"local:h1:{index}")
        except Conflict as error:
            return error.code

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(call, range(4)))
    held = [each for each in found if isinstance(each, Hold)]
    assert [each for each in found if each not in held] == ["too_many_holds"] * 2
    refused, other = (i for i, each in enumerate(found) if each == "too_many_holds")
    assert "holds 2 devices already" in refusal(f"local:h1:{refused}")[1]
    assert hold(offer=held[0].offer_id).id == held[0].id  # what it has is not one more
    assert hold(THEIRS, f"local:h1:{refused}").state == "held"
    with transaction() as session:
        service.give_back(session, MINE, held[0].id)
    assert hold(offer=f"local:h1:{other}").state == "held"


def test_offers_say_what_can_be_held():
    add_host("h1", slots=3)
    hold(MINE, "local:h1:1")
    hold(THEIRS, "local:h1:2")
    with transaction() as session:
        offers = service.list_offers(session, MINE).items
    assert {offer.offer_id: offer.state for offer in offers} == {
        "local:h1:0": "free",
        "local:h1:1": "held",
        "local:h1:2": "held_for_others",
    }


def test_holds_of_others_are_not_there():
    add_host("h1", slots=1)
    held = hold()
    with pytest.raises(NotFound):
        look(held, THEIRS)
    with transaction() as session, pytest.raises(NotFound):
        service.give_back(session, THEIRS, held.id)
    assert look(held).state == "held"


def test_what_was_held_long_ago_is_forgotten():
    add_host("h1", slots=2)
    hold(offer="local:h1:0")
    kept = hold(offer="local:h1:1")
    run_sql("UPDATE holds SET expires_at = now() - interval '31 d' WHERE id <> :id", id=kept.id)
    with transaction() as session:
        assert forget_holds(session) == 1
    assert rows("SELECT id FROM holds") == [(kept.id,)]

"""Deliveries of webhooks to a real receiver: signed, at least once, in order, each on its own."""

import json
import re
import runpy
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

import app.webhooks.address
from app.backups.service import settle
from app.db import transaction
from app.housekeeping.service import forget_deliveries
from app.jobs.lifecycle import Change as To
from app.jobs.lifecycle import FailureReason, Status, transition
from app.jobs.service import cancel_job
from app.settings import Settings, get_settings
from app.webhooks import service, store
from app.webhooks.post import _tls
from app.webhooks.schemas import ALL, NewWebhook, WebhookPatch, WebhookWithSecret
from app.webhooks.service import check_url
from tests.certificates import Authority
from tests.receiver import Receiver, answering
from tests.services import ROOT, wait_until
from tests.worker.conftest import forget
from tests.worker.world import PROJECT, add_job, one, rows, run_sql
from worker.courier import LONGEST_BACKOFF, Courier, backoff
from worker.loops import Loop, Step
from worker.wakeup import Bell

PATIENCE = 0.5
_SNIPPET = re.compile(r"<!-- verify -->\n```python\n(.*?)```", re.DOTALL)


@pytest.fixture
def here(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """Settings of an operator who lets webhooks reach this machine."""
    del settings
    monkeypatch.setenv("POLAR_OUTBOUND_ALLOW", '["127.0.0.1"]')
    forget()
    return get_settings()


@pytest.fixture
def receiver(here: Settings) -> Iterator[Receiver]:
    del here
    with Receiver().running() as running:
        yield running


def hook(url: str, *events: Any) -> WebhookWithSecret:
    with transaction() as session:
        new = NewWebhook(url=url, events=list(events or ALL))
        return service.create_webhook(session, PROJECT, new)


def cancel() -> str:
    """End a job; returns its id."""
    job_id = add_job()
    with transaction() as session:
        cancel_job(session, PROJECT, job_id)
    return job_id


def deliver(*, sound: bool = False, patience: float = PATIENCE) -> int:
    """Make one delivery that is due."""
    return Courier(get_settings(), sound=sound, patience=patience).deliver_next()


def due_now() -> None:
    run_sql("UPDATE webhook_deliveries SET next_at = now() - interval '1 s'")


def log(webhook: WebhookWithSecret) -> list[Any]:
    """What the webhook was told, oldest first."""
    with transaction() as session:
        query = service.DeliveryQuery(limit=200)
        return service.list_deliveries(session, PROJECT, webhook.id, query).items[::-1]


def test_a_delivery_is_signed_as_the_documentation_checks_it(
    receiver: Receiver, tmp_path: Path
) -> None:
    webhook = hook(receiver.url("/a/b?team=x"))
    job_id = cancel()
    assert deliver() == 1
    assert deliver() == 0
    [got] = receiver.got
    found = _SNIPPET.search((ROOT / "docs" / "webhooks.md").read_text())
    assert found is not None
    snippet = tmp_path / "snippet.py"
    snippet.write_text(found[1])
    names = runpy.run_path(str(snippet))
    verified = names["is_from_polar"]
    assert verified(webhook.secret, got.headers, got.body.encode())
    assert not verified(webhook.secret, got.headers, got.body.replace(job_id, "job").encode())
    assert not verified("whsec_other", got.headers, got.body.encode())
    older = {**got.headers, "X-Polar-Timestamp": str(int(got.headers["X-Polar-Timestamp"]) - 1)}
    assert not verified(webhook.secret, older, got.body.encode())
    body = json.loads(got.body)
    [told] = log(webhook)
    assert (told.id, told.status, told.attempts, told.response_status) == (
        *(got.headers["X-Polar-Delivery"], "delivered"),
        *(1, 200),
    )
    assert (got.path, got.headers["X-Polar-Event"]) == ("/a/b?team=x", "job.cancelled")
    assert body == told.payload
    assert body["data"]["job"]["id"] == job_id


def test_a_receiver_that_was_down_gets_everything_once_it_is_up(here: Settings) -> None:
    """By the reconciler's own loop, which nobody tells that the receiver is back."""
    receiver = Receiver()
    with receiver.running():
        pass  # the port is known now, and nobody listens
    webhook = hook(receiver.url(), "job.cancelled")
    jobs = [cancel() for _ in range(3)]
    bell = Bell(here)
    courier = Courier(here, sound=False, patience=PATIENCE)
    thread = Loop("webhooks", [Step("webhooks", courier.deliver_next)], bell, 0.02).start()
    try:
        wait_until(lambda: log(webhook)[0].attempts >= 2)
        assert {each.status for each in log(webhook)} == {"pending"}
        assert "ConnectionRefusedError" in log(webhook)[0].error
        with receiver.running():
            wait_until(lambda: {each.status for each in log(webhook)} == {"delivered"})
    finally:
        bell.stop()
        thread.join(10)
    bodies = [json.loads(got.body)["data"]["job"]["id"] for got in receiver.got]
    assert sorted(set(bodies)) == sorted(jobs)


def _drips(handler: BaseHTTPRequestHandler) -> None:
    """A line of the answer's head now and then, for ever."""
    handler.send_response(200)
    handler.flush_headers()
    for number in range(90):
        handler.wfile.write(f"X-{number}: x\r\n".encode())
        if Receiver.leave_of(handler).wait(0.05):
            return


def _endless_body(handler: BaseHTTPRequestHandler) -> None:
    handler.send_response(200)
    handler.end_headers()
    while not Receiver.leave_of(handler).is_set():
        handler.wfile.write(b"x" * 65536)


def _silent(handler: BaseHTTPRequestHandler) -> None:
    Receiver.leave_of(handler).wait(30)


def _long_head(handler: BaseHTTPRequestHandler) -> None:
    handler.wfile.write(b"HTTP/1.1 200 OK\r\nX: " + b"x" * 2**20)


@pytest.mark.parametrize(
    ("behave", "error"),
    [
        (answering(500), "it answered 500"),
        (answering(404), "it answered 404"),
        (answering(302, Location="/elsewhere"), "it answered 302; redirects are not followed"),
        (answering(307, Location="http://169.254.169.254/"), "redirects are not followed"),
        (_silent, "no answer within 0.5 s"),
        (_drips, "no answer within 0.5 s"),
        (_long_head, "LineTooLong"),
    ],
)
def test_what_is_no_success_costs_its_own_delivery_alone(
    receiver: Receiver, behave: Any, error: str
) -> None:
    bad = hook(receiver.url())
    with Receiver().running() as other:
        good = hook(other.url())
        receiver.behave = behave
        cancel()
        assert deliver() + deliver() == 2
        [failed], [arrived] = log(bad), log(good)
        assert (arrived.status, failed.status, failed.attempts) == ("delivered", "pending", 1)
        assert error in failed.error
        assert failed.next_at is not None
        assert len(receiver.got) == 1
        # What failed last is left to the courier that is not kept free of it.
        due_now()
        assert deliver(sound=True) == 0
        receiver.behave = answering(204)
        assert deliver() == 1
    [arrived] = log(bad)
    assert (arrived.status, arrived.attempts, arrived.error) == ("delivered", 2, None)
    first, second = receiver.got
    assert first.headers["X-Polar-Delivery"] == second.headers["X-Polar-Delivery"]
    assert first.body == second.body


def test_over_tls_only_a_certificate_of_the_host_by_a_trusted_authority_will_do(
    here: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    del here
    authority = Authority(tmp_path)
    _tls.cache_clear()  # it reads the trusted authorities once in a process
    receiver = Receiver(tls=authority.server("127.0.0.1"))
    with receiver.running():
        webhook = hook(receiver.url())
        cancel()
        assert deliver(patience=10) == 1
        [refused] = log(webhook)
        assert (refused.status, refused.attempts, receiver.got) == ("pending", 1, [])
        assert "CERTIFICATE_VERIFY_FAILED" in refused.error
        assert "unable to get local issuer certificate" in refused.error
        monkeypatch.setenv("SSL_CERT_FILE", str(authority.file))
        _tls.cache_clear()
        due_now()
        assert deliver(patience=10) == 1
        assert log(webhook)[0].status == "delivered"
        assert [got.path for got in receiver.got] == ["/hook"]
    receiver.tls = authority.server("127.0.0.2")
    with receiver.running():
        cancel()
        assert deliver(patience=10) == 1
        assert (
            "IP address mismatch, certificate is not valid for '127.0.0.1'" in log(webhook)[1].error
        )
        assert len(receiver.got) == 1
    _tls.cache_clear()


def test_of_an_endless_answer_the_head_is_enough(receiver: Receiver) -> None:
    receiver.behave = _endless_body
    webhook = hook(receiver.url())
    cancel()
    assert deliver() == 1
    assert log(webhook)[0].status == "delivered"


def test_deliveries_leave_in_order_until_one_fails_too_often(receiver: Receiver) -> None:
    webhook = hook(receiver.url())
    jobs = [cancel(), cancel()]
    receiver.behave = answering(500)
    for tries in range(1, store.HELD_UP + 1):
        due_now()
        assert deliver() == 1
        assert [each.attempts for each in log(webhook)] == [tries, 0]
        later = "UPDATE webhook_deliveries SET next_at = now() + interval '1 h' WHERE failures > 0"
        run_sql(later)
        if tries < store.HELD_UP:
            assert deliver() == 0  # the second waits with the first
    receiver.behave = answering(200)
    assert deliver() == 1  # it is not held up any more
    due_now()
    assert deliver() == 1
    order = [json.loads(got.body)["data"]["job"]["id"] for got in receiver.got]
    assert order == [*[jobs[0]] * store.HELD_UP, jobs[1], jobs[0]]


def test_one_courier_at_a_time_and_another_after_its_death(receiver: Receiver) -> None:
    hook(receiver.url())
    cancel()
    cancel()
    with transaction() as session:
        lost = store.claim(session, sound=False)
    assert lost is not None
    assert deliver() == 0  # the endpoint is another's
    run_sql("UPDATE webhooks SET lease_expires_at = now() - interval '1 s'")
    assert deliver() == 1
    with transaction() as session:  # the first one wakes up: nothing of it counts
        store.settle(session, lost, store.Outcome(500, "late"))
    assert deliver() == 1
    assert [row[0] for row in rows("SELECT attempts FROM webhook_deliveries")] == [1, 1]
    assert len({got.headers["X-Polar-Delivery"] for got in receiver.got}) == 2


def test_after_a_day_and_ten_tries_it_has_failed_and_can_be_sent_again(receiver: Receiver) -> None:
    webhook = hook(receiver.url())
    cancel()
    receiver.behave = answering(500)
    assert deliver() == 1
    run_sql("UPDATE webhook_deliveries SET failing_since = now() - interval '25 h'")
    for _ in range(store.LEAST_TRIES - 2):
        due_now()
        deliver()
        assert log(webhook)[0].status == "pending"
    due_now()
    deliver()
    [failed] = log(webhook)
    assert (failed.status, failed.attempts, failed.next_at) == ("failed", store.LEAST_TRIES, None)
    due_now()
    assert deliver() == 0
    receiver.behave = answering(200)
    with transaction() as session:
        service.redeliver(session, PROJECT, webhook.id, failed.id)
    assert deliver() == 1
    assert log(webhook)[0].status == "delivered"
    assert {got.headers["X-Polar-Delivery"] for got in receiver.got} == {failed.id}


def test_what_has_waited_for_three_days_is_given_up_though_its_turn_never_came(
    receiver: Receiver,
) -> None:
    webhook = hook(receiver.url())
    receiver.behave = answering(500)
    cancel()
    assert deliver() == 1
    cancel()
    old = "UPDATE webhook_deliveries SET pending_since = now() - interval '73 h'"
    run_sql(f"{old}, created_at = now() - interval '73 h'")
    cancel()
    with transaction() as session:
        assert store.give_up(session) == 2
    tried, untried, young = log(webhook)
    assert [each.status for each in (tried, untried, young)] == ["failed", "failed", "pending"]
    assert tried.error == "given up after 3 days: the last try: it answered 500"
    assert untried.error == "given up after 3 days: its turn has not come"
    with transaction() as session:  # asked for anew, it has three days again
        service.redeliver(session, PROJECT, webhook.id, untried.id)
        assert store.give_up(session) == 0


def test_however_many_wait_a_claim_looks_at_two_of_each_endpoint(receiver: Receiver) -> None:
    webhook = hook(receiver.url())
    waiting = """
        INSERT INTO webhook_deliveries
            (id, project_id, webhook_id, event, body, failures, next_at)
        SELECT 'dlv_' || n, :project, :webhook, 'job.failed', '{}', n % 7,
            now() + interval '1 h' FROM generate_series(1, 20000) n"""
    run_sql(waiting, project=PROJECT, webhook=webhook.id)
    run_sql("ANALYZE webhook_deliveries")
    claim = store._CLAIM.text
    values = {"token": "t", "lease": 60, "sound": False}
    with transaction() as session:
        explain = text(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {claim}")
        [plan] = session.execute(explain, values).scalar_one()
        session.rollback()
    blocks = plan["Plan"]["Shared Hit Blocks"] + plan["Plan"]["Shared Read Blocks"]
    assert "Seq Scan" not in {each["Node Type"] for each in _nodes(plan["Plan"]) if _reads(each)}
    assert blocks < 50  # of the hundreds that the table has


def _nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for each in plan.get("Plans", ()):
        yield from _nodes(each)


def _reads(node: dict[str, Any]) -> bool:
    return node.get("Relation Name") == "webhook_deliveries"


def test_what_waits_when_a_webhook_is_switched_off_is_not_sent_later(receiver: Receiver) -> None:
    webhook = hook(receiver.url())
    cancel()
    cancel()
    with transaction() as session:
        on_its_way = store.claim(session, sound=False)
    assert on_its_way is not None
    switch(webhook, active=False)
    cancel()  # of which it is not told at all
    with transaction() as session:  # the try that was on its way does not bring it back
        store.settle(session, on_its_way, store.Outcome(500, "it answered 500"))
    switch(webhook, active=True)
    due_now()
    assert deliver() == 0
    first, second = log(webhook)
    assert (first.status, second.status) == ("failed", "failed")
    assert "not sent: the webhook was switched off" in second.error
    with transaction() as session:
        service.redeliver(session, PROJECT, webhook.id, second.id)
    assert deliver() == 1
    assert [got.headers["X-Polar-Delivery"] for got in receiver.got] == [second.id]


def switch(webhook: WebhookWithSecret, *, active: bool) -> None:
    with transaction() as session:
        service.patch_webhook(session, PROJECT, webhook.id, WebhookPatch(active=active))


def test_the_waits_of_a_day_are_within_bounds() -> None:
    """Waits double from 5 s and end at an hour; ten of them and the rest of a day are few tries."""
    least = [min(5 * 2.0**n, LONGEST_BACKOFF) for n in range(40)]
    for failures, own in enumerate(least):
        assert own <= backoff(5.0, failures) <= 1.25 * own
    day = store.GIVEN_UP_HOURS * 3600
    assert next(n for n in range(40) if sum(least[:n]) >= day) == 33


def test_a_name_that_comes_to_mean_a_private_address_is_not_called(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Resolved anew at each try, and connected to what was looked at: no second answer counts."""
    monkeypatch.setenv("POLAR_OUTBOUND_ALLOW", "[]")
    forget()
    answers = iter(["93.184.216.34", "127.0.0.1"])
    asked: list[str] = []

    real = socket.getaddrinfo

    def resolve(host: str, port: int, *more: Any, **named: Any) -> list[Any]:
        if host != "rebind.example":  # other threads talk to their services
            return list(real(host, port, *more, **named))
        asked.append(host)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (next(answers), port))]

    monkeypatch.setattr(app.webhooks.address.socket, "getaddrinfo", resolve)
    url = f"http://rebind.example:{receiver.port}/"
    check_url(url)  # as `POST /webhooks` does first
    webhook = hook(url)
    cancel()
    assert deliver() == 1
    [failed] = log(webhook)
    assert "127.0.0.1 was refused: it is not a public address" in failed.error
    assert "POLAR_OUTBOUND_ALLOW" in failed.error
    assert (receiver.got, asked) == ([], ["rebind.example", "rebind.example"])


def test_a_name_is_resolved_once_and_its_address_called(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    real = socket.getaddrinfo

    def resolve(host: str, *more: Any, **named: Any) -> Any:
        asked.append(host)
        return real("127.0.0.1" if host == "hooks.example" else host, *more, **named)

    monkeypatch.setattr(app.webhooks.address.socket, "getaddrinfo", resolve)
    hook(f"http://hooks.example:{receiver.port}/")
    cancel()
    asked.clear()
    assert deliver() == 1
    assert receiver.got[0].headers["Host"] == f"hooks.example:{receiver.port}"
    assert [host for host in asked if host != "127.0.0.1"] == ["hooks.example"]


def test_each_change_tells_what_it_is_and_one_that_is_undone_tells_nothing(
    receiver: Receiver,
) -> None:
    webhook = hook(receiver.url())
    job_id = add_job()
    with transaction() as session:
        transition(session, job_id, Status.PAUSED)
        session.rollback()
    assert log(webhook) == []
    change = To(reason=FailureReason.KILLED, message="gone")
    for to in (Status.PAUSED, Status.QUEUED, Status.PROVISIONING, Status.RUNNING, Status.FAILED):
        with transaction() as session:
            assert transition(session, job_id, to, change if to is Status.FAILED else None)
    assert [each.event for each in log(webhook)] == ["job.paused", "job.started", "job.failed"]
    job = log(webhook)[-1].payload["data"]["job"]
    assert (job["reason"], job["message"], job["status"]) == ("killed", "gone", "failed")


def test_what_was_said_long_ago_goes_and_a_restored_service_keeps_silent(
    receiver: Receiver,
) -> None:
    webhook = hook(receiver.url())
    cancel()
    assert deliver() == 1
    cancel()
    run_sql("UPDATE webhook_deliveries SET created_at = now() - interval '31 days'")
    with transaction() as session:
        assert forget_deliveries(session) == 1
        settle(session)
    [left] = log(webhook)
    assert left.status == "failed"
    assert "restored from a back-up" in left.error
    assert one("SELECT count(*) FROM webhook_deliveries WHERE status = 'pending'") == 0


def test_many_couriers_make_each_delivery_once(receiver: Receiver) -> None:
    webhook = hook(receiver.url())
    for _ in range(6):
        cancel()

    def work() -> None:
        while {each.status for each in log(webhook)} != {"delivered"}:
            deliver(patience=5.0)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    ids = [got.headers["X-Polar-Delivery"] for got in receiver.got]
    assert ids == [each.id for each in log(webhook)]

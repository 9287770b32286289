"""A31: pushes to a hub, by its own client and from a real store: no job hangs on them."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from app.attempts.commits import Publication, StoredCheckpoint, StoredFile, commit_checkpoint
from app.attempts.service import Claim, claim, commit_model, finalize
from app.backups.service import settle
from app.db import transaction
from app.errors import Conflict
from app.hub import service, store
from app.jobs.service import cancel_job, delete_job, show_job
from app.object_file import open_object
from app.secrets.service import delete_secret, put_secret
from app.settings import Settings
from app.storage import Store
from tests.hub import Fault, Hub, running_hub
from tests.services import wait_until
from tests.worker.conftest import forget
from tests.worker.world import PROJECT, add_host, add_job, one, rows, run_sql
from trainer_core.publish.manifest import write_manifest
from worker.placement import place
from worker.proctree import identify, is_alive
from worker.pusher import Pusher
from worker.transfer import upload_folder

TOKEN = "hf_PushCanary0123456789abcdef"
REPO = "org/shop-sft"
CARD = '---\nlibrary_name: peft\nbase_model: "org/base"\n---\n# 모델\n'
MODEL = {
    "README.md": CARD.encode(),
    "adapter_config.json": b'{"r": 8}',
    "adapter_model.safetensors": os.urandom(3 * 2**20 + 17),
    "1_Pooling/config.json": b"{}",
    "empty.txt": b"",
}


class World:
    """A job's model in a store, and a hub that waits for it."""

    def __init__(self, hub: Hub, objects: Store, folder: Path, settings: Settings) -> None:
        self.hub = hub
        self.objects = objects
        self.folder = folder
        self.settings = settings
        self.pusher = Pusher(settings, threading.Event())
        self.secret(TOKEN)

    def secret(self, value: str) -> None:
        with transaction() as session:
            put_secret(session, PROJECT, "hub-token", value)

    def job(self, **hub: Any) -> tuple[str, Claim]:
        """A job that a host has just begun with."""
        wish = {"repo_id": REPO, "token": {"secret": "hub-token"}, **hub}
        job_id = add_job(max_attempts=1, publish={"registry": True, "hub": wish})
        with transaction() as session:
            assert place(session, "r") == 1
        attempt = one("SELECT id FROM attempts WHERE job_id = :id", id=job_id)
        with transaction() as session:
            held = claim(session, attempt, "h1", "nonce")
        assert held is not None
        run_sql("UPDATE jobs SET status = 'running' WHERE id = :id", id=job_id)
        return job_id, held

    def store(self, held: Claim, name: str, files: dict[str, bytes], step: int = 0) -> Any:
        """Put a whole folder into the store."""
        folder = self.folder / held.attempt_id / name
        for path, content in files.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(content)
        write_manifest(folder, "checkpoint" if step else "model", step, ("s", "d"))
        prefix = f"{PROJECT}/jobs/{held.job_id}/{held.attempt_id}/{name}/"
        return upload_folder(self.objects, folder, prefix)

    def publish(self, held: Claim, files: dict[str, bytes] | None = None) -> None:
        """Put a model into the store and succeed."""
        stored = self.store(held, "model", MODEL if files is None else files)
        kept = [
            StoredFile(f"model/{e.path}", stored.prefix + e.path, "model", e.size, e.sha256)
            for e in stored.manifest.files
        ]
        made = Publication(stored.prefix, stored.manifest_sha256, kept, "adapter", "org/base")
        with transaction() as session:
            assert finalize(session, held.attempt_id, held.token)
            assert commit_model(session, held.attempt_id, held.token, made)

    def save(self, held: Claim, step: int, files: dict[str, bytes]) -> list[str]:
        """Commit a checkpoint; returns what is deleted for it."""
        stored = self.store(held, f"checkpoints/step-{step:08d}", files, step)
        size = stored.manifest.total_bytes
        row = StoredCheckpoint(step, stored.prefix, stored.manifest_sha256, size)
        with transaction() as session:
            return commit_checkpoint(session, held.attempt_id, held.token, row)

    def push(self) -> None:
        """Make every push that is wanted, whatever the back-off says."""
        run_sql("UPDATE hub_pushes SET next_at = now() - interval '1 s'")
        self.pusher.push_next()

    def ref(self, job_id: str) -> Any:
        with transaction() as session:
            return show_job(session, PROJECT, job_id).external_refs.hub

    def told(self) -> list[dict[str, Any]]:
        query = "SELECT data FROM job_events WHERE type = 'hub' ORDER BY job_id, seq"
        return [data for (data,) in rows(query)]


@pytest.fixture
def world(
    store_settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[World]:
    with running_hub(TOKEN) as hub:
        monkeypatch.setenv("POLAR_HUB_ENDPOINT", hub.url)
        monkeypatch.setenv("HF_TOKEN", "hf_of_somebody_else")
        forget()
        add_host("h1", slots=9)
        from app.settings import get_settings

        yield World(hub, Store(store_settings), tmp_path, get_settings())


def laid(hub: Hub, repo_id: str = REPO) -> dict[str, bytes]:
    """What pushes laid, without what the hub makes itself and without manifests."""
    files = hub.repos[repo_id].files
    return {p: c for p, c in files.items() if p != ".gitattributes" and "manifest" not in p}


def test_a_published_model_arrives_byte_for_byte_in_one_commit(world: World):
    job_id, held = world.job()
    world.publish(held)
    assert world.ref(job_id).state == "pending"
    world.push()
    [commit] = world.hub.commits(REPO)
    assert laid(world.hub) == MODEL
    prefix = one("SELECT prefix FROM model_versions")
    assert commit.files["manifest.json"] == world.objects.get_bytes(f"{prefix}manifest.json", 10**6)
    assert commit.message == f"tiny: model ({job_id})"
    assert world.hub.repos[REPO].private
    ref = world.ref(job_id)
    assert (ref.state, ref.commit, ref.message) == ("pushed", commit.oid, None)
    assert ref.url == f"{world.hub.url}/{REPO}/tree/main"
    assert world.told() == [
        {
            "repo_id": REPO,
            "revision": "main",
            "kind": "model",
            "commit": commit.oid,
            "state": "pushed",
        }
    ]
    assert world.pusher.push_next() == 0


def test_large_files_go_in_the_parts_that_the_hub_asks_for(world: World):
    world.hub.part = 2**20
    job_id, held = world.job()
    world.publish(held)
    world.push()
    assert world.ref(job_id).state == "pushed"
    assert laid(world.hub) == MODEL
    assert len(world.hub.parts) == 4  # 3 MiB and 17 bytes


@pytest.mark.sampled
@pytest.mark.parametrize("status", [500, 503, 409])
def test_a31_a_hub_that_fails_delays_the_push_and_nothing_else(world: World, status: int):
    job_id, held = world.job()
    world.hub.faults.append(Fault("/commit/main$", status, {"error": "try later"}, times=2))
    world.publish(held)
    world.push()
    assert one("SELECT status FROM jobs") == "succeeded"
    ref = world.ref(job_id)
    assert ref.state == "pending"
    assert f"answered {status} for {REPO}: try later" in ref.message
    assert one("SELECT failures FROM hub_pushes") == 1
    world.push()
    assert one("SELECT failures FROM hub_pushes") == 2
    world.push()
    assert world.ref(job_id).state == "pushed"
    assert len(world.hub.commits(REPO)) == 1
    assert laid(world.hub) == MODEL
    # Of failures that are tried again the first alone is told.
    assert [event["state"] for event in world.told()] == ["pending", "pushed"]
    assert one("SELECT status FROM jobs") == "succeeded"


def test_tries_come_ever_later_and_as_late_as_the_hub_asks(world: World):
    del world
    waits = [service.backoff(failures, None) for failures in (0, 1, 2, 99)]
    assert waits == [0.05, 0.1, 0.2, 600.0]
    assert [service.backoff(0, asked) for asked in (30.0, 86_400.0)] == [30.0, 3600.0]


@pytest.mark.sampled
def test_a_hub_that_asks_for_time_gets_it(world: World):
    job_id, held = world.job()
    headers = {"Retry-After": "120"}
    world.hub.faults.append(Fault("/preupload/", 429, headers=headers, times=1))
    world.publish(held)
    world.push()
    assert world.ref(job_id).message.endswith("takes no more requests for now (429)")
    waits = "SELECT next_at BETWEEN now() + interval '110 s' AND now() + interval '120 s'"
    assert one(f"{waits} FROM hub_pushes")
    world.push()
    assert world.ref(job_id).state == "pushed"


def nobody() -> str:
    """An address where nothing listens."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{free.getsockname()[1]}"


@pytest.mark.sampled
def test_a_hub_that_is_not_there_is_asked_again_for_a_week(world: World):
    job_id, held = world.job()
    world.publish(held)
    away = nobody()
    settings = world.settings.model_copy(update={"hub_endpoint": away})
    absent = Pusher(settings, threading.Event())
    run_sql("UPDATE hub_pushes SET next_at = now() - interval '1 month'")  # it waited long
    assert absent.push_next() == 1
    ref = world.ref(job_id)
    assert ref.state == "pending"
    assert ref.message.startswith(f"{away.removeprefix('http://')} does not answer (ConnectError: ")
    run_sql("UPDATE hub_pushes SET next_at = now(), failing_since = now() - interval '8 days'")
    assert absent.push_next() == 1
    assert world.ref(job_id).state == "failed"  # after a week nobody tries by himself any more
    with transaction() as session:
        assert service.retry(session, PROJECT, job_id).external_refs.hub.state == "pending"
    assert absent.push_next() == 1
    assert world.ref(job_id).state == "pending"  # another week
    world.push()
    assert world.ref(job_id).state == "pushed"
    assert one("SELECT failing_since IS NULL FROM hub_pushes")


EXPIRED = b"<Error><Code>AccessDenied</Code><Message>Request has expired</Message></Error>"
TIMEOUT = b"<Error><Code>RequestTimeout</Code><Message>Your socket was idle</Message></Error>"


@pytest.mark.sampled
@pytest.mark.parametrize("part", [None, 2**20])
@pytest.mark.parametrize(
    ("status", "body", "says"),
    [(403, EXPIRED, "Request has expired"), (400, TIMEOUT, "Your socket was idle")],
)
def test_what_the_storage_of_a_hub_refuses_is_tried_again(
    world: World, part: int | None, status: int, body: bytes, says: str
):
    world.hub.part = part
    headers = {"Content-Type": "application/xml"}
    world.hub.faults.append(Fault("^/(blobs|parts)/", status, body, headers, times=1))
    job_id, held = world.job()
    world.publish(held)
    world.push()
    ref = world.ref(job_id)
    host = world.hub.storage.removeprefix("http://")
    assert ref.message == f"the hub's storage at {host} answered {status}: {says}"
    assert ref.state == "pending"
    world.push()
    assert world.ref(job_id).state == "pushed"
    assert laid(world.hub) == MODEL


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("status", "says"),
    [
        (401, "it does not know the token"),
        (403, "the token may not write there"),
        (404, "there is no such repository"),
    ],
)
def test_what_somebody_must_change_is_said_and_waits_for_a_retry(
    world: World, status: int, says: str
):
    job_id, held = world.job()
    echo = {"error": f"Bearer {TOKEN} is refused"}
    world.hub.faults.append(Fault("^/api/", status, echo, {"X-Error-Code": "RepoNotFound"}))
    world.publish(held)
    world.push()
    ref = world.ref(job_id)
    assert ref.state == "failed"
    assert says in ref.message
    assert "Bearer [redacted] is refused" in ref.message
    assert one("SELECT status FROM jobs") == "succeeded"
    assert world.told()[-1]["state"] == "failed"
    assert world.pusher.push_next() == 0
    world.hub.faults.clear()
    with transaction() as session:
        service.retry(session, PROJECT, job_id)
    assert world.pusher.push_next() == 1
    assert world.ref(job_id).state == "pushed"
    with transaction() as session, pytest.raises(Conflict, match="on the hub already"):
        service.retry(session, PROJECT, job_id)


@pytest.mark.sampled
def test_a_token_that_was_replaced_is_the_one_that_is_used(world: World):
    job_id, held = world.job()
    world.secret("hf_an_old_one_that_is_not_valid")
    world.publish(held)
    world.push()
    assert world.ref(job_id).state == "failed"
    with transaction() as session:
        delete_secret(session, PROJECT, "hub-token")
        service.retry(session, PROJECT, job_id)
    world.push()
    assert "there is no secret hub-token any more" in world.ref(job_id).message
    world.secret(TOKEN)
    with transaction() as session:
        service.retry(session, PROJECT, job_id)
    world.push()
    assert world.ref(job_id).state == "pushed"


@pytest.mark.sampled
def test_a_public_repository_is_refused_unless_that_is_wanted(world: World):
    world.hub.create(REPO, private=False)
    job_id, held = world.job()
    world.publish(held)
    world.push()
    assert "org/shop-sft is public, and publish.hub.private is true" in world.ref(job_id).message
    assert world.hub.commits(REPO) == []
    other, held = world.job(private=False)
    world.publish(held)
    world.push()
    assert world.ref(other).state == "pushed"


def test_a_branch_is_made_and_main_stays(world: World):
    job_id, held = world.job(revision="team/trial")
    world.publish(held)
    world.push()
    assert world.ref(job_id).url == f"{world.hub.url}/{REPO}/tree/team%2Ftrial"
    assert len(world.hub.commits(REPO, "team/trial")) == 1
    assert world.hub.commits(REPO) == []


@pytest.mark.sampled
def test_what_an_earlier_push_laid_is_replaced_and_what_others_laid_stays(world: World):
    _, held = world.job()
    world.publish(held)
    world.push()
    world.hub.repos[REPO].files["NOTES.md"] = b"by hand"
    _, held = world.job()
    merged = {"README.md": CARD.encode(), "model.safetensors": b"merged", "config.json": b"{}"}
    world.publish(held, merged)
    world.push()
    assert laid(world.hub) == {**merged, "NOTES.md": b"by hand"}


STATE = {"optimizer.pt": b"opt", "trainer_state.json": b"{}", "rng_state.pth": b"rng"}
ROWS = {"base_evaluation.json": b'{"answers": ["a row of the data"]}'}


def checkpoint(step: int) -> dict[str, bytes]:
    weights = {"adapter_model.safetensors": b"w%d" % step, "adapter_config.json": b"{}"}
    return {**weights, **STATE, **ROWS, "README.md": b"---\nbase_model: /a/folder\n---\n"}


@pytest.mark.sampled
@pytest.mark.parametrize("strategy", ["every_save", "checkpoint", "end"])
def test_checkpoints_are_pushed_as_the_strategy_says(world: World, strategy: str):
    job_id, held = world.job(strategy=strategy)
    world.save(held, 4, checkpoint(4))
    world.push()
    if strategy == "end":
        assert REPO not in world.hub.repos
        assert world.ref(job_id) is None
    else:
        weights = {p: c for p, c in checkpoint(4).items() if p.startswith("adapter")}
        whole = {f"last-checkpoint/{p}": c for p, c in checkpoint(4).items() if p not in ROWS}
        assert laid(world.hub) == weights | (whole if strategy == "checkpoint" else {})
        ref = world.ref(job_id)
        assert (ref.state, ref.kind, ref.step) == ("pushed", "checkpoint", 4)
        root = json.loads(world.hub.repos[REPO].files["manifest.json"])
        sent = [asked for asked in world.hub.asked if asked.startswith("PUT")]
        assert len(sent) == len({*sent})  # though the same weights lie in two places
        assert sorted(each["path"] for each in root["files"]) == sorted(weights)
        if strategy == "checkpoint":
            last = json.loads(world.hub.repos[REPO].files["last-checkpoint/manifest.json"])
            assert {f"last-checkpoint/{each['path']}" for each in last["files"]} == {*whole}
    world.publish(held)
    world.push()
    rest = {p: c for p, c in laid(world.hub).items() if not p.startswith("last-checkpoint/")}
    assert rest == MODEL
    assert world.ref(job_id).kind == "model"


@pytest.mark.sampled
def test_a_checkpoint_that_did_not_leave_in_time_is_passed_over(world: World):
    job_id, held = world.job(strategy="every_save")
    world.save(held, 4, checkpoint(4))
    world.save(held, 8, checkpoint(8))
    world.push()
    assert [commit.message for commit in world.hub.commits(REPO)] == [
        f"tiny: checkpoint at step 8 ({job_id})"
    ]
    assert world.pusher.push_next() == 0


@pytest.mark.sampled
def test_what_is_wanted_during_a_push_is_pushed_after_it(world: World):
    _, held = world.job(strategy="every_save")
    world.save(held, 4, checkpoint(4))
    world.hub.held = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        pushing = pool.submit(world.pusher.push_next)
        assert world.hub.arrived.wait(60)
        world.save(held, 8, checkpoint(8))
        world.hub.held.set()
        assert pushing.result() == 1
    world.hub.held = None
    assert one("SELECT state FROM hub_pushes") == "pending"
    assert world.pusher.push_next() == 1
    assert laid(world.hub)["adapter_model.safetensors"] == b"w8"
    assert one("SELECT state FROM hub_pushes") == "pushed"


@pytest.mark.sampled
def test_a_checkpoint_that_went_while_it_was_pushed_leaves_its_place_without_a_word(world: World):
    job_id, held = world.job(strategy="every_save")
    world.save(held, 4, checkpoint(4))
    world.hub.held = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        pushing = pool.submit(world.pusher.push_next)
        assert world.hub.arrived.wait(60)
        world.hub.faults.append(Fault("/commit/", 403))
        world.save(held, 8, checkpoint(8))
        world.hub.held.set()
        pushing.result()
    world.hub.held = None
    world.hub.faults.clear()
    assert (world.ref(job_id).state, world.ref(job_id).message) == ("pending", None)
    assert world.told() == []
    assert world.pusher.push_next() == 1
    assert world.ref(job_id).step == 8
    assert [event["state"] for event in world.told()] == ["pushed"]


@pytest.mark.sampled
def test_a_checkpoint_stays_as_long_as_it_is_pushed(world: World):
    job_id, held = world.job(strategy="every_save")
    world.save(held, 4, checkpoint(4))
    world.hub.held = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        pushing = pool.submit(world.pusher.push_next)
        assert world.hub.arrived.wait(60)
        for step in (8, 12, 16):
            for prefix in world.save(held, step, checkpoint(step)):
                world.objects.delete_prefix(prefix)
        world.hub.held.set()
        assert pushing.result() == 1
    world.hub.held = None
    assert world.pusher.push_next() == 1
    assert [commit.message for commit in world.hub.commits(REPO)] == [
        f"tiny: checkpoint at step {step} ({job_id})" for step in (4, 16)
    ]
    retired = "SELECT step FROM checkpoints WHERE deleted_at IS NOT NULL ORDER BY step"
    assert [step for (step,) in rows(retired)] == [4, 8]


@pytest.mark.sampled
def test_what_made_an_earlier_push_fail_is_not_said_of_the_next(world: World):
    job_id, held = world.job(strategy="every_save")
    world.hub.faults.append(Fault("^/api/", 403))
    world.save(held, 4, checkpoint(4))
    world.push()
    world.save(held, 8, checkpoint(8))
    ref = world.ref(job_id)
    assert (ref.state, "may not write there" in ref.message) == ("failed", True)
    world.publish(held)
    ref = world.ref(job_id)
    assert (ref.state, ref.message) == ("pending", None)


@pytest.mark.sampled
def test_a_wish_that_is_not_valid_any_more_holds_up_nobody(world: World):
    job_id, held = world.job()
    change = "jsonb_set(spec, '{publish,hub,strategy}', '\"of_old\"')"
    run_sql(f"UPDATE jobs SET spec = {change} WHERE id = :id", id=job_id)  # noqa: S608
    world.save(held, 4, checkpoint(4))
    world.publish(held)
    other, held = world.job(repo_id="org/other")
    world.publish(held)
    assert [world.pusher.push_next() for _ in range(3)] == [1, 1, 0]
    ref = world.ref(job_id)
    assert (ref.state, ref.repo_id) == ("failed", REPO)
    assert "does not take the job's publish.hub" in ref.message
    assert world.ref(other).state == "pushed"
    with transaction() as session:
        service.retry(session, PROJECT, job_id)
    world.push()
    assert world.ref(job_id).state == "failed"


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("program", "says"),
    [("/none/such", "could not be started here"), ("/bin/false", "ended by exit code 1")],
)
def test_a_process_that_does_not_start_is_a_failure_like_others(
    world: World, program: str, says: str, monkeypatch: pytest.MonkeyPatch
):
    job_id, held = world.job()
    world.publish(held)
    with monkeypatch.context() as changed:
        changed.setattr(sys, "executable", program)
        world.push()
    ref = world.ref(job_id)
    assert (ref.state, says in ref.message) == ("pending", True)
    assert one("SELECT failures = 1 AND lease_token IS NULL FROM hub_pushes")
    world.push()
    assert world.ref(job_id).state == "pushed"


@pytest.mark.sampled
def test_the_run_lock_is_not_for_everybody(world: World):
    made = {**MODEL, "run_lock.json": b'{"spec": {"data": "s3://our-bucket/customers"}}'}
    for private in (True, False):
        repo_id = f"org/private-{private}"
        _, held = world.job(private=private, repo_id=repo_id)
        world.publish(held, made)
        world.push()
        expected = made if private else MODEL
        assert laid(world.hub, repo_id) == expected
        manifest = json.loads(world.hub.repos[repo_id].files["manifest.json"])
        assert {each["path"] for each in manifest["files"]} == {*expected}


def test_a_cancelled_job_is_not_pushed(world: World):
    job_id, held = world.job(strategy="checkpoint")
    world.save(held, 4, checkpoint(4))
    with transaction() as session:
        cancel_job(session, PROJECT, job_id)
    world.push()
    assert REPO not in world.hub.repos
    run_sql("UPDATE jobs SET status = 'cancelled', finished_at = now()")
    with transaction() as session:
        assert store.drop_unwanted(session) == 1
    assert world.ref(job_id).state == "dropped"
    with transaction() as session, pytest.raises(Conflict, match="was cancelled"):
        service.retry(session, PROJECT, job_id)


def test_a_job_that_is_deleted_takes_its_push_along(world: World):
    job_id, held = world.job()
    world.publish(held)
    run_sql("UPDATE attempts SET released_at = now()")
    with transaction() as session:
        delete_job(session, PROJECT, job_id)
    assert world.pusher.push_next() == 0
    assert REPO not in world.hub.repos


def test_files_that_are_gone_or_damaged_are_said(world: World):
    job_id, held = world.job()
    world.publish(held)
    prefix = one("SELECT prefix FROM model_versions")
    world.objects.put_bytes(prefix + "adapter_config.json", b'{"r": 9}')
    world.push()
    assert "adapter_config.json is damaged" in world.ref(job_id).message
    world.objects.delete_prefix(prefix)
    with transaction() as session:
        service.retry(session, PROJECT, job_id)
    world.push()
    assert world.ref(job_id).state == "failed"
    assert "not in the store any more" in world.ref(job_id).message


@pytest.mark.sampled
def test_a_restored_service_does_not_push_by_itself(world: World):
    job_id, held = world.job()
    world.publish(held)
    with transaction() as session:
        settle(session)
    assert world.pusher.push_next() == 0
    ref = world.ref(job_id)
    assert (ref.state, "restored from a back-up" in ref.message) == ("failed", True)
    with transaction() as session:
        service.retry(session, PROJECT, job_id)
    assert world.pusher.push_next() == 1
    assert world.ref(job_id).state == "pushed"
    assert laid(world.hub) == MODEL


PROGRAM = """
import threading
from app.settings import get_settings
from worker.pusher import Pusher
Pusher(get_settings(), threading.Event()).push_next()
"""


def children(pid: int) -> list[int]:
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.mark.sampled
def test_a_push_whose_holder_was_killed_is_made_by_another_once(world: World):
    job_id, held = world.job()
    world.publish(held)
    world.hub.held = threading.Event()
    holder = subprocess.Popen([sys.executable, "-c", PROGRAM])
    assert world.hub.arrived.wait(60)
    [child] = children(holder.pid)
    pushing = identify(child)
    assert pushing is not None
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    wait_until(lambda: not is_alive(pushing))
    assert world.pusher.push_next() == 0  # its lease lasts
    world.hub.held.set()
    run_sql("UPDATE hub_pushes SET lease_expires_at = now() - interval '1 s'")
    assert world.pusher.push_next() == 1
    assert len(world.hub.commits(REPO)) == 1
    assert laid(world.hub) == MODEL
    # One that died between the hub's answer and ours does it once more: no second commit.
    run_sql("UPDATE hub_pushes SET state = 'pending', next_at = now()")
    assert world.pusher.push_next() == 1
    assert len(world.hub.commits(REPO)) == 1
    assert world.ref(job_id).commit == world.hub.commits(REPO)[0].oid


@pytest.mark.sampled
@pytest.mark.parametrize("how", ["lost", "stopping"])
def test_a_push_that_is_not_ours_any_more_ends(
    world: World, how: str, monkeypatch: pytest.MonkeyPatch
):
    _, held = world.job()
    world.publish(held)
    monkeypatch.setenv("POLAR_LEASE_RENEW", "0.1")
    forget()
    from app.settings import get_settings

    stopping = threading.Event()
    pusher = Pusher(get_settings(), stopping)
    world.hub.held = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        pushing = pool.submit(pusher.push_next)
        assert world.hub.arrived.wait(60)
        if how == "lost":
            run_sql("UPDATE hub_pushes SET lease_token = 'another'")
        else:
            stopping.set()
        assert pushing.result(timeout=30) == 1
    assert world.hub.commits(REPO) == []
    assert world.told() == []
    free = one("SELECT lease_token IS NULL FROM hub_pushes")
    assert free is (how == "stopping")


def test_two_at_once_never_make_one_push(world: World):
    for number in range(3):
        _, held = world.job(repo_id=f"org/model-{number}")
        world.publish(held, {"README.md": CARD.encode(), "config.json": b"%d" % number})
    with ThreadPoolExecutor(3) as pool:
        assert sum(pool.map(lambda _: world.pusher.push_next(), range(3))) == 3
    for number in range(3):
        assert laid(world.hub, f"org/model-{number}")["config.json"] == b"%d" % number
        assert len(world.hub.commits(f"org/model-{number}")) == 1


def test_the_token_is_nowhere_but_in_the_requests(
    world: World, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
):
    caplog.set_level("DEBUG")
    _, held = world.job()
    world.secret(TOKEN + "-old")
    world.publish(held)
    world.push()
    world.secret(TOKEN)
    run_sql("UPDATE hub_pushes SET state = 'pending'")
    world.push()
    assert one("SELECT state FROM hub_pushes") == "pushed"
    everywhere = [caplog.text, *capfd.readouterr()]
    tables = rows("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
    whole = "SELECT string_agg(t::text, ' ') FROM {} t"
    everywhere += [str(one(whole.format(name))) for (name,) in tables]
    everywhere += [str(laid(world.hub))]
    assert [text for text in everywhere if TOKEN in text] == []
    assert [text for text in everywhere if "X-Signature" in text] == []


TORN = """
import io, sys
from app.storage import StoreUnavailable
from trainer_core.publish.hub import File, Repository, push

class Torn(io.BytesIO):
    whole = False
    def read(self, size=-1):
        if self.whole:
            raise StoreUnavailable("the store is away")
        part = super().read(size)
        self.whole = not part
        return part

files = [File("model.safetensors", Torn(bytes(99))), File("config.json", b"{}")]
try:
    push(Repository(sys.argv[1], "org/torn", "main", True, sys.argv[2]), files, "m")
except StoreUnavailable as error:
    print(error)
"""


@pytest.mark.sampled
def test_a_store_that_goes_away_while_files_are_sent_is_not_the_hubs_fault(world: World):
    done = subprocess.run(
        [sys.executable, "-c", TORN, world.hub.url, TOKEN],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
        env=os.environ | {"HF_HUB_DISABLE_XET": "1"},
    )
    assert done.stdout == "the store is away\n"


PEAK = """
import resource, sys
from worker.push import main
main([])
sys.stderr.write(str(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss))
"""


def peak(world: World, size: int) -> int:
    """The most memory, in MiB, that the process of a push had for a file of `size` bytes."""
    _, held = world.job()
    files = {"README.md": CARD.encode(), "model.safetensors": os.urandom(size)}
    stored = world.store(held, "model", files)
    order = {
        "endpoint": world.hub.url,
        "repo_id": f"org/of-{size}",
        "revision": "main",
        "private": True,
        "token": TOKEN,
        "kind": "model",
        "whole": False,
        "prefix": stored.prefix,
        "manifest_sha256": stored.manifest_sha256,
        "message": "as large as it is",
    }
    done = subprocess.run(
        [sys.executable, "-c", PEAK],
        input=json.dumps(order),
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
        env=os.environ | {"HF_HUB_DISABLE_XET": "1"},
    )
    assert json.loads(done.stdout)["commit"], done.stdout
    assert laid(world.hub, f"org/of-{size}") == files
    return int(done.stderr.splitlines()[-1]) // 1024


@pytest.mark.sampled
def test_a_push_never_holds_a_model(world: World):
    size = 128 * 2**20
    assert peak(world, size) - peak(world, 2**20) < size / 2**20 / 4


READS: list[Callable[[Any], bytes]] = [
    lambda file: file.read(),
    lambda file: file.read(10) and file.seek(5) and file.read(),
    lambda file: b"" if file.seek(0, 2) is None else file.read(),
    lambda file: file.seek(2**20 + 3) and file.read(7),
]


@pytest.mark.parametrize("read", READS)
def test_an_object_reads_like_a_file(store_settings: Settings, tmp_path: Path, read: Any):
    objects = Store(store_settings)
    content = os.urandom(2**21 + 5)
    objects.put_bytes("p/a", content)
    (tmp_path / "a").write_bytes(content)
    with open_object(objects, "p/a") as ours, (tmp_path / "a").open("rb") as theirs:
        assert read(ours) == read(theirs)
        assert ours.tell() == theirs.tell()

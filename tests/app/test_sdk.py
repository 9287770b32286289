"""SDK and command line against the real API: what was sent arrives, and what is refused is told."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

from polar import AsyncClient, Client, Conflict, Invalid, Waited
from polar.manifest import verify
from polar.sdk import files
from polar.tried import fetch_version
from tests.app.resources import JOB
from tests.app.server import Api
from tests.app.stored import publish
from tests.services import ROOT

ROWS = [{"instruction": f"Question {n}?", "output": "Yes. " * 20} for n in range(400)]


@pytest.fixture
def client(api: Api) -> Iterator[Client]:
    with Client(api.url, api.key) as made:
        yield made


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in ROWS), encoding="utf-8")
    return file


def polar(api: Api, *arguments: str, said: str = "") -> subprocess.CompletedProcess[str]:
    """Run a command against the API."""
    return subprocess.run(
        [sys.executable, "-m", "polar", *arguments],
        cwd=ROOT,
        env={**os.environ, "POLAR_URL": api.url, "POLAR_API_KEY": api.key},
        input=said,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_a_file_goes_up_in_pieces_and_goes_on_where_it_broke(
    client: Client, rows: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "PIECE", 20_000)
    begun = client.uploads.begin(rows, "pieces")
    head = rows.read_bytes()[:15_000]
    assert client.uploads.send_piece(begun.id, 0, head) == len(head)
    done = client.uploads.send(begun.id, rows)
    made = client.datasets.get(str(done.dataset_id))
    assert (made.rows, made.size) == (400, rows.stat().st_size)
    assert made.sha256 == files.checksum(rows)
    assert client.datasets.upload(rows, "pieces").version == made.version + 1
    assert {each.version for each in client.datasets.list(name="pieces", limit=1)} == {1, 2}


def test_broken_data_are_refused_with_their_lines(client: Client, tmp_path: Path) -> None:
    file = tmp_path / "broken.jsonl"
    file.write_text('{"instruction": "a", "output": "b"}\n{"instruction": \n')
    with pytest.raises(Invalid, match="line 2"):
        client.datasets.upload(file)


def test_a_job_is_steered_by_its_own_methods(client: Client) -> None:
    key = os.urandom(8).hex()
    job = client.jobs.create(JOB, idempotency_key=key)
    assert client.jobs.create(JOB, idempotency_key=key).id == job.id
    with pytest.raises(Conflict, match="used for another request"):
        client.jobs.create({**JOB, "name": "other"}, idempotency_key=key)
    copy = job.clone({"training": {"max_steps": 3}})
    assert (copy.clone_of, copy.resolved["training"]["max_steps"]) == (job.id, 3)
    with pytest.raises(Waited):
        copy.wait(timeout=0)
    assert [each.cancel().wait(timeout=60).status for each in (job, copy)] == ["cancelled"] * 2
    seen = list(copy.events())
    assert [seen[-1].type, seen[-1].body["status"]] == ["end", "cancelled"]
    page = client.jobs.event_page(copy.id)
    assert [event.seq for event in page.data] == [frame.seq for frame in seen if frame.seq]
    assert {job.id, copy.id} <= {each.id for each in client.jobs.list(limit=1)}
    client.jobs.delete(copy.id)


def test_a_published_model_is_fetched_whole_for_trying(
    api: Api, client: Client, tmp_path: Path
) -> None:
    """With its manifest, which proves each file; a copy that is here is taken as it is."""
    publish(api, "tried", {"config.json": b"{}", "하위/a b.bin": b"weights"})
    folder = fetch_version(client, "tried", tmp_path)
    assert verify(folder) == 2
    assert (folder / "하위/a b.bin").read_bytes() == b"weights"
    (folder / "config.json").write_bytes(b"my own")
    assert fetch_version(client, "tried:1", tmp_path) == folder
    assert (folder / "config.json").read_bytes() == b"my own"


def test_the_same_with_await(api: Api) -> None:
    async def run() -> list[str]:
        async with AsyncClient(api.url, api.key) as client:
            job = await client.jobs.create(JOB)
            ended = await (await job.cancel()).wait(timeout=60)
            found = [each.id async for each in client.jobs.list(limit=2)]
            frames = [frame.type async for frame in job.events()]
            assert (job.id in found, frames[-1]) == (True, "end")
            return [ended.status]

    assert anyio.run(run) == ["cancelled"]


def test_commands_tell_people_and_programs(api: Api, rows: Path, tmp_path: Path) -> None:
    spec = tmp_path / "spec.json"
    spec.write_text(json.dumps({**JOB, "name": "of-the-shell"}))
    job_id = polar(api, "submit", str(spec)).stdout.split()[0]
    listed = polar(api, "list", "-q", "of-the-shell")
    assert job_id in listed.stdout
    [job] = json.loads(polar(api, "list", "-q", "of-the-shell", "--json").stdout)
    assert (job["id"], job["status"]) == (job_id, "queued")
    assert "queued" in polar(api, "status", job_id).stdout
    assert polar(api, "cancel", job_id).returncode == 0
    watched = polar(api, "watch", job_id, "--json")
    assert (watched.returncode, json.loads(watched.stdout.splitlines()[-1])["type"]) == (4, "end")
    replayed = [
        json.loads(line) for line in polar(api, "replay", job_id, "--json").stdout.splitlines()
    ]
    assert [event["seq"] for event in replayed] == list(range(1, len(replayed) + 1))
    dataset = polar(api, "datasets", "add", str(rows), "--name", "shell").stdout.split()[0]
    assert "Question 0?" in polar(api, "datasets", "preview", dataset, "-n", "1").stdout


def test_commands_without_an_answer_tell_what_they_did(
    api: Api, client: Client, rows: Path
) -> None:
    jobs = [client.jobs.create({**JOB, "training": {"max_steps": n}}).id for n in (2, 3)]
    [head, *lines] = polar(api, "compare", *jobs).stdout.splitlines()
    assert head.split() == ["job", "name", "status", "training.max_steps"]
    told = [(line.split()[0], line.split()[-1]) for line in lines]
    assert told == [(jobs[0], "2"), (jobs[1], "3")]
    compared = json.loads(polar(api, "compare", *jobs, "--json").stdout)["jobs"]
    assert [job["fields"] for job in compared] == [{"training.max_steps": n} for n in (2, 3)]
    hook = polar(api, "webhooks", "add", "https://hooks.example.com/polar", "--json")
    made = json.loads(hook.stdout)
    assert made["id"] in polar(api, "webhooks", "show", made["id"]).stdout
    head = polar(api, "webhooks", "deliveries", made["id"]).stdout
    assert head.split() == ["id", "event", "status", "attempts", "answer", "created", "error"]
    gone = json.loads(polar(api, "webhooks", "delete", made["id"], "--json").stdout)
    assert gone == {"id": made["id"], "deleted": True}
    refused = polar(api, "artifacts", "download", jobs[0], "model/a", "--to", f"{rows}/a")
    assert (refused.returncode, refused.stdout) == (1, "")
    assert refused.stderr == f"error: {rows}: File exists: choose another place with --to\n"


def test_secrets_come_from_standard_input(api: Api) -> None:
    assert polar(api, "secrets", "set", "hf", said="hf_very_secret\n").stdout == "hf: stored\n"
    refused = polar(api, "secrets", "set", "hf", said="short")
    assert (refused.returncode, "short" in refused.stdout) == (6, False)
    assert "hf" in polar(api, "secrets", "list").stdout


def test_exit_codes_say_how_it_ended(api: Api, tmp_path: Path) -> None:
    spec = tmp_path / "spec.json"
    spec.write_text(json.dumps({**JOB, "task": {"type": "sftt"}}))
    refused = polar(api, "submit", str(spec))
    assert (refused.returncode, "/task" in refused.stderr, "Traceback" in refused.stderr) == (
        6,
        True,
        False,
    )
    spec.write_text("{")
    assert polar(api, "submit", str(spec)).returncode == 2
    away = {**os.environ, "POLAR_URL": "http://127.0.0.1:1"}
    done = subprocess.run(
        [sys.executable, "-m", "polar", "list"],
        cwd=ROOT,
        env=away,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stderr.startswith("error: no answer")) == (7, True)

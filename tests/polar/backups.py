"""A small installation with a bit of everything, for the tests of back-ups."""

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from psycopg.types.json import Jsonb

from polar.backup.database import Connection, connect
from polar.backup.objects import Bucket
from polar.backup.places import Place
from polar.stack.home import Home
from polar.stack.private import write_private
from tests.services import ROOT

NOBODY = 65534
AS_NOBODY = (
    *("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"),
    *("--inh-caps=+dac_override", "--ambient-caps=+dac_override"),
)
PROJECT = "prj_default"
RUNNING, DONE, PREPARING = "job_running", "job_done", "job_preparing"
ATTEMPT = "att_1"


def polar(
    home: Path, *arguments: str, wrapper: tuple[str, ...] = (), **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run a command of the client on a data folder."""
    environment = {name: value for name, value in os.environ.items() if name[:6] != "POLAR_"}
    return subprocess.run(
        [*wrapper, sys.executable, "-m", "polar", *arguments],
        cwd=ROOT,
        env={**environment, "HOME": str(home.parent), "POLAR_HOME": str(home), **variables},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )


def folder(files: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return the files of a whole folder: with the manifest that names them."""
    listed = [
        {"path": path, "size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        for path, data in files.items()
    ]
    return {**files, "manifest.json": json.dumps({"files": listed}).encode()}


@dataclass
class Content:
    """What is put into the store, by key."""

    objects: dict[str, bytes] = field(default_factory=dict)

    def add(self, prefix: str, files: Mapping[str, bytes]) -> str:
        """Add the files of a folder; returns the sha256 of its manifest."""
        self.objects |= {prefix + path: data for path, data in files.items()}
        return hashlib.sha256(files["manifest.json"]).hexdigest()


def fill(place: Place) -> Content:
    """Lay the schema, and write a running, a finished and a preparing job with their objects."""
    content = Content()
    place.ask(["-m", "app", "migrate"])
    if place.home is not None:
        key = place.ask(["-m", "app", "first-key"]).strip()
        write_private(place.home.secrets / "api-key", key)
    rows = "한 줄\n".encode() * 1000
    content.objects |= {
        f"{PROJECT}/datasets/ds_1/v1/줄 1.jsonl": rows,
        "mlflow/1/run/artifacts/notes.txt": b"notes",
        f"{PROJECT}/models/shop/v1.json": b"{}",
        f"{PROJECT}/jobs/{RUNNING}/{ATTEMPT}/checkpoints/step-00000009/half": b"unfinished",
    }
    checkpoint = f"{PROJECT}/jobs/{RUNNING}/{ATTEMPT}/checkpoints/step-00000005/"
    model = f"{PROJECT}/jobs/{DONE}/att_0/model/"
    weights = os.urandom(20_000_000)
    hashes = {
        "checkpoint": content.add(checkpoint, folder({"weights": b"w" * 1000, "empty": b""})),
        "model": content.add(model, folder({"weights": weights})),
        "prepared": content.add(f"{PROJECT}/prepared/{'a' * 64}/", folder({"train.arrow": b"t"})),
    }
    with connect(place.database_url, autocommit=False) as connection:
        _jobs(connection)
        connection.execute(
            "INSERT INTO datasets (id, project_id, name, version, source, location, size, sha256)"
            " VALUES ('ds_1', %s, 'rows', 1, 'upload', %s, %s, %s)",
            [
                PROJECT,
                f"{PROJECT}/datasets/ds_1/v1/줄 1.jsonl",
                len(rows),
                hashlib.sha256(rows).hexdigest(),
            ],
        )
        connection.execute(
            "INSERT INTO checkpoints (id, project_id, job_id, attempt_id, step, prefix,"
            " manifest_sha256, size) VALUES ('ckp_1', %s, %s, %s, 5, %s, %s, 1000)",
            [PROJECT, RUNNING, ATTEMPT, checkpoint, hashes["checkpoint"]],
        )
        connection.execute(
            "INSERT INTO model_versions (id, project_id, name, version, job_id, prefix,"
            " manifest_sha256, kind, base_model, size)"
            " VALUES ('mv_1', %s, 'shop', 1, %s, %s, %s, 'full', 'org/base', 1)",
            [PROJECT, DONE, model, hashes["model"]],
        )
    bucket = Bucket(place.store)
    for key, data in content.objects.items():
        bucket.write(key, [data])
    return content


def _jobs(connection: Connection) -> None:
    for job in (RUNNING, DONE, PREPARING):
        connection.execute(
            "INSERT INTO jobs (id, project_id, name, task_type, backend, target, spec, resolved,"
            " max_attempts, prepared_key)"
            " VALUES (%s, %s, 'n', 'sft', 'hf', 'local', %s, %s, 3, %s)",
            [job, PROJECT, Jsonb({}), Jsonb({}), None if job == PREPARING else "a" * 64],
        )
    for job, path in (
        (RUNNING, ("provisioning", "running")),
        (DONE, ("provisioning", "running", "finalizing", "succeeded")),
    ):
        for status in path:
            connection.execute(
                "UPDATE jobs SET status = %s, finished_at = CASE WHEN %s = 'succeeded'"
                " THEN now() END WHERE id = %s",
                [status, status, job],
            )
    connection.execute(
        "INSERT INTO workers (id, project_id, kind, hostname, pid) VALUES"
        " ('old-host', %s, 'host', 'old', 1), ('old-host.control.2', %s, 'control', 'old', 2)",
        [PROJECT, PROJECT],
    )
    connection.execute(
        "INSERT INTO attempts (id, project_id, job_id, number, target, worker_id, nonce,"
        " lease_token, lease_expires_at, claimed_at, started_at, last_step)"
        " VALUES (%s, %s, %s, 1, 'local', 'old-host', 'n', 'token', now() + interval '1 hour',"
        " now(), now(), 7)",
        [ATTEMPT, PROJECT, RUNNING],
    )
    connection.execute(
        "INSERT INTO devices (worker_id, index, project_id, kind, name, attempt_id)"
        " VALUES ('old-host', 0, %s, 'cpu', 'CPU', %s)",
        [PROJECT, ATTEMPT],
    )
    connection.execute(
        "INSERT INTO preparations (job_id, project_id, status, tries, lease_token,"
        " lease_expires_at) VALUES (%s, %s, 'running', 1, 't', now() + interval '1 hour')",
        [PREPARING, PROJECT],
    )
    connection.execute("UPDATE jobs SET last_seq = 2 WHERE id = %s", [RUNNING])
    connection.execute(
        "INSERT INTO job_events (job_id, seq, project_id, type, data)"
        " SELECT %s, seq, %s, 'log', %s FROM generate_series(1, 2) AS seq",
        [RUNNING, PROJECT, Jsonb({"message": "x"})],
    )


def empty_home(path: Path) -> Home:
    """Return a data folder that is laid and nothing else."""
    home = Home(path)
    home.lay()
    return home

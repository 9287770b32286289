"""Things in the object store for tests: artifacts of a job, and published models."""

import hashlib
import json
from dataclasses import dataclass

from sqlalchemy.orm import Session

from app.ids import new_id
from app.models import Artifact, ModelVersion
from app.registry.service import NewVersion, create_version
from app.settings import Settings
from app.storage import Store
from tests.app.server import Api
from tests.app.streams import new_job


def store_of(api: Api) -> Store:
    """Return the store that the API uses."""
    return Store(
        Settings(
            s3_endpoint=api.environment["S3_ENDPOINT"],
            s3_access_key=api.environment["S3_ACCESS_KEY"],
            s3_secret_key=api.environment["S3_SECRET_KEY"],
            s3_bucket=api.environment["S3_BUCKET"],
        )
    )


def keep(api: Api, job: str, path: str, content: bytes, kind: str = "model") -> None:
    """Give the job an artifact."""
    key = f"prj_default/jobs/{job}/att/{path}"
    store_of(api).put_bytes(key, content)
    with Session(api.engine) as session, session.begin():
        session.add(
            Artifact(
                id=new_id("art"),
                project_id="prj_default",
                job_id=job,
                kind=kind,
                path=path,
                key=key,
                size=len(content),
                sha256=hashlib.sha256(content).hexdigest(),
            )
        )


def new_version(name: str, job: str, prefix: str = "p/", manifest: bytes = b"") -> NewVersion:
    """Return a version to be created."""
    return NewVersion(
        project_id="prj_default",
        name=name,
        job_id=job,
        prefix=prefix,
        manifest_sha256=hashlib.sha256(manifest).hexdigest(),
        kind="adapter",
        base_model="org/base",
        template_hash=None,
        metrics={"eval_loss": 1.5},
        size=1000,
    )


@dataclass(frozen=True)
class Published:
    """A published version and its job."""

    version: ModelVersion
    job_id: str


def publish(api: Api, name: str, files: dict[str, bytes]) -> Published:
    """Publish a model with these files, as a finished job does."""
    store, job = store_of(api), new_job(api)
    prefix = f"prj_default/jobs/{job}/att/model/"
    entries = [
        {"path": path, "size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        for path, data in files.items()
    ]
    manifest = {"version": 1, "kind": "model", "step": 3, "files": entries, "spec_hash": "s"}
    manifest |= {"data_hash": "d", "created": "2026-11-30T10:00:00Z"}
    body = json.dumps(manifest).encode()
    for path, data in {**files, "manifest.json": body}.items():
        keep(api, job, f"model/{path}", data)
    with Session(api.engine, expire_on_commit=False) as session, session.begin():
        version = create_version(session, new_version(name, job, prefix, body))
    store.put_bytes(f"prj_default/models/{name}/v{version.version}.json", b"{}")
    return Published(version, job)

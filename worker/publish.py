"""From a finished run to a published model: upload, manifest last, one commit that decides."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from app.attempts.service import Claim, Publication, StoredFile
from app.storage import Store
from trainer_core.model_source import ADAPTER_CONFIG
from trainer_core.publish.manifest import MANIFEST
from trainer_core.spec import EvaluationTask
from worker.fetch import attempt_prefix
from worker.inputs import JobFacts
from worker.transfer import Stored
from worker.upload import patience, patiently_upload

MODEL = "model"
EVALUATION = "evaluation"
_FROM_PREPARATION = {"report.json": "report", "ledger.jsonl": "ledger"}


def upload_model(store: Store, claim: Claim, job: JobFacts, work: Path) -> Publication:
    """Upload the model folder and say what its commit makes of it; a report where there is none.

    Raises StoreUnavailable, BrokenFolder and OSError.
    """
    prefix = attempt_prefix(claim.project_id, claim.job_id, claim.attempt_id)
    if isinstance(job.spec.task, EvaluationTask):
        files = [*_prepared_files(store, prefix, work), *_evaluation_files(store, prefix, work)]
        return Publication("", "", files, "report", job.spec.model.name_or_path)
    stored = patiently_upload(store, work / MODEL, f"{prefix}{MODEL}/")
    return Publication(
        prefix=stored.prefix,
        manifest_sha256=stored.manifest_sha256,
        files=[
            *_model_files(stored, work / MODEL),
            *_prepared_files(store, prefix, work),
            *_evaluation_files(store, prefix, work),
        ],
        kind=kind_of(job, work / MODEL),
        base_model=job.spec.model.name_or_path,
        template_hash=_template_hash(work),
    )


def kind_of(job: JobFacts, folder: Path) -> str:
    """Return what the job published: full, adapter or merged.

    An adapter stays one where merging would have changed too much.
    """
    if (folder / ADAPTER_CONFIG).is_file():
        return "adapter"
    return "merged" if job.spec.adapts else "full"


def _model_files(stored: Stored, folder: Path) -> Iterator[StoredFile]:
    for entry in stored.manifest.files:
        key = stored.prefix + entry.path
        yield StoredFile(f"{MODEL}/{entry.path}", key, "model", entry.size, entry.sha256)
    size = (folder / MANIFEST).stat().st_size
    key = stored.prefix + MANIFEST
    yield StoredFile(f"{MODEL}/{MANIFEST}", key, "model", size, stored.manifest_sha256)


def _prepared_files(store: Store, prefix: str, work: Path) -> Iterator[StoredFile]:
    """Keep what the preparation said about the data with the job: prepared data go some day."""
    folder = Path(_launch(work)["paths"]["prepared"])
    for name, kind in _FROM_PREPARATION.items():
        path = folder / name
        if path.exists():
            sha256 = store.put_file(prefix + name, path, patience=patience())
            yield StoredFile(name, prefix + name, kind, path.stat().st_size, sha256)


def _evaluation_files(store: Store, prefix: str, work: Path) -> Iterator[StoredFile]:
    """The report of an evaluation, where the run made one, and the answers of the model."""
    for path in sorted((work / EVALUATION).glob("*")):
        name = f"{EVALUATION}/{path.name}"
        sha256 = store.put_file(prefix + name, path, patience=patience())
        yield StoredFile(name, prefix + name, "report", path.stat().st_size, sha256)


def _launch(work: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((work / "launch.json").read_bytes())
    return document


def _template_hash(work: Path) -> str | None:
    report = Path(_launch(work)["paths"]["prepared"]) / "report.json"
    found = json.loads(report.read_bytes()).get("template_hash")
    return str(found) if found else None


def numbers(metrics: dict[str, Any]) -> dict[str, float]:
    """Return what of the newest metrics is a number."""
    return {k: v for k, v in metrics.items() if isinstance(v, int | float)}

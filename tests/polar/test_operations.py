"""SDK and command line do all that the API does: each operation has a line here."""

import functools
import json

import pytest
import typer

from polar import Client
from polar.cli import ROWS
from polar.sdk.generate import operations
from tests.services import ROOT

API = "api"  # the command for any call
TABLE: dict[str, tuple[str, str]] = {
    "GET /api-keys": ("keys.list", "keys list"),
    "POST /api-keys": ("keys.create", "keys create"),
    "DELETE /api-keys/{key_id}": ("keys.delete", "keys revoke"),
    "GET /capabilities": ("service.capabilities", "capabilities"),
    "GET /datasets": ("datasets.list", "datasets list"),
    "POST /datasets": ("datasets.register", "datasets add"),
    "DELETE /datasets/{dataset_id}": ("datasets.delete", "datasets delete"),
    "GET /datasets/{dataset_id}": ("datasets.get", "datasets show"),
    "GET /datasets/{dataset_id}/preview": ("datasets.preview", "datasets preview"),
    "GET /events": ("events.follow", "events"),
    "GET /healthz": ("service.health", "health"),
    "GET /jobs": ("jobs.list", "list"),
    "POST /jobs": ("jobs.create", "submit"),
    "DELETE /jobs/{job_id}": ("jobs.delete", "delete"),
    "GET /jobs/{job_id}": ("jobs.get", "status"),
    "PATCH /jobs/{job_id}": ("jobs.update", "edit"),
    "GET /jobs/{job_id}/artifacts": ("jobs.artifacts", "artifacts list"),
    "GET /jobs/{job_id}/artifacts.tar": ("jobs.download_archive", "artifacts download"),
    "GET /jobs/{job_id}/artifacts/{path}": ("jobs.download", "artifacts download"),
    "POST /jobs/{job_id}/cancel": ("jobs.cancel", "cancel"),
    "GET /jobs/{job_id}/checkpoints": ("jobs.checkpoints", "checkpoints"),
    "POST /jobs/{job_id}/clone": ("jobs.clone", "clone"),
    "GET /jobs/{job_id}/events": ("jobs.events", "watch"),
    "POST /jobs/{job_id}/hub/retry": ("jobs.retry_push", "push"),
    "GET /jobs/{job_id}/logs": ("jobs.logs", "logs"),
    "GET /jobs/{job_id}/metrics": ("jobs.metrics", "metrics"),
    "POST /jobs/{job_id}/pause": ("jobs.pause", "pause"),
    "POST /jobs/{job_id}/resume": ("jobs.resume", "resume"),
    "POST /jobs/{job_id}/retry": ("jobs.retry", "retry"),
    "GET /metrics": ("service.metrics", API),
    "GET /models": ("models.list", "models list"),
    "GET /models/{name}/versions": ("models.versions", "models versions"),
    "DELETE /models/{name}/versions/{version}": ("models.delete", "models delete"),
    "GET /models/{name}/versions/{version}": ("models.get", "models show"),
    "GET /models/{name}/versions/{version}/files.tar": (
        "models.download_archive",
        "models download",
    ),
    "GET /models/{name}/versions/{version}/files/{path}": ("models.download", "models download"),
    "POST /plans": ("plans.create", "plan"),
    "POST /plans/preview": ("plans.preview", "preview"),
    "GET /plans/{plan_id}": ("plans.get", "plan"),
    "GET /readyz": ("service.ready", "health"),
    "GET /secrets": ("secrets.list", "secrets list"),
    "POST /secrets": ("secrets.create", "secrets set"),
    "DELETE /secrets/{name}": ("secrets.delete", "secrets delete"),
    "PUT /secrets/{name}": ("secrets.put", "secrets set"),
    "DELETE /session": ("service.close_session", API),
    "POST /session": ("service.open_session", API),
    "POST /stream-tickets": ("events.ticket", API),
    "GET /targets": ("targets.list", "targets"),
    "DELETE /targets/local/workers/{worker_id}/drain": ("targets.undrain", "worker drain"),
    "POST /targets/local/workers/{worker_id}/drain": ("targets.drain", "worker drain"),
    "GET /uploads": ("uploads.list", "datasets uploads"),
    "POST /uploads": ("uploads.begin", "datasets add"),
    "DELETE /uploads/{upload_id}": ("uploads.delete", "datasets forget-upload"),
    "GET /uploads/{upload_id}": ("uploads.get", "datasets add"),
    "PATCH /uploads/{upload_id}": ("uploads.send_piece", "datasets add"),
    "GET /presets": ("presets.list", "presets list"),
    "DELETE /presets/{name}": ("presets.delete", "presets delete"),
    "GET /presets/{name}": ("presets.get", "presets show"),
    "PUT /presets/{name}": ("presets.put", "presets set"),
    "GET /sweeps": ("sweeps.list", "sweeps list"),
    "POST /sweeps": ("sweeps.create", "sweeps submit"),
    "GET /sweeps/{sweep_id}": ("sweeps.get", "sweeps show"),
    "POST /sweeps/{sweep_id}/cancel": ("sweeps.cancel", "sweeps cancel"),
    "GET /sweeps/{sweep_id}/comparison": ("sweeps.comparison", "sweeps compare"),
    "GET /compare": ("sweeps.compare", "compare"),
    "GET /webhooks": ("webhooks.list", "webhooks list"),
    "POST /webhooks": ("webhooks.create", "webhooks add"),
    "DELETE /webhooks/{webhook_id}": ("webhooks.delete", "webhooks delete"),
    "GET /webhooks/{webhook_id}": ("webhooks.get", "webhooks show"),
    "PATCH /webhooks/{webhook_id}": ("webhooks.update", "webhooks edit"),
    "GET /webhooks/{webhook_id}/deliveries": ("webhooks.deliveries", "webhooks deliveries"),
    "POST /webhooks/{webhook_id}/deliveries/{delivery_id}/redeliver": (
        "webhooks.redeliver",
        "webhooks redeliver",
    ),
    "POST /webhooks/{webhook_id}/secret": ("webhooks.new_secret", "webhooks new-secret"),
    "POST /webhooks/{webhook_id}/test": ("webhooks.test", "webhooks test"),
}


@functools.cache
def commands() -> set[str]:
    found = set()
    for row in ROWS:
        command = row.load()
        inner = command.commands if isinstance(command, typer.core.TyperGroup) else {}
        found |= {f"{row.name} {name}" for name in inner} or {row.name}
    return found


def test_the_table_has_each_operation_of_the_api_once() -> None:
    document = json.loads((ROOT / "openapi" / "openapi.json").read_text(encoding="utf-8"))
    assert {f"{method} {path}" for method, path, _ in operations(document)} == set(TABLE)


@pytest.mark.parametrize("operation", TABLE)
def test_each_operation_is_a_method_and_a_command(operation: str) -> None:
    method, command = TABLE[operation]
    with Client("http://127.0.0.1:1") as client:
        assert callable(functools.reduce(getattr, method.split("."), client))
    assert command in commands()

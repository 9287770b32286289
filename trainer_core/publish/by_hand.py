"""A run without a service pushes its model to the hub itself, at its end."""

import os
from collections.abc import Mapping
from pathlib import Path

from trainer_core.launch import secret
from trainer_core.publish.hub import File, PushFailed, Repository, push
from trainer_core.publish.hub_files import goes_with_the_model
from trainer_core.publish.manifest import MANIFEST, read_manifest
from trainer_core.publish.model import FOLDER
from trainer_core.spec import HubPush, Launch
from trainer_core.words import say

_HUB = "https://huggingface.co"
_FIELD = "publish.hub.token"


def require_token(launch: Launch, secrets: Mapping[str, str]) -> None:
    """Raise InvalidSpec, before anything is trained, where the token for the hub is missing."""
    hub = launch.spec.publish.hub
    if hub is None:
        return
    secret(dict(secrets), hub.token.secret, _FIELD)
    if hub.strategy != "end":
        say("publish.hub.strategy: without a service the model is pushed at the end alone")


def push_model(launch: Launch, secrets: Mapping[str, str]) -> None:
    """Push the finished model where its spec says; whatever fails is told, and costs nothing."""
    hub = launch.spec.publish.hub
    if hub is None:
        return
    token = secret(dict(secrets), hub.token.secret, _FIELD)
    endpoint = os.environ.get("HF_ENDPOINT", _HUB).rstrip("/")
    folder = Path(launch.paths.work) / FOLDER
    to = Repository(endpoint, hub.repo_id, hub.revision, hub.private, token)
    try:
        commit = push(to, _files(folder, hub), f"{launch.job_name}: model")
    except Exception as error:  # noqa: BLE001 - the model is made, and the run has succeeded
        text = (
            error.message if isinstance(error, PushFailed) else f"{type(error).__name__}: {error}"
        )
        say(f"not pushed: {text.replace(token, '[redacted]')}; the model is in {folder}")
    else:
        say(f"pushed to {endpoint}/{hub.repo_id}, commit {commit}")


def _files(folder: Path, hub: HubPush) -> list[File]:
    manifest = read_manifest(folder)
    kept = [e for e in manifest.files if goes_with_the_model(e.path, private=hub.private)]
    shown = manifest.model_copy(update={"files": kept}).model_dump_json(indent=1).encode()
    content = folder / MANIFEST if kept == manifest.files else shown
    return [*(File(e.path, folder / e.path, e.sha256) for e in kept), File(MANIFEST, content)]

"""A run without a service pushes its model to the hub itself, at its end."""

import os
from collections.abc import Mapping
from pathlib import Path

from trainer_core.launch import secret
from trainer_core.publish.hub import File, PushFailed, Repository, push
from trainer_core.publish.manifest import MANIFEST, read_manifest
from trainer_core.publish.model import FOLDER
from trainer_core.spec import Launch
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
    """Push the finished model where its spec says; a hub that fails is told, and costs nothing."""
    hub = launch.spec.publish.hub
    if hub is None:
        return
    token = secret(dict(secrets), hub.token.secret, _FIELD)
    endpoint = os.environ.get("HF_ENDPOINT", _HUB).rstrip("/")
    folder = Path(launch.paths.work) / FOLDER
    entries = read_manifest(folder).files
    files = [File(each.path, folder / each.path, each.sha256) for each in entries]
    files.append(File(MANIFEST, folder / MANIFEST))
    to = Repository(endpoint, hub.repo_id, hub.revision, hub.private, token)
    try:
        commit = push(to, files, f"{launch.job_name}: model")
    except PushFailed as failed:
        said = failed.message.replace(token, "[redacted]")
        say(f"not pushed: {said}; the model is in {folder}")
    else:
        say(f"pushed to {endpoint}/{hub.repo_id}, commit {commit}")

"""Where models and data lie: a hub, a folder of the hosts, or the object store."""

from dataclasses import dataclass
from typing import Any

from app.xgen.mapping.draft import Draft

_KEYS = ("minio_access_key", "minio_secret_key")


@dataclass(frozen=True)
class Place:
    """What a form says of one of them."""

    method: str
    bucket: str
    name: str
    folder: str = ""


@dataclass(frozen=True)
class Found:
    """The same in the words of a spec."""

    source: str
    path: str
    token: dict[str, str] | None = None
    token_field: str = ""


def place_of(draft: Draft, wanted: Place) -> Found:
    """Return source, path and token; a name that begins with `/` is a folder of the hosts."""
    form = draft.form
    whole = "/".join(part.rstrip("/") for part in (wanted.name, wanted.folder) if part)
    if wanted.method == "minio":
        keys = _store_keys(draft)
        return Found("s3", f"s3://{wanted.bucket}/{whole.lstrip('/')}", keys, "minio_access_key")
    if wanted.name.startswith("/"):
        return Found("folder", whole)
    token = form.hugging_face_token.get_secret_value()
    named = draft.secret("hugging_face_token", token) if token else None
    return Found("hub", wanted.name, named, "hugging_face_token")


def _store_keys(draft: Draft) -> dict[str, str] | None:
    values = [getattr(draft.form, name).get_secret_value() for name in _KEYS]
    if not any(values):
        return None
    if not all(values):
        missing, given = _KEYS if not values[0] else _KEYS[::-1]
        draft.refuse(missing, f"is empty, but {given} is not: give both, or none of them")
        return None
    return draft.secret("minio_secret_key", ":".join(values))


def unused_keys(draft: Draft) -> None:
    """Say of secrets that nothing asks for that they are not kept."""
    form = draft.form
    methods = {form.model_load_method, form.dataset_load_method}
    if "minio" not in methods:
        draft.without_effect(_KEYS, "nothing is loaded from a store; it is not kept")


def source(found: Found) -> dict[str, Any]:
    """Return a source of rows."""
    described: dict[str, Any] = {"source": found.source, "path": found.path}
    return described | ({"token": found.token} if found.token is not None else {})

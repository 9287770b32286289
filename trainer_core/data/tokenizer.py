"""The model's tokenizer: loading it, and the hash that says which one it is."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainer_core.data import hub, s3
from trainer_core.data.sources import allowed_path
from trainer_core.errors import InvalidData, InvalidSpec, ModelUnavailable
from trainer_core.spec import Launch

FIELD = "model.name_or_path"
FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    "tokenizer.model",
    "vocab.json",
    "merges.txt",
    "vocab.txt",
    "config.json",
)


def load_tokenizer(launch: Launch, secrets: Mapping[str, str], cache: Path) -> Any:
    """Load the tokenizer of the launch's model; `cache` takes files fetched from an S3 store.

    Raises ModelUnavailable, naming the model, where it does not exist or cannot be reached.
    """
    model = launch.spec.model
    token = hub.token_of(model.token, "model.token", secrets)
    options: dict[str, Any] = {"trust_remote_code": False, "token": token}
    where = model_folder(launch, cache)
    if where is None:
        options["revision"] = model.revision or "main"
    if model.subfolder:
        options["subfolder"] = model.subfolder
    return _load(str(where or model.name_or_path), model.name_or_path, options)


def model_folder(launch: Launch, cache: Path) -> Path | None:
    """The local folder with the tokenizer's files; None for a model of the hub.

    Raises InvalidSpec for a folder that may not be read, ModelUnavailable for one that is not
    there.
    """
    model = launch.spec.model
    if launch.paths.model is not None:
        return _folder(Path(launch.paths.model), model.name_or_path)
    if model.source == "hub":
        return None
    if model.source == "folder":
        return _allowed_model(model.name_or_path, launch.paths.model_folders)
    if model.source == "s3":
        return _from_s3(model.name_or_path, cache)
    raise InvalidSpec(
        f"model.source is '{model.source}', which only the service can fetch: submit a job, or "
        "use 'hub', 'folder' or 's3' here",
        "model.source",
    )


def _allowed_model(path: str, folders: list[str] | None) -> Path:
    try:
        return _folder(allowed_path(path, folders, "model"), path)
    except InvalidSpec as error:
        raise InvalidSpec(error.message.replace("model.path", FIELD), FIELD) from error
    except InvalidData as error:
        raise _not_there(path) from error


def _folder(folder: Path, name: str) -> Path:
    if not folder.is_dir():
        raise _not_there(name)
    return folder


def _not_there(name: str) -> ModelUnavailable:
    return ModelUnavailable(f"{FIELD} is '{name}', but there is no such folder", FIELD)


def _from_s3(uri: str, cache: Path) -> Path:
    folder = s3.fetch_named(uri, FIELD, cache / "tokenizer", FILES)
    if folder is None:
        raise ModelUnavailable(f"{FIELD} is '{uri}', but there is no model", FIELD)
    return folder


def _load(where: str, name: str, options: dict[str, Any]) -> Any:
    import httpx  # noqa: PLC0415
    from huggingface_hub import errors
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(where, **options)
    except errors.GatedRepoError as error:
        raise ModelUnavailable(
            f"{FIELD} is '{name}', a gated model: accept its terms on the hub and give a token in "
            "model.token",
            FIELD,
        ) from error
    except (OSError, ValueError, KeyError, ImportError, httpx.HTTPError) as error:
        raise ModelUnavailable(_why(name, where, options, error), FIELD) from error


def _why(name: str, where: str, options: Mapping[str, Any], error: Exception) -> str:
    reason = " ".join(str(error).split())[:300]
    if "revision" not in options:
        return f"{FIELD} is '{name}', but '{where}' holds no tokenizer that can be loaded: {reason}"
    chain = {type(e).__name__ for e in _causes(error)}
    if chain & {"RepositoryNotFoundError", "RevisionNotFoundError", "HFValidationError"}:
        revision = options["revision"]
        return (
            f"{FIELD} is '{name}' (revision {revision}), but the hub has no such model: check the "
            "name; if it is private, give a token in model.token"
        )
    return f"{FIELD} is '{name}', but its tokenizer cannot be fetched from the hub: {reason}"


def _causes(error: BaseException | None) -> list[BaseException]:
    found = []
    while error is not None:
        found.append(error)
        error = error.__cause__ or error.__context__
    return found


def tokenizer_hash(tokenizer: Any) -> str:
    """sha256 over what decides which tokens a text becomes, and the chat template."""
    backend = json.loads(tokenizer.backend_tokenizer.to_str())
    parts = {
        # Truncation and padding are the state of the last call, not of the tokenizer.
        "backend": {k: v for k, v in backend.items() if k not in ("truncation", "padding")},
        "special": dict(tokenizer.special_tokens_map),
        "template": tokenizer.chat_template,
    }
    canonical = json.dumps(parts, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(canonical.encode("utf-8", "surrogatepass")).hexdigest()


def folder_hash(folder: Path) -> str:
    """sha256 over the tokenizer's files of a model folder, without loading them."""
    digest = hashlib.sha256()
    for name in FILES:
        path = folder / name
        if path.is_file():
            content = path.read_bytes()
            digest.update(f"{name}:{len(content)}:".encode() + content)
    return digest.hexdigest()

"""The key of prepared data: a hash over everything that changes the result."""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainer_core.data import hub, s3
from trainer_core.data.mixture import weights_of
from trainer_core.data.sink import split_seed
from trainer_core.data.sources import Source, sources_of
from trainer_core.data.stream import rows_of
from trainer_core.data.tokenizer import folder_hash
from trainer_core.publish.manifest import canonical_hash, sha256_file
from trainer_core.spec import Launch, SplitRatio
from trainer_core.task import evaluated

# Raised with every change that makes other tokens or labels of the same rows.
VERSION = 3
_BEGINNING = 1 << 20  # bytes
_CHOOSES_ROWS = ("format", "columns", "num_samples", "fraction", "seed")


def content_key(
    launch: Launch, tokenizer_dir: Path | None = None, secrets: Mapping[str, str] | None = None
) -> str:
    """sha256 over what decides the prepared rows: sources, task, policies, tokenizer, seed.

    `tokenizer_dir` is the model's local folder; without one the model's commit on the hub stands
    for it. Loads no tokenizer. Raises InvalidSpec, InvalidData, DataUnavailable or
    ModelUnavailable where a source or the model is not there.
    """
    spec = evaluated(launch.spec)
    secrets = secrets or {}
    sources = sources_of(launch, secrets, Path())
    validation = spec.data.validation
    split = validation.split_ratio if isinstance(validation, SplitRatio) else None
    parts = {
        "version": VERSION,
        "task": spec.task.model_dump(mode="json", exclude=set(spec.task.without_effect_on_rows)),
        "policies": spec.data.model_dump(mode="json", exclude={"train", "validation"}),
        "sources": {
            source.key: _source(source, launch, secrets)
            for part in sources.values()
            for source in part
        },
        "split": split,
        "seed": split_seed(spec) if split else None,
        "weights": weights_of(spec),
        "stream": rows_of(spec) if spec.data.streaming else None,
        "max_samples": spec.evaluation.max_samples,
        "tokenizer": _tokenizer(launch, tokenizer_dir, secrets),
    }
    if spec.model.new_tokens:
        parts["new_tokens"] = [spec.model.add_tokens, spec.model.add_special_tokens]
    return canonical_hash(parts)


def _source(source: Source, launch: Launch, secrets: Mapping[str, str]) -> dict[str, Any]:
    described = source.spec.model_dump(mode="json", include=set(_CHOOSES_ROWS))
    return described | {"content": _content(source, launch, secrets)}


def _content(source: Source, launch: Launch, secrets: Mapping[str, str]) -> list[Any]:
    spec, field = source.spec, source.field
    if (lent := launch.lent.get(source.key)) is not None:
        return [[each.name, each.version] for each in lent.objects]
    fetched = source.key in launch.paths.data
    if spec.source == "s3" and not fetched:
        return s3.etags(spec.path, field)
    root = source.local()
    if root is None:
        sha = hub.dataset_commit(spec, field, secrets)
        return [spec.path, sha, spec.subset, spec.split]
    # Names count: they decide how a file is read, and in which order.
    base = root if root.is_dir() else root.parent
    known = _beginning if launch.spec.data.streaming else sha256_file
    return [[path.relative_to(base).as_posix(), known(path)] for path in source.files()]


def _beginning(path: Path) -> list[Any]:
    """What tells a file from others without reading all of it, which a stream is not to do."""
    found = path.stat()
    with path.open("rb") as file:
        first = hashlib.sha256(file.read(_BEGINNING)).hexdigest()
    return [found.st_size, found.st_mtime_ns, first]


def _tokenizer(launch: Launch, folder: Path | None, secrets: Mapping[str, str]) -> str:
    model = launch.spec.model
    if folder is not None:
        return folder_hash(folder / (model.subfolder or ""))
    revision = hub.model_commit(model, secrets) if model.source == "hub" else model.revision
    return canonical_hash([model.source, model.name_or_path, model.subfolder, revision])

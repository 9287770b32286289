"""Data sets of the Hugging Face hub."""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

from trainer_core.data.rows import Place, Row
from trainer_core.errors import DataUnavailable, InvalidData, InvalidSpec, ModelUnavailable
from trainer_core.hub_client import be_patient
from trainer_core.launch import secret
from trainer_core.spec import DataSource, ModelRef, SecretRef

_COMMIT = re.compile(r"[0-9a-f]{40}")
# Readers of rows; others unpack archives, run decoders of files within files, or follow links.
_READERS = ("arrow", "csv", "json", "parquet", "text")


def read_dataset(
    source: DataSource, field: str, secrets: Mapping[str, str], *, streams: bool = False
) -> Iterator[Row]:
    """Rows of a data set, split `train` where none is named, read from the hub's local cache.

    With `streams` they come from the hub as they are asked for, and no file is fetched whole.
    Raises InvalidData where it does not exist or may not be read, DataUnavailable where the hub
    cannot be reached.
    """
    name, split = source.path, source.split or "train"
    token = token_of(source.token, f"{field}.token", secrets)
    with _explained(source, field):
        dataset = _load(source, split, field, token, streams=streams)
        rows = as_stored(dataset)
        for number in count(1):
            values = next(rows, None)
            if values is None:
                return
            yield Row(Place(field, f"{name} ({split})", number, "row"), values)


def as_stored(dataset: Any) -> Iterator[dict[str, Any]]:
    """Rows with images as the files that they are, and labels that are numbers by their names."""
    from datasets import ClassLabel, Image, List

    labels = {}
    for column, feature in (dataset.features or {}).items():  # a stream's may be unknown
        if isinstance(feature, Image):
            dataset = dataset.cast_column(column, Image(decode=False))
        elif isinstance(feature, List) and isinstance(feature.feature, Image):
            dataset = dataset.cast_column(column, List(Image(decode=False)))
        elif isinstance(feature, ClassLabel) and feature.names:
            labels[column] = feature.names
    for values in dataset:
        named = {column: _named(values[column], names) for column, names in labels.items()}
        yield values | named


def _named(label: Any, names: Sequence[str]) -> Any:
    """The name of a label that is a number; −1 means that a row has none."""
    if not isinstance(label, int):
        return label
    return names[label] if 0 <= label < len(names) else None


def token_of(token: SecretRef | None, field: str, secrets: Mapping[str, str]) -> str | None:
    """The value of a token by its secret's name; raises InvalidSpec where there is none."""
    return None if token is None else secret(dict(secrets), token.secret, field)


def dataset_commit(source: DataSource, field: str, secrets: Mapping[str, str]) -> str:
    """The commit that a data set's revision means now; raises as `read_dataset` does."""
    import httpx  # noqa: PLC0415
    from huggingface_hub.errors import (
        HFValidationError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    token = token_of(source.token, f"{field}.token", secrets)
    try:
        return _commit("dataset", source.path, source.revision, token)
    except (RepositoryNotFoundError, RevisionNotFoundError, HFValidationError) as error:
        raise _not_there(source, field) from error
    except (OSError, httpx.HTTPError) as error:
        raise _not_reached(source, field, error) from error


def model_commit(model: ModelRef, secrets: Mapping[str, str]) -> str:
    """The commit that a model's revision means now; raises ModelUnavailable."""
    import httpx  # noqa: PLC0415
    from huggingface_hub.errors import HFValidationError

    token = token_of(model.token, "model.token", secrets)
    try:
        return _commit("model", model.name_or_path, model.revision, token)
    except (OSError, HFValidationError, httpx.HTTPError) as error:
        raise ModelUnavailable(
            f"the hub does not tell the revision of '{model.name_or_path}' ({_first_line(error)}): "
            "check the name and model.revision; for a private model set model.token",
            "model.name_or_path",
        ) from error


def _commit(kind: str, repository: str, revision: str | None, token: str | None) -> str:
    """The commit of a revision. A commit is asked for, too: whoever may not read gets none.

    Only a hub that is not there is not needed for a commit that is named.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.errors import OfflineModeIsEnabled

    be_patient()
    api = HfApi(token=token)
    try:
        info = api.repo_info(repository, repo_type=kind, revision=revision, timeout=30)
    except OfflineModeIsEnabled:
        if revision is None or not _COMMIT.fullmatch(revision):
            raise
        return revision
    return str(info.sha)


def _load(source: DataSource, split: str, field: str, token: str | None, *, streams: bool) -> Any:
    import datasets

    be_patient()
    _check_name(source.path, field)
    datasets.disable_progress_bars()
    builder = datasets.load_dataset_builder(
        source.path, source.subset, revision=source.revision, token=token
    )
    _check_files(builder, source.path, field)
    if streams:
        return builder.as_streaming_dataset(split=split)
    builder.download_and_prepare()
    return builder.as_dataset(split=split)


@contextmanager
def _explained(source: DataSource, field: str) -> Iterator[None]:
    """Errors of the libraries in the words of whoever gave the source."""
    import datasets
    import httpx  # noqa: PLC0415
    from datasets.data_files import EmptyDatasetError
    from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled

    try:
        yield
    except datasets.exceptions.DatasetNotFoundError as error:
        raise _not_there(source, field) from error
    except (ValueError, datasets.exceptions.DatasetsError, EmptyDatasetError) as error:
        raise InvalidData(f"{field}: '{source.path}': {_first_line(error)}", field) from error
    except (OSError, HfHubHTTPError, OfflineModeIsEnabled, httpx.HTTPError) as error:
        raise _not_reached(source, field, error) from error


def _check_name(name: str, field: str) -> None:
    """Refuse what `datasets` would take for something of this machine, or for another service."""
    from datasets.packaged_modules import _PACKAGED_DATASETS_MODULES
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    if Path(name).exists():
        # `datasets` would read the local folder, which nobody has allowed.
        raise InvalidSpec(
            f"{field}.path is '{name}', which is also a local path: use source 'folder' "
            "for local files, or the full repository id of the hub",
            f"{field}.path",
        )
    try:
        validate_repo_id(name)
        named = name not in _PACKAGED_DATASETS_MODULES and not name.startswith("buckets/")
    except HFValidationError:
        named = False
    if not named:
        raise InvalidSpec(
            f"{field}.path is '{name}', which is no repository id of the hub: give one such as "
            "'org/name'",
            f"{field}.path",
        )


def _check_files(builder: Any, name: str, field: str) -> None:
    """Refuse files outside of the hub, which a data set may list, and readers that do more."""
    modules = {f"datasets.packaged_modules.{reader}.{reader}" for reader in _READERS}
    if modules.isdisjoint(cls.__module__ for cls in type(builder).__mro__):
        kind = type(builder).__name__
        raise InvalidData(
            f"{field}: '{name}' holds no text in a format that is read here ({kind}): it needs "
            "JSONL, JSON, CSV, Parquet, Arrow or text files",
            field,
        )
    files = [str(file) for split in (builder.config.data_files or {}).values() for file in split]
    outside = next((f for f in files if "::" in f or not f.startswith("hf://datasets/")), None)
    if outside is not None:
        raise InvalidData(
            f"{field}: '{name}' lists the file '{outside[:200]}', which is not on the hub: such a "
            "data set is not read; upload the file instead",
            field,
        )


def _not_there(source: DataSource, field: str) -> InvalidData:
    revision = f" with revision '{source.revision}'" if source.revision else ""
    return InvalidData(
        f"{field}: the hub has no data set '{source.path}'{revision} that you may read: check the "
        f"name; if it is private or gated, give {field}.token",
        f"{field}.path",
    )


def _not_reached(source: DataSource, field: str, error: Exception) -> DataUnavailable:
    return DataUnavailable(
        f"{field}: the hub cannot be reached for data set '{source.path}' "
        f"({_first_line(error)}): try again, or give the data as a file",
        f"{field}.path",
    )


def _first_line(error: BaseException) -> str:
    if str(error).startswith("An error occurred while generating") and error.__cause__:
        error = error.__cause__
    return (str(error).splitlines() or [type(error).__name__])[0][:300]

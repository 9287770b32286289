"""Data sets of the Hugging Face hub."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from trainer_core.data.rows import Place, Row
from trainer_core.errors import DataUnavailable, InvalidData, InvalidSpec, ModelUnavailable
from trainer_core.launch import secret
from trainer_core.spec import DataSource, ModelRef, SecretRef

_COMMIT = re.compile(r"[0-9a-f]{40}")


def read_dataset(source: DataSource, field: str, secrets: Mapping[str, str]) -> Iterator[Row]:
    """Rows of a data set, split `train` where none is named, read from the hub's local cache.

    Raises InvalidData where it does not exist or may not be read, DataUnavailable where the hub
    cannot be reached.
    """
    name, split = source.path, source.split or "train"
    dataset = _load(source, split, field, token_of(source.token, f"{field}.token", secrets))
    for number, values in enumerate(dataset, 1):
        yield Row(Place(field, f"{name} ({split})", number, "row"), values)


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
    from huggingface_hub import HfApi

    if revision is not None and _COMMIT.fullmatch(revision):
        return revision
    info = HfApi(token=token).repo_info(repository, repo_type=kind, revision=revision, timeout=30)
    return str(info.sha)


def _load(source: DataSource, split: str, field: str, token: str | None) -> Any:
    import datasets
    import httpx  # noqa: PLC0415
    from datasets.data_files import EmptyDatasetError
    from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled

    if Path(source.path).exists():
        # `datasets` would read the local folder, which nobody has allowed.
        raise InvalidSpec(
            f"{field}.path is '{source.path}', which is also a local path: use source 'folder' "
            "for local files, or the full repository id of the hub",
            f"{field}.path",
        )
    datasets.disable_progress_bars()
    try:
        return datasets.load_dataset(
            source.path, source.subset, split=split, revision=source.revision, token=token
        )
    except datasets.exceptions.DatasetNotFoundError as error:
        raise _not_there(source, field) from error
    except (ValueError, datasets.exceptions.DatasetsError, EmptyDatasetError) as error:
        raise InvalidData(f"{field}: '{source.path}': {_first_line(error)}", field) from error
    except (OSError, HfHubHTTPError, OfflineModeIsEnabled, httpx.HTTPError) as error:
        raise _not_reached(source, field, error) from error


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


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:300]

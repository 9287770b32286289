"""Data sets of the Hugging Face hub."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from trainer_core.data.rows import Place, Row
from trainer_core.errors import DataUnavailable, InvalidData, InvalidSpec
from trainer_core.launch import secret
from trainer_core.spec import DataSource, SecretRef

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


def commit(kind: str, repository: str, revision: str | None, token: str | None) -> str:
    """The commit that a revision of a `model` or `dataset` means now; needs no network for one.

    Raises huggingface_hub's and httpx's errors.
    """
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
        raise InvalidData(
            f"{field}: the hub has no data set '{source.path}'"
            f"{f' with revision {source.revision!r}' if source.revision else ''} that you may "
            f"read: check the name; if it is private or gated, give {field}.token",
            f"{field}.path",
        ) from error
    except (ValueError, datasets.exceptions.DatasetsError, EmptyDatasetError) as error:
        raise InvalidData(f"{field}: '{source.path}': {_first_line(error)}", field) from error
    except (OSError, HfHubHTTPError, OfflineModeIsEnabled, httpx.HTTPError) as error:
        raise DataUnavailable(
            f"{field}: the hub cannot be reached for data set '{source.path}' "
            f"({_first_line(error)}): try again, or give the data as a file",
            f"{field}.path",
        ) from error


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:300]

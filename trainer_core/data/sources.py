"""Sources: from a DataSource to its rows, whatever it is and wherever it lives."""

import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from itertools import islice
from pathlib import Path

from trainer_core.data import hub, s3
from trainer_core.data.lent import lent_files, read_lent
from trainer_core.data.local import Wish, files_of_rows, is_read, read_local
from trainer_core.data.readers import File
from trainer_core.data.rows import Row
from trainer_core.data.trees import FolderTree
from trainer_core.errors import InvalidData, InvalidSpec
from trainer_core.spec import DataSource, Launch
from trainer_core.task import evaluated, task_of


class Source:
    """One source of a launch: `key` is `train/0` as in `paths.data`, `field` its place in the spec.

    `fetch` brings what is elsewhere to `cache`; afterwards `rows` may be read several times.
    """

    def __init__(
        self, launch: Launch, key: str, spec: DataSource, secrets: Mapping[str, str], cache: Path
    ) -> None:
        block, _, number = key.partition("/")
        self.key = key
        self.spec = spec
        self.field = f"data.{block}[{number}]"
        self._launch = launch
        self._secrets = secrets
        self._cache = cache / key
        self._local: Path | None = None
        images = task_of(evaluated(launch.spec)).FACTS.model.sees_images
        self._wish = Wish(images=images, part=block)
        self._streams = launch.spec.data.streaming
        self._count: int | None = None

    def rows(self) -> Iterator[Row]:
        """The rows that are taken, in order; raises InvalidData or DataUnavailable.

        Without `seed` they are the first. To draw some, or to take a share, all are counted first.
        """
        spec = self.spec
        if spec.fraction is None and spec.seed is None:
            return islice(self._all_rows(), spec.num_samples)
        return self._some()

    def _some(self) -> Iterator[Row]:
        if self._count is None:
            self._count = sum(1 for _ in self._all_rows())
        spec, count = self.spec, self._count
        wanted = spec.num_samples
        if wanted is None:
            wanted = max(1, round(count * (spec.fraction or 1.0)))
        if spec.seed is None or wanted >= count:
            yield from islice(self._all_rows(), wanted)
            return
        drawn = set(random.Random(spec.seed).sample(range(count), wanted))  # noqa: S311 - no secret
        yield from (row for number, row in enumerate(self._all_rows()) if number in drawn)

    def _all_rows(self) -> Iterator[Row]:
        lent = self._launch.lent.get(self.key)
        if lent is not None:
            work = Path(self._launch.paths.work)
            yield from read_lent(lent, self.key, (self.spec, self.field), work, self._wish)
        elif self._comes_from_the_store():
            yield from s3.read(self.spec.path, self.field, self._wish)
        elif (root := self.local()) is not None:
            yield from read_local(root, self.field, root.name, self._wish)
        else:
            streams = self._streams
            yield from hub.read_dataset(self.spec, self.field, self._secrets, streams=streams)

    def _comes_from_the_store(self) -> bool:
        """Whether an object is read where it lies: as far as rows are asked for."""
        fetched = self.key in self._launch.paths.data
        return self._streams and self.spec.source == "s3" and not fetched

    def local(self) -> Path | None:
        """The local file or folder of the source; None for a data set that the hub serves.

        Raises InvalidSpec for a path that is not allowed or needs the service.
        """
        if self._local is None:
            self._local = self._find()
        return self._local

    def _find(self) -> Path | None:
        fetched = self._launch.paths.data.get(self.key)
        if fetched is not None:
            return Path(fetched)
        if self.spec.source == "hub":
            return None
        if self.spec.source == "folder":
            return allowed_path(self.spec.path, self._launch.paths.data_folders, self.field)
        if self.spec.source == "s3":
            return s3.fetch(self.spec.path, self.field, self._cache, images=self._wish.images)
        raise InvalidSpec(
            f"{self.field}.source is '{self.spec.source}', which only the service can fetch: "
            "submit a job, or use 'folder', 's3' or 'hub' here",
            f"{self.field}.source",
        )

    @contextmanager
    def looked_into(self) -> Iterator[list[File]]:
        """The files that hold its rows, to see how many; none where the hub serves them, or where
        images are its rows. Nothing is fetched but what is looked at."""
        lent = self._launch.lent.get(self.key)
        if lent is not None:
            place, work = (self.spec, self.field), Path(self._launch.paths.work)
            with lent_files(lent, self.key, place, work, self._wish) as files:
                yield files
        elif self.spec.source == "s3" and self.key not in self._launch.paths.data:
            yield s3.files(self.spec.path, self.field, self._wish)
        elif (root := self.local()) is None:
            yield []
        elif root.is_dir():
            yield files_of_rows(FolderTree(root, self.field), self._wish)
        else:
            yield [File(self.field, root)]

    def files(self) -> list[Path]:
        """The local files whose content decides the rows, sorted."""
        root = self.local()
        if root is None or not root.is_dir():
            return [] if root is None else [root]
        names = FolderTree(root, self.field).names(partial(is_read, images=self._wish.images))
        return [root / name for name in names]


def source_fields(launch: Launch) -> Iterator[tuple[str, DataSource]]:
    """Every source of the spec with its key in `paths.data`, training first."""
    data = launch.spec.data
    yield from ((f"train/{i}", source) for i, source in enumerate(data.train))
    if isinstance(data.validation, list):
        yield from ((f"validation/{i}", source) for i, source in enumerate(data.validation))


def sources_of(launch: Launch, secrets: Mapping[str, str], cache: Path) -> dict[str, list[Source]]:
    """The sources of `train` and, where the spec lists some, of `validation`."""
    parts: dict[str, list[Source]] = {}
    for key, spec in source_fields(launch):
        source = Source(launch, key, spec, secrets, cache)
        parts.setdefault(key.partition("/")[0], []).append(source)
    return parts


def allowed_path(path: str, folders: list[str] | None, field: str) -> Path:
    """Resolve a `folder` source; raises InvalidSpec unless it lies below an allowed folder.

    With `folders` None any path may be read: it is a user's own shell. Else a path that climbs
    out, by `..` or by a link, gets the same answer whether it exists or not.
    """
    if folders is None:
        return _existing(Path(path).expanduser(), path, field)
    outside = InvalidSpec(
        f"{field}.path is '{path}', which is not below a folder that may be read "
        f"({', '.join(folders) or 'none is allowed'}): put the data there, or upload it",
        f"{field}.path",
    )
    if ".." in Path(path).parts or "\0" in path:
        raise outside
    roots = [Path(folder).resolve() for folder in folders]
    try:
        inside = [c for root in roots if (c := (root / path).resolve()).is_relative_to(root)]
    except (OSError, RuntimeError):  # a name too long, a link to itself
        raise outside from None
    if not inside:
        raise outside
    found = next((candidate for candidate in inside if _is_data(candidate)), inside[0])
    return _existing(found, path, field)


def _existing(found: Path, path: str, field: str) -> Path:
    if not _is_data(found):
        raise InvalidData(
            f"{field}.path is '{path}', but there is no such file or folder that can be read",
            f"{field}.path",
        )
    return found


def _is_data(path: Path) -> bool:
    """Whether it is a file or folder: reading a pipe or a device might never end."""
    try:
        return path.is_file() or path.is_dir()
    except (OSError, ValueError):
        return False

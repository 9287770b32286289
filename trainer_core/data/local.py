"""Rows of what lies on this machine: a file, a folder, or a zip archive, images among them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest
from pathlib import Path, PurePosixPath

from trainer_core.data.readers import File, is_data_file, read_file
from trainer_core.data.rows import Place, Row
from trainer_core.data.trees import Beside, FolderTree, Tree, ZipTree, is_image, is_zip
from trainer_core.errors import InvalidData

_KINDS = ".jsonl, .json, .csv or .parquet file"
_COLUMNS = {"file_name": "image", "file_names": "images"}
_PARTS = {
    "train": ("train", "training"),
    "validation": ("validation", "valid", "val", "dev", "test"),
}
"""What folders are called whose images are for training, and for validation; the first wins."""


@dataclass(frozen=True)
class Wish:
    """What is looked for: with `images` also those without a file of rows.

    `part` is `train` or `validation`: a root of that name is taken where there is one (None: all).
    """

    images: bool = False
    part: str | None = "train"


def read_local(root: Path, field: str, name: str, wish: Wish) -> Iterator[Row]:
    """Rows of a file, folder or archive in order; raises InvalidData and InvalidSpec.

    Where files of rows are, these alone are read; images beside them are what rows name.
    Else each image is a row with the name of its folder as its label.
    """
    tree = tree_of(root, field, name)
    if tree is None:
        yield from read_file(File(field, root, name))
        return
    what = f"folder '{name}'" if root.is_dir() else f"archive '{name}'"
    yield from read_tree(tree, what, wish)


def read_tree(tree: Tree, what: str, wish: Wish) -> Iterator[Row]:
    """Rows of the files of a tree, as `read_local`; `what` is what it is called in errors."""
    names = _read_names(tree, wish)
    files = [inside for inside in names if is_data_file(Path(inside))]
    for inside in files:
        yield from _named_files(read_file(File.of(tree, inside)), inside)
    images = [] if files or not wish.images else [inside for inside in names if is_image(inside)]
    if not files and not images:
        nor = ", and no image" if wish.images else ""
        raise InvalidData(f"{tree.field}: the {what} holds no {_KINDS}{nor}", f"{tree.field}.path")
    yield from _labelled_by_folder(tree, images)


def files_of_rows(tree: Tree, wish: Wish) -> list[File]:
    """The files of a tree whose rows `read_tree` gives; none where images are its rows."""
    names = _read_names(tree, wish)
    return [File.of(tree, name) for name in names if is_data_file(Path(name))]


def _read_names(tree: Tree, wish: Wish) -> Sequence[str]:
    return _of_part(tree.names(partial(is_read, images=wish.images)), wish)


def tree_of(root: Path, field: str, name: str) -> Tree | None:
    """The folder or archive that a path is; None for a file of rows."""
    if root.is_dir():
        return FolderTree(root, field)
    return ZipTree(root, root.stat().st_size, field, name) if is_zip(root.open("rb")) else None


def is_read(name: str, *, images: bool) -> bool:
    """Whether a file of a folder is read, by its extension."""
    return is_data_file(Path(name)) or (images and is_image(name))


def _named_files(rows: Iterator[Row], name: str) -> Iterator[Row]:
    """The rows; in `metadata.csv` or `.jsonl` the column of images has a name of its own."""
    if PurePosixPath(name).name.partition(".")[0] != "metadata":
        yield from rows
        return
    for row in rows:
        values = {_COLUMNS.get(column, column): value for column, value in row.values.items()}
        yield Row(row.place, values, row.problem)


def _labelled_by_folder(tree: Tree, images: Sequence[str]) -> Iterator[Row]:
    """One image of each folder in turn, so that the first rows hold every label."""
    folders: dict[str, list[str]] = {}
    for name in images:
        folders.setdefault(PurePosixPath(name).parent.as_posix(), []).append(name)
    beside = Beside(tree, PurePosixPath())
    turns = (name for turn in zip_longest(*folders.values()) for name in turn if name is not None)
    for number, name in enumerate(turns, 1):
        label = PurePosixPath(name).parent.name
        values = {"image": name} | ({"label": label} if label else {})
        yield Row(Place(tree.field, name, number, "as image", beside), values)


def _of_part(names: Sequence[str], wish: Wish) -> Sequence[str]:
    """The names below the root of the wished part, where the tree has such roots."""
    if not wish.images or wish.part is None:
        return names
    around = _common_folder(names)
    roots = {name.removeprefix(around).partition("/")[0].lower() for name in names}
    if not roots <= {root for known in _PARTS.values() for root in known}:
        return names
    mine = next((root for root in _PARTS[wish.part] if root in roots), None)
    if mine is None:
        return names
    return [n for n in names if n.removeprefix(around).partition("/")[0].lower() == mine]


def _common_folder(names: Sequence[str]) -> str:
    """The folder that holds everything, as archives often have one; empty where none does."""
    first = {name.partition("/")[0] for name in names}
    one = next(iter(first)) if len(first) == 1 else ""
    known = {root for part in _PARTS.values() for root in part}
    inside = all("/" in name for name in names)
    return f"{one}/" if one and inside and one.lower() not in known else ""

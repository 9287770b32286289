"""Does a back-up hold what its database refers to? Decided by sizes, hashes and manifests."""

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Literal

from pydantic import BaseModel

from polar.backup.manifest import Defect, Entry

FOLDER_MANIFEST = "manifest.json"
LONGEST_MANIFEST = 64 * 2**20


class Reference(BaseModel):
    """What a row refers to, as `python -m app.backups references` prints it."""

    kind: Literal["project", "file", "folder"]
    key: str
    size: int | None = None
    sha256: str | None = None
    needed: bool = True


def manifests_of(references: Iterable[Reference]) -> set[str]:
    """Return the keys of the manifests that must be read to check the references."""
    return {each.key + FOLDER_MANIFEST for each in references if each.kind == "folder"}


def find_defects(
    references: Iterable[Reference], copied: Mapping[str, Entry], manifests: Mapping[str, bytes]
) -> list[Defect]:
    """Return what is referred to and was not copied as it should be.

    `copied` are the objects by their key, `manifests` the contents of `manifests_of`.
    """
    found: dict[str, Defect] = {}
    for reference in references:
        for key, problem in _problems(reference, copied, manifests):
            earlier = found.get(key)
            needed = reference.needed or (earlier is not None and earlier.needed)
            found[key] = Defect(key=key, problem=problem, needed=needed)
    return list(found.values())


def _problems(
    reference: Reference, copied: Mapping[str, Entry], manifests: Mapping[str, bytes]
) -> Iterator[tuple[str, str]]:
    if reference.kind == "file":
        yield from _differs(reference.key, reference.size, reference.sha256, copied)
    elif reference.kind == "folder":
        key = reference.key + FOLDER_MANIFEST
        wrong = list(_differs(key, None, reference.sha256, copied))
        yield from wrong
        if not wrong:
            for each in json.loads(manifests[key])["files"]:
                place = reference.key + each["path"]
                yield from _differs(place, each["size"], each["sha256"], copied)


def _differs(
    key: str, size: int | None, sha256: str | None, copied: Mapping[str, Entry]
) -> Iterator[tuple[str, str]]:
    entry = copied.get(key)
    if entry is None:
        yield key, "is not in the store"
    elif size is not None and entry.size != size:
        yield key, f"has {entry.size} bytes, {size} were stored"
    elif sha256 is not None and entry.sha256 != sha256:
        yield key, "is damaged: its sha256 is not the one that was stored"

"""Checking a downloaded model against its manifest."""

import hashlib
import json
from pathlib import Path


class Mismatch(Exception):
    """A file is missing or is not what the manifest says."""


def verify(folder: Path) -> int:
    """Compare size and sha256 of every file that `manifest.json` lists; return how many there are.

    Raises Mismatch for the first that differs.
    """
    listed = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))["files"]
    for entry in listed:
        file = folder / entry["path"]
        if not file.exists():
            raise Mismatch(f"{entry['path']} is in the manifest and was not published")
        with file.open("rb") as content:
            found = hashlib.file_digest(content, "sha256").hexdigest()
        if file.stat().st_size != entry["size"] or found != entry["sha256"]:
            raise Mismatch(f"{entry['path']} differs from the manifest")
    return len(listed)

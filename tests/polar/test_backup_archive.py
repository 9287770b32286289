"""A back-up on disk: whole or absent, private, and any damage is found and named."""

import hashlib
import io
import json
import tarfile
from collections.abc import Callable
from datetime import UTC, datetime
from itertools import accumulate, pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polar.backup import seal
from polar.backup.archive import Archive, Draft, Measured, drafted
from polar.backup.errors import BackupFailed, Damaged
from polar.backup.manifest import Defect, Entry, Manifest, Versions
from polar.backup.references import Reference, find_defects
from polar.backup.restore import alone, check, refuse_other_versions, restore
from polar.stack.home import Home

FILES = {
    "polar.dump": b"d" * 3_000_000,
    "objects/00000001": b"",
    "objects/00000002": b"\x00\xff" * 700,
    "models/한글 모델/config.json": b"{}",
}


def manifest(draft: Draft | None = None, **changes: object) -> Manifest:
    versions = Versions(polar="0.1.0", postgres=180006, tables="0002", mlflow="3.17.2")
    values = {
        "taken_at": datetime.now(UTC),
        "versions": versions,
        "bucket": "polar",
        "next_transaction": 800,
        "files": draft.files if draft else [],
        **changes,
    }
    return Manifest.model_validate(values)


def quiet(what: str, count: int, size: int) -> None:
    del what, count, size


def write(target: Path) -> Path:
    with drafted(target) as draft:
        for name, content in FILES.items():
            key = f"prj/{name}" if name.startswith("objects") else None
            draft.add(name, len(content), [content[:1000], content[1000:]], key)
        draft.finish(manifest(draft))
    return target


@pytest.fixture(params=["백업 폴더", "백업 파일.tar"])
def backup(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return write(tmp_path / "새 폴더" / request.param)


def test_what_is_read_is_what_was_written(backup: Path) -> None:
    archive = Archive(backup)
    check(archive, quiet)
    read = {entry.file: b"".join(archive.read(entry)) for entry in archive.manifest.files}
    assert read == FILES
    hashes = {entry.file: entry.sha256 for entry in archive.manifest.files}
    assert hashes == {name: hashlib.sha256(content).hexdigest() for name, content in FILES.items()}


def test_only_its_owner_can_read_it_and_nothing_else_is_left(backup: Path) -> None:
    files = [backup] if backup.is_file() else [p for p in backup.rglob("*") if p.is_file()]
    assert {oct(path.stat().st_mode & 0o777) for path in files} == {"0o600"}
    assert backup.is_file() or backup.stat().st_mode & 0o777 == 0o700
    assert list(backup.parent.iterdir()) == [backup]


@pytest.mark.parametrize("name", ["b", "b.tar"])
def test_one_that_breaks_off_leaves_nothing(tmp_path: Path, name: str) -> None:
    def break_off() -> None:
        with drafted(tmp_path / name) as draft:
            draft.add_bytes("polar.dump", b"x")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        break_off()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["b", "b.tar"])
@pytest.mark.parametrize("size", [1, 4], ids=["longer", "shorter"])
def test_an_object_that_changes_meanwhile_fails_it(tmp_path: Path, name: str, size: int) -> None:
    with pytest.raises(BackupFailed, match="prj/k changed"), drafted(tmp_path / name) as draft:
        draft.add("objects/1", size, [b"ab", b"c"], "prj/k")
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_overwritten(backup: Path) -> None:
    with pytest.raises(BackupFailed, match="exists already"), drafted(backup):
        pass
    check(Archive(backup), quiet)


def rewrite(backup: Path, change: Callable[[dict[str, bytes]], None]) -> None:
    """Change the files of a back-up as a bad disk or a person would."""
    if backup.is_dir():
        found = {
            p.relative_to(backup).as_posix(): p.read_bytes()
            for p in backup.rglob("*")
            if p.is_file()
        }
        before = set(found)
        change(found)
        for name in before:
            (backup / name).unlink()
        for name, content in found.items():
            (backup / name).write_bytes(content)
        return
    with tarfile.open(backup) as tar:
        found = {each.name: _content(tar, each) for each in tar if each.isfile()}
    change(found)
    with tarfile.open(backup, "w") as tar:
        for name, content in found.items():
            header = tarfile.TarInfo(name)
            header.size = len(content)
            tar.addfile(header, io.BytesIO(content))


def _content(tar: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    file = tar.extractfile(member)
    assert file is not None
    return file.read()


def flipped(data: bytes, place: int) -> bytes:
    return data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            lambda f: f.update({"objects/00000002": flipped(f["objects/00000002"], 1399)}),
            r"objects/00000002 \(prj/objects/00000002\) is damaged: its sha256",
        ),
        (lambda f: f.update({"polar.dump": f["polar.dump"][:-1]}), "polar.dump has 2999999 bytes"),
        (lambda f: f.pop("models/한글 모델/config.json"), "config.json is missing"),
        (
            lambda f: f.update({"manifest.json": f["manifest.json"].replace(b"0002", b"0003", 1)}),
            "manifest.json of .* is damaged",
        ),
        (lambda f: f.pop("manifest.json"), "no whole back-up"),
        (lambda f: f.pop("manifest.sha256"), "no whole back-up"),
    ],
    ids=["one bit", "cut", "missing", "manifest", "no manifest", "no seal"],
)
def test_damage_is_found_and_named(
    backup: Path, change: Callable[[dict[str, bytes]], None], said: str
) -> None:
    rewrite(backup, change)
    with pytest.raises(Damaged, match=said):
        check(Archive(backup), quiet)


def test_a_file_that_was_cut_off_is_no_backup(tmp_path: Path) -> None:
    whole = write(tmp_path / "b.tar")
    content = whole.read_bytes()
    for length in (0, 700, len(content) // 2, content.rindex(b"manifest.sha256") - 512):
        whole.write_bytes(content[:length])
        with pytest.raises(Damaged):
            check(Archive(whole), quiet)


def test_b33_a_backup_that_leads_out_of_the_folder_is_refused(tmp_path: Path) -> None:
    with drafted(tmp_path / "b") as draft:
        draft.files.append(Entry(file="models/../../evil", size=1, sha256="0" * 64))
        draft.finish(manifest(draft))
    home = Home(tmp_path / "home")
    with (
        pytest.raises(BackupFailed, match="leads out of the folder"),
        alone(home, tmp_path / "b"),
    ):
        restore(Archive(tmp_path / "b"), home, None, quiet)
    assert not home.path.exists()


@pytest.mark.parametrize(
    ("theirs", "refused"), [("0.1.9", False), ("0.2.0", True), ("1.1.0", True)]
)
def test_other_major_versions_are_refused(theirs: str, *, refused: bool) -> None:
    """Before 1.0 the second number is the major one; ours is 0.1."""
    found = manifest(versions=Versions(polar=theirs, postgres=180006, tables="0002"))
    if refused:
        with pytest.raises(BackupFailed, match=f"taken by version {theirs}, this is 0.1"):
            refuse_other_versions(found)
    else:
        refuse_other_versions(found)


def test_secrets_are_sealed_with_a_passphrase(tmp_path: Path) -> None:
    values = {"key": "비밀 key", "s3": "{}"}
    sealed = seal.seal(values, "correct horse battery")
    assert "비밀".encode() not in sealed
    assert seal.seal(values, "correct horse battery") != sealed  # a salt of its own each time
    assert seal.unseal(sealed, "correct horse battery") == values
    with pytest.raises(BackupFailed, match="were sealed with"):
        seal.unseal(sealed, "correct horse batterY")
    (tmp_path / "short").write_text("too short\n")
    with pytest.raises(BackupFailed, match="9 characters; at least 12"):
        seal.read_passphrase(tmp_path / "short")


def test_names_of_secrets_stay_in_their_folder(tmp_path: Path) -> None:
    with pytest.raises(BackupFailed, match="no name of a secret"):
        seal.lay({"../evil": "x"}, tmp_path / "secrets")
    seal.lay({"key": "x"}, tmp_path / "secrets")
    assert (tmp_path / "secrets" / "key").stat().st_mode & 0o777 == 0o600
    assert seal.collect(tmp_path / "secrets") == {"key": "x"}


def test_what_the_database_refers_to_is_compared_with_what_was_copied() -> None:
    def entry(key: str, content: bytes) -> Entry:
        return Entry(
            file="f", size=len(content), sha256=hashlib.sha256(content).hexdigest(), key=key
        )

    listed = {"path": "w", "size": 1, "sha256": hashlib.sha256(b"w").hexdigest()}
    lost = {**listed, "path": "lost"}
    folder = json.dumps({"files": [listed, lost]})
    copied = {
        e.key or "": e
        for e in (
            entry("p/a/manifest.json", folder.encode()),
            entry("p/a/w", b"w"),
            entry("p/short", b"1"),
            entry("p/bad", b"2"),
        )
    }
    references = [
        Reference(kind="project", key="p"),
        Reference(kind="folder", key="p/a/", sha256=hashlib.sha256(folder.encode()).hexdigest()),
        Reference(kind="folder", key="p/none/", needed=False),
        Reference(kind="file", key="p/short", size=2),
        Reference(kind="file", key="p/bad", size=1, sha256="0" * 64),
        Reference(kind="file", key="p/bad", size=1, sha256="0" * 64, needed=False),
    ]
    found = find_defects(references, copied, {"p/a/manifest.json": folder.encode()})
    assert sorted(found, key=lambda each: each.key) == [
        Defect(key="p/a/lost", problem="is not in the store", needed=True),
        Defect(
            key="p/bad",
            problem="is damaged: its sha256 is not the one that was stored",
            needed=True,
        ),
        Defect(key="p/none/manifest.json", problem="is not in the store", needed=False),
        Defect(key="p/short", problem="has 1 bytes, 2 were stored", needed=True),
    ]


@given(st.lists(st.binary(max_size=9)), st.lists(st.integers(0, 12), max_size=9))
def test_blocks_read_as_a_file_are_the_same_bytes(blocks: list[bytes], sizes: list[int]) -> None:
    measured = Measured(iter(blocks))
    parts = [measured.read(size) for size in sizes]
    parts.append(measured.read())
    assert b"".join(parts) == b"".join(blocks)
    reached = [min(end, len(b"".join(blocks))) for end in accumulate(sizes, initial=0)]
    assert [len(part) for part in parts[:-1]] == [b - a for a, b in pairwise(reached)]
    assert measured.exhausted
    assert measured.sha256 == hashlib.sha256(b"".join(blocks)).hexdigest()
    assert measured.size == len(b"".join(blocks))

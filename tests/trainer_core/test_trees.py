"""Folders and zip archives: what they hold by name, and that nothing leads out or blows up."""

import struct
import zipfile
from pathlib import Path

import pytest

from tests.trainer_core.small_images import write_folder, write_zip
from trainer_core.data import trees
from trainer_core.data.local import Wish, read_local
from trainer_core.data.rows import BadRow, Row
from trainer_core.errors import InvalidData, InvalidSpec

IMAGES = Wish(images=True)


def rows(path: Path, wish: Wish = IMAGES) -> list[Row]:
    return list(read_local(path, "data.train[0]", path.name, wish))


def told(path: Path, wish: Wish = IMAGES) -> str:
    with pytest.raises(InvalidData) as wrong:
        rows(path, wish)
    return wrong.value.message


def packed(path: Path, *files: tuple[str | zipfile.ZipInfo, bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files:
            archive.writestr(name, data)
    return path


@pytest.mark.parametrize("around", ["", "내 그림/"])
def test_a_folder_and_an_archive_of_it_give_the_same_rows(tmp_path: Path, around: str) -> None:
    """One image of each label in turn; the archive may hold everything in a folder."""
    folder = rows(write_folder(tmp_path / "f", 7))
    archive = rows(write_zip(tmp_path / "a.zip", 7, around=around))
    labels = [row.values["label"] for row in folder]
    assert labels == ["cat", "dog", "고래"] * 2 + ["cat"]
    assert [row.values["label"] for row in archive] == labels
    read = [r.place.beside.read(r.values["image"], "image") for r in folder if r.place.beside]
    also = [r.place.beside.read(r.values["image"], "image") for r in archive if r.place.beside]
    assert read == also
    assert str(folder[0].place) == "cat/그림 000.png as image 1"


def test_metadata_beside_images_names_them(tmp_path: Path) -> None:
    """`file_name` is counted from the folder of the file that says it."""
    write_folder(tmp_path / "f/all", 3)
    text = "file_name,label\ncat/그림 000.png,고양이\n"
    (tmp_path / "f/all/metadata.csv").write_text(text, encoding="utf-8")
    [row] = rows(tmp_path / "f")
    assert row.values == {"image": "cat/그림 000.png", "label": "고양이"}
    assert row.place.beside is not None
    assert row.place.beside.read("cat/그림 000.png", "image").startswith(b"\x89PNG")


def test_roots_for_training_and_validation(tmp_path: Path) -> None:
    """Each source takes the root that is called after it; a class may be called `train`."""
    write_folder(tmp_path / "f/train", 6)
    write_folder(tmp_path / "f/val", 3, seed=1)
    write_folder(tmp_path / "f/test", 9, seed=2)
    assert len(rows(tmp_path / "f")) == 6
    assert len(rows(tmp_path / "f", Wish(images=True, part="validation"))) == 3
    assert len(rows(tmp_path / "f", Wish(images=True, part=None))) == 18
    write_folder(tmp_path / "f", 3)  # now there are other labels beside them
    assert {row.values["label"] for row in rows(tmp_path / "f")} >= {"cat", "train"} - {"train"}


def test_rows_of_texts_in_an_archive(tmp_path: Path) -> None:
    """For every task: JSONL, CSV and Parquet are read in place."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"text": ["셋"]}), tmp_path / "c.parquet")
    path = packed(
        tmp_path / "a.zip",
        ("a.jsonl", '{"text": "하나"}\n'.encode()),
        ("sub/b.csv", "text\n둘\n".encode()),
        ("sub/c.parquet", (tmp_path / "c.parquet").read_bytes()),
        ("__MACOSX/._a.jsonl", b"rubbish"),
        (".hidden/x.jsonl", b"rubbish"),
    )
    found = rows(path, Wish())
    assert [row.values for row in found] == [{"text": "하나"}, {"text": "둘"}, {"text": "셋"}]
    assert str(found[1].place) == "sub/b.csv line 2"


def test_names_in_utf8_that_do_not_say_so(tmp_path: Path) -> None:
    """As macOS packs them: bytes of UTF-8 without the flag of it."""
    path = write_zip(tmp_path / "a.zip", 3, labels=["고래"])
    content = bytearray(path.read_bytes())
    for signature, at in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        start = 0
        while (start := content.find(signature, start)) >= 0:
            flags = struct.unpack_from("<H", content, start + at)[0]
            struct.pack_into("<H", content, start + at, flags & ~0x800)
            start += 4
    path.write_bytes(content)
    assert {row.values["label"] for row in rows(path)} == {"고래"}
    beside = rows(path)[0].place.beside
    assert beside is not None
    assert beside.read("고래/그림 000.png", "image")


def test_b33_names_that_lead_out_of_an_archive(tmp_path: Path) -> None:
    for name in ("../a.jsonl", "a/../../b.png", "/etc/a.png", "a\\..\\b.png", "C:/a.png"):
        info = zipfile.ZipInfo("x")
        info.filename = info.orig_filename = name  # as it is, also with a backslash
        path = packed(tmp_path / "a.zip", (info, b"x"))
        assert "a name that leads out of it" in told(path), name


def test_b33_links_in_an_archive(tmp_path: Path) -> None:
    info = zipfile.ZipInfo("cat/a.png")
    info.external_attr = 0o120777 << 16
    assert "a link or something else" in told(packed(tmp_path / "a.zip", (info, b"/etc/passwd")))


def test_b33_rows_cannot_name_files_elsewhere(tmp_path: Path) -> None:
    """Neither by climbing, nor by a link, nor by an address; from a folder or an archive."""
    (tmp_path / "secret.png").write_bytes(b"secret")
    folder = tmp_path / "f"
    folder.mkdir()
    (folder / "rows.jsonl").write_text('{"image": "a", "label": "b"}\n')
    [row] = rows(folder)
    assert row.place.beside is not None
    for name in ("../secret.png", "/etc/passwd", "a/../../secret.png", "..\\secret.png"):
        with pytest.raises(BadRow, match="leads out of the source"):
            row.place.beside.read(name, "image")
    (folder / "link.png").symlink_to(tmp_path / "secret.png")
    with pytest.raises(BadRow, match="no such file"):
        row.place.beside.read("link.png", "image")
    with pytest.raises(InvalidSpec, match="a link that leads out of the folder"):
        rows(folder)


def test_rows_name_images_alone_that_count_for_the_key(tmp_path: Path) -> None:
    """A changed file that is no part of the content's key would leave old rows in use."""
    folder = write_folder(tmp_path / "f", 1)
    (folder / "rows.jsonl").write_text('{"image": "a", "label": "b"}\n')
    [row] = rows(folder)
    assert row.place.beside is not None
    content = (folder / "cat/그림 000.png").read_bytes()
    (folder / ".cache").mkdir()
    for name in ("a.jfif", "0001", ".a.png", ".cache/a.png"):
        (folder / name).write_bytes(content)
        with pytest.raises(BadRow, match=f"`image` names '{name}', which is not read"):
            row.place.beside.read(name, "image")
    (folder / "A.JPG").write_bytes(content)
    assert row.place.beside.read("A.JPG", "image") == content


def test_links_that_nobody_reads_may_lead_out(tmp_path: Path) -> None:
    """A log beside the rows, and what is hidden; an image where only texts are read."""
    folder = tmp_path / "f"
    folder.mkdir()
    (folder / "train.jsonl").write_text('{"text": "a"}\n')
    (tmp_path / "elsewhere").write_text("x")
    for name in ("latest.log", ".hidden.jsonl", "link.png"):
        (folder / name).symlink_to(tmp_path / "elsewhere")
    assert [row.values for row in rows(folder, Wish())] == [{"text": "a"}]
    with pytest.raises(InvalidSpec, match=r"holds 'link.png', a link that leads out"):
        rows(folder)


def test_b33_archives_that_are_packed_beyond_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trees, "HARMLESS", 1 << 20)
    path = packed(tmp_path / "a.zip", ("a.jsonl", b"0" * (8 << 20)))
    assert path.stat().st_size < 20_000
    assert "unpacks to more than 200 times its size" in told(path)
    monkeypatch.setattr(trees, "_MOST_ENTRIES", 2)
    many = packed(tmp_path / "b.zip", *((f"{i}.jsonl", b"{}") for i in range(3)))
    assert "more than 2 files" in told(many)


def test_archives_that_cannot_be_read(tmp_path: Path) -> None:
    path = write_zip(tmp_path / "a.zip", 3)
    whole = path.read_bytes()
    path.write_bytes(whole[:-30])
    assert "is no whole zip archive" in told(path)
    with pytest.warns(UserWarning, match="Duplicate name"):
        twice = packed(tmp_path / "b.zip", ("a/b.png", b"1"), ("a/b.png", b"2"))
    assert "holds 'a/b.png' twice" in told(twice)
    secret = bytearray(packed(tmp_path / "c.zip", ("a.jsonl", b"{}")).read_bytes())
    struct.pack_into("<H", secret, secret.find(b"PK\x01\x02") + 8, 1)
    (tmp_path / "c.zip").write_bytes(secret)
    assert "is encrypted" in told(tmp_path / "c.zip")
    assert "no image" in told(packed(tmp_path / "d.zip", ("a.txt", b"x")))
    assert "no image" not in told(packed(tmp_path / "d.zip", ("a.png", b"x")), Wish())


def test_damaged_members(tmp_path: Path) -> None:
    """A table of rows refuses the source, an image is one bad row."""
    path = packed(tmp_path / "a.zip", ("a.jsonl", b'{"text": "hello"}\n' * 50))
    content = bytearray(path.read_bytes())
    content[40:44] = b"\xff\xff\xff\xff"
    path.write_bytes(content)
    assert "a.jsonl is a damaged file of its archive" in told(path, Wish())
    path = write_zip(tmp_path / "b.zip", 1)
    content = bytearray(path.read_bytes())
    content[200] ^= 0xFF
    path.write_bytes(content)
    [row] = rows(path)
    assert row.place.beside is not None
    with pytest.raises(BadRow, match=r"'cat/그림 000.png' cannot be read"):
        row.place.beside.read(row.values["image"], "image")

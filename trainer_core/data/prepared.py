"""Opening a prepared-data folder: Arrow files, mapped into memory, and what is known of them."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainer_core.data.report import PreparedReport, read_report
from trainer_core.errors import InvalidData


@dataclass(frozen=True)
class Prepared:
    """Prepared rows as `datasets.Dataset`, the report of the preparation, and their folder."""

    folder: Path
    train: Any
    validation: Any | None
    report: PreparedReport

    @property
    def columns(self) -> list[str]:
        """The columns of a row, such as `input_ids` and `labels`; they differ by task."""
        return list(self.train.column_names)

    @property
    def data_hash(self) -> str:
        """Identifies what is trained on."""
        return self.report.data_hash


def open_prepared(folder: Path, validation_rows: int | None = None) -> Prepared:
    """Open a prepared folder; `validation_rows` takes only its first rows.

    Raises InvalidData for a folder that was never finished or holds no row.
    """
    report = read_report(folder)
    if report is None:
        raise InvalidData(f"{folder} is not whole: prepare the data again")
    train = _dataset(folder / "train.arrow", f"{report.data_hash[:16]}-train")
    if not len(train):
        raise InvalidData("there is no row to train on", "data.train")
    validation = None
    if (folder / "validation.arrow").is_file():
        validation = _dataset(folder / "validation.arrow", f"{report.data_hash[:16]}-validation")
        validation = first_rows(validation, validation_rows)
    return Prepared(folder, train, validation if validation else None, report)


def first_rows(rows: Any, most: int | None) -> Any:
    """The first `most` rows, None: all."""
    return rows if most is None else rows.select(range(min(most, len(rows))))


def _dataset(path: Path, fingerprint: str) -> Any:
    import pyarrow as pa
    from datasets import Dataset

    try:
        table = pa.ipc.open_file(pa.memory_map(str(path))).read_all()
    except (OSError, pa.ArrowInvalid) as error:
        raise InvalidData(f"{path} cannot be read: {error}; prepare it again") from error
    # A fingerprint of our own: computing one would hash every token at each start.
    return Dataset(_wrap(table), fingerprint=fingerprint)


def _wrap(table: Any) -> Any:
    from datasets.table import InMemoryTable

    return InMemoryTable(table)

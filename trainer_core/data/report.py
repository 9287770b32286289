"""What preparation says about its result, and the folder that holds it."""

from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from trainer_core.publish.manifest import BrokenFolder, read_manifest

REPORT = "report.json"
LEDGER = "ledger.jsonl"
TOKENIZER = "tokenizer"
"""Where a tokenizer lies that was trained for these rows."""


class SourceRows(BaseModel):
    """What came of one source; rows are samples."""

    prepared: int = Field(description="Rows that were read and can be used.")
    trained: int = Field(
        0,
        description="How many of them are trained on: fewer where some are held out, more where "
        "a mixture lets them come again.",
    )


class PreparedReport(BaseModel):
    """Counts are of samples unless they say otherwise; lengths are tokens."""

    model_config = ConfigDict(extra="ignore")

    rows_in: int = Field(description="Rows read from all sources.")
    rows_kept: int = Field(description="Samples for training and validation.")
    rows_dropped: int = 0
    rows_cut: int = 0
    samples_spread: float = Field(
        1.0, description="Of samples that a read row became: standard deviation by mean."
    )
    tokens_spread: float = Field(1.0, description="The same of their tokens.")
    train_rows: int = Field(0, description="Rows of train.arrow; with packing fewer than samples.")
    train_samples: int = 0
    validation_rows: int = 0
    validation_samples: int = 0
    trained_tokens: int = Field(description="Tokens of train.arrow that carry loss.")
    total_tokens: int = Field(description="Tokens of train.arrow.")
    longest: int = 0
    histogram: dict[str, int] = Field(
        default_factory=dict, description="Upper bound of the length → training samples."
    )
    length_p50: int | None = Field(
        None, description="Half of the training samples are at most as long; None: not counted."
    )
    length_p95: int | None = None
    formats: dict[str, str] = Field(default_factory=dict, description="Source → its row format.")
    sources: dict[str, SourceRows] = Field(
        default_factory=dict, description="Source → its rows, such as `train/0`."
    )
    max_length: int = 0
    packed: bool = False
    template_hash: str = Field("", description="Empty for tasks without a chat template.")
    tokenizer_hash: str = ""
    data_hash: str = Field(description="sha256 over the token rows that are trained on.")
    validation_hash: str | None = None
    facts: dict[str, Any] = Field(
        default_factory=dict, description="What the run must know of all rows, such as `labels`."
    )
    example: dict[str, Any] = Field(
        default_factory=dict,
        description="The first training row as rendered `text`, and its `trained` parts.",
    )
    warnings: list[dict[str, str]] = Field(default_factory=list)


def read_report(folder: Path) -> PreparedReport | None:
    """The report of a whole prepared folder; None where there is none, or it is not whole.

    Sizes are compared with the manifest, contents are not: use manifest.verify for that.
    """
    try:
        manifest = read_manifest(folder)
        for entry in manifest.files:
            if (folder / entry.path).stat().st_size != entry.size:
                return None
        return PreparedReport.model_validate_json((folder / REPORT).read_bytes())
    except (BrokenFolder, OSError, ValidationError):
        return None

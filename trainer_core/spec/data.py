"""`data`: sources of rows, and what happens to rows that do not fit."""

from typing import Literal

from pydantic import Field

from trainer_core.spec.base import MOST, Revision, SecretRef, Strict

DataFormat = Literal[
    "auto",
    "messages",
    "sharegpt",
    "alpaca",
    "query_response",
    "prompt_completion",
    "segments",
    "text",
    "classification",
    "labelled_images",
    "image_messages",
    "image_prompt_completion",
    "preference",
    "prompt",
    "unpaired_preference",
    "judged_messages",
    "anchor_positive",
    "sentence_pair",
]


class DataSource(Strict):
    """One source of rows."""

    source: Literal["hub", "s3", "upload", "folder", "dataset"]
    path: str = Field(
        min_length=1,
        max_length=1024,
        description="hub: repository id; s3: `s3://bucket/key`; upload and dataset: data set id; "
        "folder: a file or folder below an allowed folder.",
    )
    subset: str | None = Field(None, max_length=256)
    split: str | None = Field(None, max_length=256)
    revision: Revision | None = Field(
        None, description="hub: commit, tag or branch; dataset: version."
    )
    format: DataFormat = "auto"
    columns: dict[str, str] = Field(
        default_factory=dict,
        description="Our column name → the source's, such as `{'prompt': 'question'}`.",
    )
    num_samples: int | None = Field(None, ge=1, le=MOST, description="Take only the first N rows.")
    token: SecretRef | None = None


class SplitRatio(Strict):
    """Hold out a share of the training rows."""

    split_ratio: float = Field(gt=0, lt=1)


class Data(Strict):
    """What is trained and validated on, and what happens to rows that do not fit."""

    train: list[DataSource] = Field(min_length=1, max_length=64)
    validation: list[DataSource] | SplitRatio | None = None
    over_length: Literal["error", "truncate_right", "truncate_left", "drop", "split"] = Field(
        "error", description="`split` lets a plain document go on in further rows (task clm)."
    )
    on_bad_row: Literal["error", "drop"] = "error"
    max_bad_ratio: float = Field(
        0.05, ge=0, le=1, description="With `on_bad_row: drop`: the largest share dropped."
    )

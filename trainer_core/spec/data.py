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
    "openai_preference",
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
    weight: float | None = Field(
        None,
        gt=0,
        le=MOST,
        description="Share of the mixture of training sources, measured against the weights of the "
        "others; 1 where only others name one. Without any, sources follow each other whole.",
    )
    num_samples: int | None = Field(None, ge=1, le=MOST, description="Take only N rows.")
    fraction: float | None = Field(None, gt=0, le=1, description="Take only this share of rows.")
    seed: int | None = Field(
        None,
        ge=0,
        le=2**32 - 1,
        description="Which rows `num_samples` or `fraction` takes: drawn by it. Default: the "
        "first ones.",
    )
    token: SecretRef | None = None


class SplitRatio(Strict):
    """Hold out a share of the training rows."""

    split_ratio: float = Field(gt=0, lt=1)


class Data(Strict):
    """What is trained and validated on, and what happens to rows that do not fit."""

    train: list[DataSource] = Field(min_length=1, max_length=64)
    validation: list[DataSource] | SplitRatio | None = None
    stopping_strategy: Literal["first_exhausted", "all_exhausted"] = Field(
        "first_exhausted",
        description="Where a mixture by `weight` ends; words of datasets.interleave_datasets. "
        "`first_exhausted`: with the first source that has no more rows, so that none comes twice. "
        "`all_exhausted`: when every row has come; rows of smaller sources come again.",
    )
    streaming: bool = Field(
        False,
        description="Read and prepare only as many training rows as `training.max_steps` takes, "
        "and nothing behind them (tasks clm and sft).",
    )
    over_length: Literal["error", "truncate_right", "truncate_left", "drop", "split"] = Field(
        "error",
        description="`split` lets a plain document go on in further rows (tasks clm and mlm). "
        "Texts that are joined and cut into full rows are never too long.",
    )
    on_bad_row: Literal["error", "drop"] = "error"
    max_bad_ratio: float = Field(
        0.05, ge=0, le=1, description="With `on_bad_row: drop`: the largest share dropped."
    )

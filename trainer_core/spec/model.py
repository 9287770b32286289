"""`model`: what a run starts from."""

from pathlib import PurePosixPath
from typing import Annotated, Literal

from pydantic import Field, StringConstraints, field_validator

from trainer_core.spec.base import Revision, SecretRef, Strict

NewToken = Annotated[str, StringConstraints(min_length=1, max_length=256)]


class ModelRef(Strict):
    """The model to start from."""

    source: Literal["hub", "folder", "s3", "registry", "job"] = "hub"
    name_or_path: str = Field(
        min_length=1,
        max_length=1024,
        description="hub: repository id; folder: an allowed folder; s3: `s3://bucket/prefix`; "
        "registry: name of a published model; job: id of a job.",
    )
    revision: Revision | None = Field(
        None, description="hub: commit, tag or branch; registry: version."
    )
    subfolder: str | None = Field(None, max_length=256)
    dtype: Literal["auto", "bf16", "fp16", "fp32"] = "auto"
    attn_implementation: Literal["auto", "eager", "sdpa", "flash_attention_2"] = "auto"
    add_tokens: list[NewToken] = Field(
        default_factory=list,
        max_length=10_000,
        description="New ordinary tokens; the embeddings grow, are trained and published whole.",
    )
    add_special_tokens: list[NewToken] = Field(
        default_factory=list,
        max_length=10_000,
        description="New tokens that texts are never split inside of, such as `<tool>`.",
    )
    token: SecretRef | None = None

    @field_validator("subfolder")
    @classmethod
    def _stays_inside(cls, subfolder: str | None) -> str | None:
        path = PurePosixPath(subfolder or "")
        if path.is_absolute() or ".." in path.parts:
            raise ValueError(f"{subfolder!r} leads out of the model: name a folder inside of it")
        return subfolder

    @property
    def new_tokens(self) -> list[str]:
        """Every token that the tokenizer gets beside its own."""
        return [*self.add_tokens, *self.add_special_tokens]

    @field_validator("add_tokens", "add_special_tokens")
    @classmethod
    def _are_named_once(cls, tokens: list[str]) -> list[str]:
        twice = next((token for token in tokens if tokens.count(token) > 1), None)
        if twice is not None:
            raise ValueError(f"{twice!r} stands there twice: name each token once")
        return tokens

"""`publish.hub`: a repository of a hub that the model is pushed to."""

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from trainer_core.spec.base import Revision, SecretRef, Strict

_LONGEST_NAME = 96  # the hub's own limit
_PART = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]*[A-Za-z0-9_])?")
_COMMIT = re.compile(r"[0-9a-f]{40}")


def is_repo_id(text: str) -> bool:
    """Whether a hub takes this as `owner/name`."""
    owner, slash, name = text.partition("/")
    return (
        bool(slash)
        and max(len(owner), len(name)) <= _LONGEST_NAME
        and all(_PART.fullmatch(part) for part in (owner, name))
        and not any(odd in text for odd in ("--", ".."))
        and not text.endswith(".git")
    )


def _is_a_repository(given: str) -> str:
    if not is_repo_id(given):
        raise ValueError(
            f"{given!r} is no repository of a hub: write owner/name, each at most"
            f" {_LONGEST_NAME} letters, digits, '-', '_' and '.', with neither '--' nor '..', no"
            " '-' or '.' at an end, and no '.git'"
        )
    return given


def _can_be_written_to(given: str) -> str:
    if _COMMIT.fullmatch(given):
        raise ValueError(f"{given!r} is a commit, which never changes: name a branch")
    return given


RepoId = Annotated[str, AfterValidator(_is_a_repository)]
Branch = Annotated[Revision, AfterValidator(_can_be_written_to)]


class HubPush(Strict):
    """A repository of a hub that the service pushes the model to; the job does not wait for it."""

    repo_id: RepoId = Field(description="`owner/name`; made where it is missing.")
    private: bool = Field(
        True,
        description="A repository that is made is private, and a public one is refused. False: one "
        "that is made is public, and one that is there is taken as it is; `run_lock.json`, which "
        "holds the whole spec, is not pushed then.",
    )
    revision: Branch = Field("main", description="Branch; made from `main` where it is missing.")
    strategy: Literal["end", "checkpoint", "every_save"] = Field(
        "end",
        description="As Transformers' `hub_strategy`. `end`: the published model; `every_save`: "
        "also the weights of each checkpoint, as the newest commit; `checkpoint`: those, and the "
        "whole newest checkpoint in `last-checkpoint/`, without rows of the validation data.",
    )
    token: SecretRef = Field(description="A secret of the project that may write there.")

"""Exit codes, last words and our own errors → the reason that decides what follows."""

import errno
import json
from pathlib import Path

import pytest

from app.jobs.lifecycle import FailureReason as Reason
from app.storage import ChecksumMismatch, ObjectMissing, StoreUnavailable
from trainer_core.errors import InvalidSpec, ModelUnavailable
from worker.endings import Said, ending_of, ending_of_error, last_words
from worker.process import Exit
from worker.redact import Redactor
from worker.target import NoCapacity, ProvisioningFailed


@pytest.mark.parametrize(
    ("code", "reason", "outcome"),
    [
        (64, Reason.INVALID_SPEC, "failed"),
        (70, Reason.TRAINER_ERROR, "failed"),
        (71, Reason.OUT_OF_MEMORY, "failed"),
        (72, Reason.DIVERGED, "failed"),
        (73, Reason.DISK_FULL, "failed"),
        (75, Reason.INTERRUPTED, "interrupted"),
        (1, Reason.TRAINER_ERROR, "failed"),
        (-11, Reason.TRAINER_ERROR, "failed"),
        (-15, Reason.INTERRUPTED, "interrupted"),
        (143, Reason.INTERRUPTED, "interrupted"),
        (-9, Reason.KILLED, "failed"),
        (137, Reason.KILLED, "failed"),
        (0, Reason.INTERNAL, "failed"),
        (None, Reason.INTERNAL, "failed"),
    ],
)
def test_b11_a_silent_end_is_judged_by_its_code(
    code: int | None, reason: Reason, outcome: str
) -> None:
    ending = ending_of(Exit(code), None, oom_killed=False)
    assert ending is not None
    assert (ending.reason, ending.outcome, ending.exit_code) == (reason, outcome, code)


def test_a_kill_for_memory_is_told_from_any_other() -> None:
    ending = ending_of(Exit(-9), None, oom_killed=True)
    assert ending is not None
    assert ending.reason is Reason.OUT_OF_MEMORY


def test_a_rank_that_was_killed_for_memory_is_told_from_any_other() -> None:
    """The trainer says itself that one of its processes was killed, and does not know why."""
    said = Said("killed", "rank 1 of 2 processes was killed by SIGKILL")
    ending = ending_of(Exit(70), said, oom_killed=True)
    assert ending is not None
    assert ending.reason is Reason.OUT_OF_MEMORY
    ending = ending_of(Exit(70), said, oom_killed=False)
    assert ending is not None
    assert (ending.reason, ending.message) == (Reason.KILLED, said.message)


def test_what_the_trainer_says_counts_more_than_its_code() -> None:
    said = Said("data_unavailable", "the hub does not answer")
    ending = ending_of(Exit(64), said, oom_killed=False)
    assert ending is not None
    assert (ending.reason, ending.message) == (Reason.DATA_UNAVAILABLE, "the hub does not answer")


def test_success_needs_the_word_and_the_code() -> None:
    assert ending_of(Exit(0), Said(None, ""), oom_killed=False) is None
    killed_after_the_word = ending_of(Exit(-9), Said(None, ""), oom_killed=False)
    assert killed_after_the_word is not None
    assert killed_after_the_word.reason is Reason.KILLED


def test_last_words_are_the_result_event_or_else_the_exit_file(tmp_path: Path) -> None:
    assert last_words(tmp_path, None, Redactor([])) is None
    (tmp_path / "exit.json").write_text(json.dumps({"code": 64, "reason": "x", "message": "m"}))
    assert last_words(tmp_path, None, Redactor([])) == Said("x", "m")
    result = {"status": "failed", "reason": "diverged", "message": "NaN", "step": 3}
    assert last_words(tmp_path, result, Redactor([])) == Said("diverged", "NaN")
    (tmp_path / "exit.json").write_text("{")
    assert last_words(tmp_path, None, Redactor([])) is None


def test_b31_the_exit_file_is_redacted_and_cut(tmp_path: Path) -> None:
    document = {"reason": "x", "message": f"token hf_0123456789 {'x' * 10_000}"}
    (tmp_path / "exit.json").write_text(json.dumps(document))
    said = last_words(tmp_path, None, Redactor(["hf_0123456789"]))
    assert said is not None
    assert said.message.startswith("token [redacted] x")
    assert len(said.message) == 8_192  # as long as a text of an event may be


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (StoreUnavailable("away"), Reason.STORE_UNAVAILABLE),
        (ObjectMissing("k"), Reason.DATA_UNAVAILABLE),
        (ChecksumMismatch("k"), Reason.DATA_UNAVAILABLE),
        (InvalidSpec("no", "f"), Reason.INVALID_SPEC),
        (ModelUnavailable("no", "f"), Reason.MODEL_UNAVAILABLE),
        (NoCapacity("none"), Reason.NO_CAPACITY),
        (ProvisioningFailed("no"), Reason.PROVISIONING_FAILED),
        (OSError(errno.ENOSPC, "full"), Reason.DISK_FULL),
        (RuntimeError("?"), Reason.INTERNAL),
    ],
)
def test_our_own_errors_have_reasons(error: Exception, reason: Reason) -> None:
    assert ending_of_error(error).reason is reason

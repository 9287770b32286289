"""Ids as OpenAI spells them: its prefix before the ULID that the thing has here.

What was made at another door has an id here too, and both spellings are understood.
"""

import re

from app.errors import FieldProblem, InvalidPayload, NotFound

_ULID = "[0-9A-HJKMNP-TV-Z]{26}"
_FILE = re.compile(f"(?:file-|ds_)({_ULID})")
_RESULTS = re.compile(f"file-results-({_ULID})")
_JOB = re.compile(f"(?:ftjob-|job_)({_ULID})")
_EVENT = re.compile(f"ftevent-({_ULID})-([0-9]{{1,18}})")
_CHECKPOINT = re.compile(f"ftckpt-({_ULID})")


def file_id(dataset_id: str) -> str:
    """Return the file's id of a data set."""
    return f"file-{_tail(dataset_id)}"


def results_id(job_id: str) -> str:
    """Return the id of the file with a job's metrics."""
    return f"file-results-{_tail(job_id)}"


def ftjob_id(job_id: str) -> str:
    """Return the fine-tuning job's id of a job."""
    return f"ftjob-{_tail(job_id)}"


def ftevent_id(job_id: str, seq: int) -> str:
    """Return the id of a job's event."""
    return f"ftevent-{_tail(job_id)}-{seq}"


def ftckpt_id(checkpoint_id: str) -> str:
    """Return the fine-tuning checkpoint's id of a checkpoint."""
    return f"ftckpt-{_tail(checkpoint_id)}"


def dataset_of(given: str) -> str | None:
    """Return the data set's id of a file's; None for what is none."""
    return _ours(_FILE, "ds", given)


def job_of_results(given: str) -> str | None:
    """Return the id of the job whose metrics a file holds; None for another file."""
    return _ours(_RESULTS, "job", given)


def job_of_name(given: str) -> str | None:
    """Return the job's id of a fine-tuning job's; None for what is none."""
    return _ours(_JOB, "job", given)


def job_of(given: str) -> str:
    """Return the job's id of a fine-tuning job's; raises NotFound for what is none."""
    found = job_of_name(given)
    if found is None:
        message = (
            f"there is no fine-tuning job {given[:100]!r}: GET /v1/fine_tuning/jobs lists them"
        )
        raise NotFound(message, "job_not_found")
    return found


def seq_after(given: str, job_id: str) -> int:
    """Return the number of the job's event that ended a page; raises InvalidPayload for none."""
    found = _EVENT.fullmatch(given)
    if found is None or found[1] != _tail(job_id):
        raise _no_cursor(given, "an event of this job")
    return int(found[2])


def checkpoint_after(given: str) -> str:
    """Return the id of the checkpoint that ended a page; raises InvalidPayload for none."""
    return _after(_ours(_CHECKPOINT, "ckp", given), given, "a checkpoint")


def job_after(given: str) -> str:
    """Return the id of the job that ended a page; raises InvalidPayload for none."""
    return _after(job_of_name(given), given, "a job")


def dataset_after(given: str) -> str:
    """Return the id of the data set that ended a page; raises InvalidPayload for none."""
    return _after(dataset_of(given), given, "a file")


def _after(found: str | None, given: str, what: str) -> str:
    if found is None:
        raise _no_cursor(given, what)
    return found


def _no_cursor(given: str, what: str) -> InvalidPayload:
    """Return the error for an `after` that ends no page."""
    message = f"query `after`: {given!r} is no id of {what}: give the page's `last_id`"
    return InvalidPayload([FieldProblem(pointer="", message=message)], "invalid_cursor")


def no_file(given: str) -> NotFound:
    """Return the error for a file that is not there."""
    return NotFound(
        f"there is no file {given[:100]!r}: GET /v1/files lists what was uploaded, and a job's "
        "`result_files` name its metrics",
        "file_not_found",
    )


def _tail(own: str) -> str:
    return own.rpartition("_")[2]


def _ours(pattern: re.Pattern[str], prefix: str, given: str) -> str | None:
    found = pattern.fullmatch(given)
    return f"{prefix}_{found[1]}" if found else None

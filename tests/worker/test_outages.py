"""What is begun again while a neighbour is away, and what no wait would change."""

import time

import pytest
from botocore.exceptions import ClientError
from sqlalchemy.exc import OperationalError, ProgrammingError

from app.storage import StoreUnavailable
from worker.outages import through_outages


def refused() -> StoreUnavailable:
    error = StoreUnavailable("access refused")
    error.__cause__ = ClientError({"Error": {"Code": "AccessDenied"}}, "GetObject")
    return error


class Answers:
    """Raises these errors one after the other, and then answers."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.calls = 0

    def __call__(self) -> str:
        self.calls += 1
        if self.errors:
            raise self.errors.pop(0)
        return "here"


def away() -> OperationalError:
    return OperationalError("SELECT 1", {}, Exception("connection refused"))


def test_work_is_begun_again_until_store_and_database_are_back():
    work = Answers(StoreUnavailable("away"), away(), StoreUnavailable("away"))
    assert through_outages(work, patience=60) == "here"
    assert work.calls == 4


class SyntaxRefused(Exception):
    """What psycopg raises for a wrong statement."""

    sqlstate = "42601"


@pytest.mark.parametrize("error", [refused(), ProgrammingError("SELECT", {}, SyntaxRefused())])
def test_what_no_wait_changes_is_raised_at_once(error: Exception):
    work = Answers(error)
    with pytest.raises(type(error)):
        through_outages(work, patience=60)
    assert work.calls == 1


def test_patience_has_an_end():
    work = Answers(*(StoreUnavailable("away") for _ in range(100)))
    began = time.monotonic()
    with pytest.raises(StoreUnavailable):
        through_outages(work, patience=0.5)
    assert 0.5 <= time.monotonic() - began < 30

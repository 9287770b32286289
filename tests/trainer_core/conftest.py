"""Shared by the trainer's tests: one forking process and one set of tiny models a session."""

from collections.abc import Iterator

import pytest

from tests.trainer_core.runs import World, Zygote
from tests.trainer_core.small_tasks import Small


@pytest.fixture(scope="session")
def zygote() -> Iterator[Zygote]:
    started = Zygote()
    yield started
    started.close()


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    """A folder whose name has a space and Korean letters, as users' folders do."""
    return World.make(tmp_path_factory.mktemp("작은 모델"))


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> Small:
    """Tiny models of every kind, in a folder with a space and Korean letters."""
    return Small.make(tmp_path_factory.mktemp("작은 과제"))

"""Shared by the trainer's tests: one forking process and one set of tiny models a session."""

from collections.abc import Iterator
from dataclasses import replace

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
def tiny_models(tmp_path_factory: pytest.TempPathFactory) -> Small:
    """Tiny models of every kind, in a folder with a space and Korean letters."""
    return Small.make(tmp_path_factory.mktemp("작은 과제"))


@pytest.fixture(scope="module")
def small(tiny_models: Small, tmp_path_factory: pytest.TempPathFactory) -> Small:
    """The tiny models, with a folder for the runs of this file: names of others do not matter."""
    return replace(tiny_models, folder=tmp_path_factory.mktemp("작은 과제"))

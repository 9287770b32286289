"""The real models, laid once a session, and a process that trains them without a service."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.real.models import lay_minilm, lay_smollm2
from tests.trainer_core.runs import Zygote


@pytest.fixture(scope="session")
def zygote() -> Iterator[Zygote]:
    started = Zygote(run_seconds=600)
    yield started
    started.close()


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder whose name has a space and Korean letters, as users' folders do."""
    return tmp_path_factory.mktemp("진짜 모델")


@pytest.fixture(scope="session")
def minilm(folder: Path) -> Path:
    return lay_minilm(folder)


@pytest.fixture(scope="session")
def smollm2(folder: Path) -> Path:
    return lay_smollm2(folder)

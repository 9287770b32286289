"""Postgres refuses root: each way around that really starts a server."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from polar.stack import services, spawn
from polar.stack.ports import free_ports
from polar.stack.services import Postgres, wait_ready

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root needs a way around")


@pytest.mark.parametrize("wrapper", [services._user_namespace, services._as_nobody])
def test_root_can_run_postgres(
    wrapper: Callable[[], list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not services._works(wrapper()):
        pytest.skip(f"{wrapper()[0]} is refused on this machine")
    monkeypatch.setattr(services, "unprivileged_wrapper", wrapper)
    data = tmp_path / "데이터 폴더" / "postgres"
    data.parent.mkdir()
    server = Postgres(data, tmp_path / "secrets" / "postgres", free_ports(1)[0])
    server.prepare()
    command = server.command()
    process = spawn.start(command, tmp_path / "logs" / "postgres.log")
    try:
        wait_ready(server.is_ready, "postgres", timeout=30)
        server.ensure_database("shop")
        server.ensure_database("shop")
    finally:
        spawn.stop(process, command)
    assert process.returncode == 0

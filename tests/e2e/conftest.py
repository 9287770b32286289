"""One stack for all end-to-end tests; it starts once."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.browser import Pages, serving
from tests.e2e.harness import SETTINGS, TERMINAL, World, running_stack
from tests.hub import Hub, running_hub
from tests.services import wait_until
from tests.trainer_core.tiny import make_tiny_model

SENTENCES = [
    ("Where is my order?", "It was sent this morning and arrives tomorrow."),
    ("Can I return the shoes?", "Yes, within thirty days, with the receipt."),
    ("주문한 상품은 언제 도착하나요?", "내일 오전에 도착합니다."),
    ("환불은 어떻게 하나요?", "영수증과 함께 보내 주세요."),
]


def write_rows(path: Path, count: int) -> None:
    """Write `count` conversations."""
    with path.open("w", encoding="utf-8") as file:
        for number in range(count):
            question, answer = SENTENCES[number % len(SENTENCES)]
            messages = [
                {"role": "user", "content": f"{question} {number}"},
                {"role": "assistant", "content": answer},
            ]
            file.write(json.dumps({"messages": messages}, ensure_ascii=False) + "\n")


@pytest.fixture(scope="package")
def hub() -> Iterator[Hub]:
    """The hub that the stack pushes to."""
    with running_hub("hf_of_the_stack_0123456789") as running:
        yield running


@pytest.fixture(scope="package")
def pages() -> Iterator[Pages]:
    """The site whose pages may call the stack."""
    with serving() as running:
        yield running


@pytest.fixture(scope="package")
def world(tmp_path_factory: pytest.TempPathFactory, hub: Hub, pages: Pages) -> Iterator[World]:
    root = tmp_path_factory.mktemp("전체 스택")
    data = root / "data"
    data.mkdir()
    write_rows(data / "rows.jsonl", 40)
    write_rows(data / "few.jsonl", 8)
    write_rows(data / "many.jsonl", 20_000)
    model = make_tiny_model(root / "models" / "tiny")
    settings = SETTINGS | {"POLAR_HUB_ENDPOINT": hub.url}
    settings["POLAR_CORS_ORIGINS"] = json.dumps([pages.origin])
    with running_stack(root / "home", model, data, settings) as world:
        yield world


@pytest.fixture(autouse=True)
def _nothing_left(world: World) -> Iterator[None]:
    """Cancel what a failed test left open: the stack has few slots."""
    yield
    for job in world.client.jobs(limit=50):
        if job["status"] not in TERMINAL:
            world.client.cancel(job["id"])
            wait_until(lambda job=job: world.get(job["id"])["status"] in TERMINAL, timeout=60)

"""A data set of 300 MiB in pieces, whose API is killed in the middle of it."""

import hashlib
import json
import signal
import threading
from collections.abc import Iterator
from contextlib import suppress

import httpx
import pytest

from tests.app.server import Api, running
from tests.app.stored import store_of
from tests.app.test_uploads import PIECE, begun, offset_of
from tests.services import wait_until

MIB = 2**20
SIZE, HALF = 300 * MIB, 150 * MIB
LINE = 64 * 1024  # bytes of a row


def row(number: int) -> bytes:
    """Return row `number`, of exactly LINE bytes, unlike every other."""
    head = json.dumps({"n": number, "text": ""})[:-2]
    return f'{head}{"x" * (LINE - len(head) - 3)}"}}\n'.encode()


def content(start: int) -> Iterator[bytes]:
    """Yield the file from this byte on."""
    first, skipped = divmod(start, LINE)
    for number in range(first, SIZE // LINE):
        yield row(number)[skipped if number == first else 0 :]


def send(api: Api, where: str, start: int) -> httpx.Response:
    headers = {**PIECE, "Upload-Offset": str(start), "Content-Length": str(SIZE - start)}
    with api.with_key(api.key) as client:
        return client.patch(where, headers=headers, content=content(start), timeout=300)


@pytest.mark.drill
@pytest.mark.timeout(600)
def test_300_mib_arrive_whole_though_the_api_is_killed_in_the_middle(api: Api) -> None:
    digest = hashlib.sha256()
    for piece in content(0):
        digest.update(piece)
    where = begun(api, SIZE, name="big", sha256=digest.hexdigest())

    with running(api.environment, api.key) as mortal:

        def until_it_dies() -> None:
            with suppress(httpx.TransportError):
                send(mortal, where, 0)

        sender = threading.Thread(target=until_it_dies)
        sender.start()
        wait_until(lambda: offset_of(api, where) >= HALF, timeout=240)
        mortal.process.send_signal(signal.SIGKILL)
        mortal.process.wait(10)
        sender.join(60)
    kept = offset_of(api, where)
    assert HALF <= kept < SIZE

    answer = send(api, where, kept)
    assert answer.status_code == 204, answer.text
    made = api.client.get(answer.headers["content-location"]).json()
    assert (made["size"], made["rows"]) == (SIZE, SIZE // LINE)
    assert made["sha256"] == digest.hexdigest()
    store = store_of(api)
    stored = hashlib.sha256()
    for block in store.iterate(made["location"].removeprefix(f"s3://{store.bucket}/")):
        stored.update(block)
    assert stored.hexdigest() == digest.hexdigest()
    assert list(store.list_objects(f"prj_default{where}/")) == []

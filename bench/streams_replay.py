"""A client that replays a job's stream from its start, as quickly as it comes.

    python -m bench.streams_replay PORT PATH TIMES        (the key on stdin)

Prints a line of JSON for each replay: events, last seq, whether it ended, and seconds.
"""

import json
import re
import socket
import sys
import time

_LAST = re.compile(rb"^id: (\d+)$", re.M)


def replay(port: int, path: str, key: str) -> dict[str, float]:
    """Read a whole stream; counts its events without looking into them."""
    began = time.perf_counter()
    count = last = 0
    rest = b""
    with socket.create_connection(("127.0.0.1", port), timeout=120) as connection:
        connection.sendall(
            f"GET {path} HTTP/1.0\r\nAccept: text/event-stream\r\n"
            f"Authorization: Bearer {key}\r\n\r\n".encode()
        )
        while data := connection.recv(2**18):
            data = rest + data
            end = data.rfind(b"\n\n") + 2
            whole, rest = data[:end], data[end:]
            count += whole.count(b"\nid: ") + whole.startswith(b"id: ")
            if newest := whole.rfind(b"\nid: ") + 1:
                found = _LAST.match(whole, newest)
                last = int(found.group(1)) if found else last
            ended = b'{"type":"end"' in whole
    seconds = time.perf_counter() - began
    return {"count": count, "last": last, "ended": ended, "seconds": seconds}


def main() -> None:
    """Replay again and again."""
    key = sys.stdin.readline().strip()
    for _ in range(int(sys.argv[3])):
        print(json.dumps(replay(int(sys.argv[1]), sys.argv[2], key)), flush=True)


if __name__ == "__main__":
    main()

"""Run a command in a network of its own, with nothing but the doors that are named.

    python inside.py DOORS COMMAND [ARGUMENT ...]     (DOORS as JSON: port → path of a socket)

Started in a fresh network namespace it switches the loopback interface on; each door is a port
there that leads to a Unix socket, behind which the test's links are. There is no other way out.
"""

import asyncio
import contextlib
import ctypes
import fcntl
import json
import signal
import socket
import struct
import sys

SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP = 0x8913, 0x8914, 0x1
PR_SET_PDEATHSIG = 1
PIECE = 65_536


def switch_loopback_on() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        request = struct.pack("16sh14x", b"lo", 0)
        flags = struct.unpack("16sh14x", fcntl.ioctl(any_socket, SIOCGIFFLAGS, request))[1]
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", flags | IFF_UP))


async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(PIECE):
            writer.write(data)
            await writer.drain()
        writer.write_eof()
        return
    writer.transport.abort()


async def serve(path: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        answers, server = await asyncio.open_unix_connection(path)
    except OSError:
        writer.transport.abort()
        return
    await asyncio.gather(pump(reader, server), pump(answers, writer))
    for each in (server, writer):
        each.close()


async def main(doors: dict[str, str], command: list[str]) -> int:
    for port, path in doors.items():
        await asyncio.start_server(lambda r, w, p=path: serve(p, r, w), "127.0.0.1", int(port))
    process = await asyncio.create_subprocess_exec(*command)
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, process.send_signal, number)
    return await process.wait()


if __name__ == "__main__":
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    switch_loopback_on()
    sys.exit(asyncio.run(main(json.loads(sys.argv[1]), sys.argv[2:])))

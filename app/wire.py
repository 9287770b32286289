"""A connection's bytes that its client has not taken yet: so that no more follow than it reads.

A client that keeps no part of a frame loses what a read cuts. What a read returns is the client's
own matter; but where little enough is under way, it is all that there is.
"""

import asyncio
import contextlib
import fcntl
import socket
import struct
import termios
from collections.abc import Iterator
from functools import cached_property

WINDOW = 16 * 1024
"""Bytes that follow each other without a rest. Browsers and HTTP libraries read 64 KiB at once, and
a system may confirm what its program has not read yet: such a one may miss three rests."""
PIECE = 8 * 1024
"""Bytes of one write at most."""
_CHUNK_HEAD = 16  # bytes; what HTTP writes around a piece
_MOMENT = 0.002  # seconds in which a client reads what has come
_LONGEST = 0.5  # seconds between two looks at what is under way


class Wire:
    """How pieces of an answer go out on one connection; `transport` is the server's own."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._written = 0  # since the last moment of rest

    @cached_property
    def piece(self) -> int:
        """Bytes that arrive together: a segment's, or `PIECE` where segments are larger."""
        try:
            segment = self._socket().getsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG)
        except OSError:  # a Unix socket, or it is closed
            return PIECE
        return max(1, min(segment - _CHUNK_HEAD, PIECE))

    def _socket(self) -> socket.socket:
        found: socket.socket = self._transport.get_extra_info("socket")
        return found

    def under_way(self) -> int:
        """Return the bytes that were written and that the client's machine has not confirmed."""
        waiting = self._transport.get_write_buffer_size()
        with contextlib.suppress(OSError):
            sent = fcntl.ioctl(self._socket().fileno(), termios.TIOCOUTQ, b"\0" * 4)
            waiting += struct.unpack("i", sent)[0]
        return waiting

    async def room(self, size: int) -> None:
        """Wait until as many bytes may follow: for a moment, and for what was written before.

        Also returns when the connection is closed: writing to it says so.
        """
        self._written += size
        if self._written <= WINDOW:
            return
        pause = _MOMENT
        await asyncio.sleep(pause)
        while not self._transport.is_closing() and self.under_way() > WINDOW // 2:
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST)
        self._written = size


def cut(text: bytes, between: bytes, most: int) -> Iterator[bytes]:
    """Yield the text in pieces that end with `between`, as long as fits into `most` bytes.

    What is longer without one comes as one piece.
    """
    begin = 0
    while len(text) - begin > most:
        end = text.rfind(between, begin, begin + most)
        if end < 0:
            end = text.find(between, begin + most - len(between) + 1)
        if end < 0:
            break
        yield text[begin : end + len(between)]
        begin = end + len(between)
    if begin < len(text):
        yield text[begin:]

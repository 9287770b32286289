"""Reads events that have left Postgres: compressed ranges in the object store.

A range is a gzip file of lines `<seq> TAB <type> TAB <attempt id> TAB <JSON of the event>`, in the
order of seq; neither the names nor JSON hold tabs or line breaks.
"""

import gzip
import hashlib
import logging
import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

from app.errors import Unavailable
from app.events.frames import Form
from app.events.ranges import Range
from app.events.source import Page, Types
from app.storage import ChecksumMismatch, ObjectMissing, Store, get_store

_CACHED = 4  # ranges; a replay reads each of them page by page
_log = logging.getLogger(__name__)


class ArchivedEvent(NamedTuple):
    """A line of a range; `json` is the event as clients see it."""

    seq: int
    type: str
    attempt_id: str | None
    json: str


def pack(events: Iterable[ArchivedEvent]) -> bytes:
    """Return the object that holds these events."""
    lines = "".join(f"{e.seq}\t{e.type}\t{e.attempt_id or ''}\t{e.json}\n" for e in events)
    return gzip.compress(lines.encode(), compresslevel=6, mtime=0)


def unpack(data: bytes) -> list[ArchivedEvent]:
    """Return the events of an object."""
    events = []
    # At "\n" alone: texts may hold U+2028 and its like, where `splitlines` ends a line, too.
    for line in gzip.decompress(data).decode().split("\n")[:-1]:
        seq, kind, attempt_id, event = line.split("\t", 3)
        events.append(ArchivedEvent(int(seq), kind, attempt_id or None, event))
    return events


class Archive:
    """The ranges of one store; keeps the newest few in memory. Safe to share between threads."""

    def __init__(self, objects: Store) -> None:
        self._objects = objects
        self._cache: OrderedDict[str, list[ArchivedEvent]] = OrderedDict()
        self._lock = threading.Lock()

    def load(self, wanted: Range) -> list[ArchivedEvent]:
        """Return the events of a range; raises Unavailable while it cannot be read."""
        with self._lock:
            if wanted.key in self._cache:
                self._cache.move_to_end(wanted.key)
                return self._cache[wanted.key]
        events = unpack(self._fetch(wanted))
        with self._lock:
            self._cache[wanted.key] = events
            while len(self._cache) > _CACHED:
                self._cache.popitem(last=False)
        return events

    def _fetch(self, wanted: Range) -> bytes:
        where = f"events {wanted.first_seq}-{wanted.last_seq} of {wanted.job_id}"
        try:
            data = self._objects.get_bytes(wanted.key, wanted.size)
        except (ObjectMissing, ChecksumMismatch) as error:
            _log.error("the archive is damaged: %s: %s", where, error)
            raise Unavailable(
                f"{where} are not in the archive: {error}", "archive_damaged"
            ) from error
        if hashlib.sha256(data).hexdigest() != wanted.sha256:
            _log.error("the archive is damaged: %s: wrong checksum", where)
            raise Unavailable(f"{where}: the archived file is damaged", "archive_damaged")
        return data

    def events(
        self, ranges: Iterable[Range], after: int, types: Types = None
    ) -> Iterator[ArchivedEvent]:
        """Yield the events of these types (None: all) after `after`, range by range."""
        wanted = None if types is None else tuple(types)
        for each in ranges:
            if each.last_seq <= after or not each.may_hold(wanted):
                continue
            for event in self.load(each):
                if event.seq > after and (wanted is None or event.type in wanted):
                    yield event

    def page(self, unread: Page, types: Types, limit: int, form: Form) -> Page:
        """Read what a page says that lies in the archive; the next page goes on behind it."""
        ranges: Sequence[Range] = unread.ranges
        found: list[ArchivedEvent] = []
        for event in self.events(ranges, unread.position[0], types):
            found.append(event)
            if len(found) == limit:
                break
        reached = found[-1].seq if len(found) == limit else ranges[-1].last_seq
        over = unread.end is not None and reached >= unread.end.last_seq
        return Page(
            form.join((str(event.seq), event.json) for event in found),
            (reached, "", 0),
            more=not over,
            end=unread.end if over else None,
        )


@lru_cache
def get_archive() -> Archive:
    """The process's archive."""
    return Archive(get_store())

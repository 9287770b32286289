"""Run a module of ours with a wall clock that is wrong by some seconds.

    python clock.py SECONDS MODULE [ARGUMENT ...]

Everything that Python code of the process (and of its forks) asks about the date is shifted;
clocks that only measure time are not, as on a host whose date is wrong.
"""

import datetime
import runpy
import sys
import time


def shift(seconds: float) -> None:
    """Have `time` and `datetime` say another date from now on."""
    real_time, real_ns, real = time.time, time.time_ns, datetime.datetime
    by = datetime.timedelta(seconds=seconds)

    class Kind(type):
        """Datetimes that others made are datetimes, too."""

        def __instancecheck__(cls, value: object) -> bool:
            return isinstance(value, real)

        def __subclasscheck__(cls, kind: type) -> bool:
            return issubclass(kind, real)

    class Shifted(datetime.datetime, metaclass=Kind):
        """A datetime whose `now` is wrong."""

        @classmethod
        def now(cls, tz: datetime.tzinfo | None = None) -> "Shifted":
            return super().now(tz) + by

        @classmethod
        def utcnow(cls) -> "Shifted":
            return cls.now(datetime.UTC).replace(tzinfo=None)

    time.time = lambda: real_time() + seconds
    time.time_ns = lambda: real_ns() + int(seconds * 1e9)
    for name in ("gmtime", "localtime"):
        original = getattr(time, name)
        setattr(time, name, lambda at=None, f=original: f(time.time() if at is None else at))
    datetime.datetime = Shifted  # type: ignore[misc]


if __name__ == "__main__":
    sys.path.pop(0)  # this folder: its modules are none of the program's business
    shift(float(sys.argv[1]))
    module = sys.argv[2]
    sys.argv[:] = sys.argv[2:]
    runpy.run_module(module, run_name="__main__", alter_sys=True)

"""Operations as attributes: one description, called with await or without.

class Jobs(Resource[D]):
    @operation
    def get(self, job_id: str) -> Call[JobOut]: ...

Client().jobs.get("job_1")               # a JobOut
await AsyncClient().jobs.get("job_1")    # the same
"""

import functools
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar, overload

from polar.sdk.calls import Course, Steps
from polar.sdk.listening import Listener

if TYPE_CHECKING:
    from polar.sdk.drivers import AsyncDriver, Driver
    from polar.sdk.jobs import AsyncJob, Job
    from polar.sse import Frame

P = ParamSpec("P")
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
D = TypeVar("D")


class Resource(Generic[D]):
    """Operations of one kind of thing, sent by the driver."""

    def __init__(self, driver: D) -> None:
        self._driver = driver


class _Described(Generic[P, T]):
    """Base: keeps the description, and its name and text for `help()`."""

    def __init__(self, describe: Callable[Concatenate[Any, P], T]) -> None:
        self.describe = describe
        functools.update_wrapper(self, describe)  # type: ignore[arg-type]

    def _bound(self, run: Callable[..., Any]) -> Any:
        return functools.wraps(self.describe)(run)


class operation(_Described[P, Steps[T]], Generic[P, T]):  # noqa: N801 - a decorator
    """A call or course that returns something."""

    def __init__(self, describe: Callable[Concatenate[Any, P], Steps[T]]) -> None:
        super().__init__(describe)

    @overload
    def __get__(self, at: "Resource[Driver]", owner: Any = None) -> Callable[P, T]: ...
    @overload
    def __get__(
        self, at: "Resource[AsyncDriver]", owner: Any = None
    ) -> Callable[P, Awaitable[T]]: ...
    @overload
    def __get__(self, at: None, owner: Any = None) -> "operation[P, T]": ...
    def __get__(self, at: Any, owner: Any = None) -> Any:
        """Return the method of a client's resource."""
        if at is None:
            return self
        return self._bound(lambda *a, **k: at._driver.run(self.describe(at, *a, **k)))


class job_operation(_Described[P, Steps[Any]], Generic[P]):  # noqa: N801 - a decorator
    """A call that returns a job, with its own operations: a Job, or an AsyncJob."""

    @overload
    def __get__(self, at: "Resource[Driver]", owner: Any = None) -> "Callable[P, Job]": ...
    @overload
    def __get__(
        self, at: "Resource[AsyncDriver]", owner: Any = None
    ) -> "Callable[P, Awaitable[AsyncJob]]": ...
    @overload
    def __get__(self, at: None, owner: Any = None) -> "job_operation[P]": ...
    def __get__(self, at: Any, owner: Any = None) -> Any:
        """Return the method of a client's resource."""
        if at is None:
            return self

        def course(*arguments: Any, **named: Any) -> Course[Any]:
            return at.bound((yield from self.describe(at, *arguments, **named)))

        return self._bound(lambda *a, **k: at._driver.run(course(*a, **k)))


class Page(Protocol[T_co]):
    """A part of a list, and where the next one begins."""

    @property
    def items(self) -> Sequence[T_co]:
        """What is on it."""

    @property
    def next_cursor(self) -> str | None:
        """The next page; None: this is the last."""


class pages(_Described[P, Steps[Page[T]]], Generic[P, T]):  # noqa: N801 - a decorator
    """All items of a list, page by page as they are asked for."""

    def __init__(self, describe: Callable[Concatenate[Any, P], Steps[Page[T]]]) -> None:
        super().__init__(describe)

    @overload
    def __get__(self, at: "Resource[Driver]", owner: Any = None) -> Callable[P, Iterator[T]]: ...
    @overload
    def __get__(
        self, at: "Resource[AsyncDriver]", owner: Any = None
    ) -> Callable[P, AsyncIterator[T]]: ...
    @overload
    def __get__(self, at: None, owner: Any = None) -> "pages[P, T]": ...
    def __get__(self, at: Any, owner: Any = None) -> Any:
        """Return the method of a client's resource."""
        if at is None:
            return self

        def describe(cursor: str | None, *arguments: Any, **named: Any) -> Any:
            given = named if cursor is None else {**named, "cursor": cursor}
            return self.describe(at, *arguments, **given)

        return self._bound(lambda *a, **k: at._driver.pages(lambda c: describe(c, *a, **k)))


class stream(_Described[P, Listener], Generic[P]):  # noqa: N801 - a decorator
    """Frames of a stream of events, as they come."""

    @overload
    def __get__(
        self, at: "Resource[Driver]", owner: Any = None
    ) -> "Callable[P, Iterator[Frame]]": ...
    @overload
    def __get__(
        self, at: "Resource[AsyncDriver]", owner: Any = None
    ) -> "Callable[P, AsyncIterator[Frame]]": ...
    @overload
    def __get__(self, at: None, owner: Any = None) -> "stream[P]": ...
    def __get__(self, at: Any, owner: Any = None) -> Any:
        """Return the method of a client's resource."""
        if at is None:
            return self
        return self._bound(lambda *a, **k: at._driver.listen(self.describe(at, *a, **k)))


PathLike = str | Path

"""How the hub is asked, and how long we wait: a host that does not answer is asked three times.

The library's own patience is half a minute for each file of a model.
"""

import time
from typing import Any

_CONNECT_SECONDS = 5.0
_READ_SECONDS = 60.0
_TRIES = 3
_PAUSE_SECONDS = 0.5
_REMEMBER_SECONDS = 60.0


class _Patience:
    """Which hosts did not answer lately: they are not asked again so soon."""

    installed = False
    gone: dict[str, float] = {}  # noqa: RUF012 - the process's one


def be_patient() -> None:
    """Have `huggingface_hub` of this process give up on a host that is not there; once is enough.

    It then falls back on its cache, and raises what it raises when it is offline.
    """
    if _Patience.installed:
        return
    import httpx  # noqa: PLC0415
    from huggingface_hub.errors import OfflineModeIsEnabled

    class Client(httpx.Client):
        """A client that knows when to stop."""

        def send(self, request: httpx.Request, **options: Any) -> httpx.Response:
            _shorten(request)
            host = request.url.netloc.decode()
            for number in range(1, _TRIES + 1):
                if _Patience.gone.get(host, 0.0) > time.monotonic():
                    break
                try:
                    return super().send(request, **options)
                except httpx.TransportError as error:
                    reason = str(error) or type(error).__name__
                    if number == _TRIES:
                        _Patience.gone[host] = time.monotonic() + _REMEMBER_SECONDS
                        raise OfflineModeIsEnabled(f"{host} does not answer: {reason}") from error
                time.sleep(_PAUSE_SECONDS)
            raise OfflineModeIsEnabled(f"{host} did not answer a moment ago")

    use_client(Client)
    _Patience.installed = True


def use_client(kind: Any) -> None:
    """Have `huggingface_hub` of this process ask by this kind of `httpx.Client`.

    It sees None for every wait that the library leaves open.
    """
    from huggingface_hub import set_client_factory
    from huggingface_hub.utils._http import hf_request_event_hook

    set_client_factory(
        lambda: kind(
            event_hooks={"request": [hf_request_event_hook]}, follow_redirects=True, timeout=None
        )
    )


def _shorten(request: Any) -> None:
    """Bound the waits of a request that the library leaves open."""
    given = request.extensions.get("timeout") or {}
    request.extensions["timeout"] = given | {
        "connect": min(given.get("connect") or _CONNECT_SECONDS, _CONNECT_SECONDS),
        "read": given.get("read") or _READ_SECONDS,
    }

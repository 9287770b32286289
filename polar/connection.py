"""Which service the commands talk to: the environment's, or the stack of the data folder."""

import os

from polar.client import Client
from polar.stack.home import Home, default_home
from polar.stack.state import running_state


class NoService(Exception):
    """There is no service to talk to; the message says how to get one."""


def connect() -> Client:
    """Return a client of `POLAR_URL` with `POLAR_API_KEY`, or of the running stack.

    Raises NoService when neither is there.
    """
    url, key = os.environ.get("POLAR_URL"), os.environ.get("POLAR_API_KEY")
    if url:
        return Client(url, key)
    home = Home(default_home())
    state = running_state(home)
    if state is None:
        raise NoService(f"no stack runs on {home.path}: polar up starts one, or set POLAR_URL")
    if state.role == "host":
        raise NoService("here runs a host, not the service: set POLAR_URL and POLAR_API_KEY")
    if key is None and state.auth == "keys":
        key = (home.secrets / "api-key").read_text(encoding="utf-8").strip()
    return Client(state.url, key)

"""The service that runs in the data folder of this machine."""

import os

from polar.sdk.client import Client
from polar.sdk.errors import NoService
from polar.stack.home import Home, default_home
from polar.stack.state import running_state


def of_data_folder() -> Client:
    """Return a client of the running stack; raises NoService when there is none."""
    home = Home(default_home())
    state = running_state(home)
    if state is None:
        raise NoService(f"no stack runs on {home.path}: polar up starts one, or set POLAR_URL")
    if state.role == "host":
        raise NoService("here runs a host, not the service: set POLAR_URL and POLAR_API_KEY")
    key = os.environ.get("POLAR_API_KEY")
    if key is None and state.auth == "keys":
        key = (home.secrets / "api-key").read_text(encoding="utf-8").strip()
    return Client(state.url, key)

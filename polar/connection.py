"""Which service the commands talk to: the environment's, or the stack of the data folder."""

import os
from importlib import import_module

from polar.sdk.client import Client


def connect() -> Client:
    """Return a client of `POLAR_URL` with `POLAR_API_KEY`, or of the running stack.

    Raises NoService when neither is there.
    """
    if os.environ.get("POLAR_URL"):
        return Client()
    # The stack's modules are needed without an address alone.
    client: Client = import_module("polar.local_service").of_data_folder()
    return client

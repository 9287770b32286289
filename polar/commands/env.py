"""`polar env`: what a shell needs to talk to the running stack."""

import shlex

from polar.commands.screen import fail
from polar.commands.service import AsJson, print_json
from polar.connection import connect
from polar.sdk.errors import NoService
from polar.stack.home import default_home


def env(*, as_json: AsJson = False) -> None:
    """Print exports of POLAR_URL, POLAR_API_KEY and POLAR_HOME: `eval "$(polar env)"`."""
    try:
        with connect() as client:
            values = {"POLAR_URL": client.url, "POLAR_API_KEY": client.key or ""}
    except NoService as error:
        raise fail(str(error)) from None
    values["POLAR_HOME"] = str(default_home().resolve())
    if as_json:
        print_json(values)
        return
    for name, value in values.items():
        print(f"export {name}={shlex.quote(value)}")

"""`polar submit`: a job of options, files and overrides, for a service."""

from typing import Annotated

import typer

from polar.commands.composing import ConfigDir, ConfigName, Words, job_of
from polar.commands.jobs import Watch, tell_new
from polar.commands.service import AsJson, service
from polar.config.places import Places

_Key = Annotated[
    str, typer.Option("--idempotency-key", help="The same key gives the same job again.")
]


def submit(
    words: Words = None,
    *,
    follow_it: Watch = False,
    key: _Key = "",
    config_dir: ConfigDir = None,
    config_name: ConfigName = None,
    as_json: AsJson = False,
) -> None:
    """Submit a job and print its id."""
    body = job_of(words, Places(config_dir, config_name))
    with service() as client:
        job = client.jobs.create(body, idempotency_key=key or None)
    tell_new(job, follow_it=follow_it, as_json=as_json)

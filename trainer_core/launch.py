"""Reading what a run gets: its Launch, its secrets and its share of the machine."""

import os
import uuid
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from trainer_core.errors import InvalidSpec
from trainer_core.json_words import json_problem, parse_json
from trainer_core.spec import Launch, Paths, TrainSpec
from trainer_core.words import say

SECRETS_FD = "POLAR_SECRETS_FD"
OF_THE_SERVICE = ("name", "labels", "priority", "compute", "retry", "plan_id")
"""Fields of a job's spec that no run looks at: they say where and in what order jobs run."""


def read_launch(path: Path, out: Path | None = None) -> Launch:
    """Read a Launch, or a TrainSpec that becomes one with its work folder at `out`.

    The spec of a job is taken too: what is for the service alone is left out, and told.
    Raises InvalidSpec for a file that cannot be read, and pydantic's ValidationError for one
    that says something wrong.
    """
    document = _read_json(path)
    if _is_launch(document):
        launch = Launch.model_validate(document)
        return launch if out is None else _moved(launch, out)
    return standalone(TrainSpec.model_validate(_for_a_run(document)), path.stem, out)


def _for_a_run(document: dict[str, Any]) -> dict[str, Any]:
    left_out = [name for name in OF_THE_SERVICE if name in document]
    if left_out:
        say(f"left out, for the service alone: {', '.join(left_out)}")
    return {name: value for name, value in document.items() if name not in left_out}


def is_launch(path: Path) -> bool:
    """Whether a file holds a Launch (a supervisor's) rather than a TrainSpec; False if neither."""
    try:
        return _is_launch(_read_json(path))
    except InvalidSpec:
        return False


def standalone(spec: TrainSpec, name: str, out: Path | None = None) -> Launch:
    """A Launch for a run without any service: work folder `out`, or `runs/<name>` here."""
    work = (out or Path("runs") / name).absolute()
    return Launch(
        attempt_id=f"local-{uuid.uuid4().hex[:12]}",
        job_id="local",
        job_name=name,
        spec=spec,
        paths=Paths(work=str(work)),
    )


def read_secrets() -> dict[str, str]:
    """Secrets by name, from the descriptor named by POLAR_SECRETS_FD; read once, then closed."""
    number = os.environ.pop(SECRETS_FD, None)
    if number is None:
        return {}
    try:
        with os.fdopen(int(number), "rb") as file:
            return TypeAdapter(dict[str, str]).validate_json(file.read() or b"{}")
    except (OSError, ValueError) as error:
        # The content is not repeated: it may hold half a secret.
        raise InvalidSpec(
            f"{SECRETS_FD} must name a descriptor with a JSON object of strings"
        ) from error


def secret(secrets: dict[str, str], name: str, field: str) -> str:
    """The secret `name`; raises InvalidSpec naming the field that asks for it."""
    if name not in secrets:
        raise InvalidSpec(f"there is no secret '{name}': create it first", field)
    return secrets[name]


def _is_launch(document: dict[str, Any]) -> bool:
    return "spec" in document and "paths" in document


def _read_json(path: Path) -> dict[str, Any]:
    try:
        document = parse_json(path.read_bytes())
    except OSError as error:
        raise InvalidSpec(f"{path}: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise InvalidSpec(f"{path} is not JSON: {json_problem(error)}") from error
    if not isinstance(document, dict):
        raise InvalidSpec(f"{path} must hold a JSON object: a TrainSpec or a Launch")
    return document


def _moved(launch: Launch, out: Path) -> Launch:
    paths = launch.paths.model_copy(update={"work": str(out.absolute())})
    return launch.model_copy(update={"paths": paths})

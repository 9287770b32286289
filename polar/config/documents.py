"""Files of specs: JSON as it stands, YAML as Hydra composes it (with `defaults`, `${…}`)."""

import json
import re
from pathlib import Path
from typing import Any

from polar.config.errors import wrong
from polar.config.places import ENDINGS

_INTERPOLATION = re.compile(r"(\\*)\$\{")


def read_document(path: Path) -> dict[str, Any]:
    """Read a spec's file as a configuration; raises ConfigError for what is none."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise wrong(f"{path}: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise wrong(f"{path} is not UTF-8: {error}") from None
    document = _yaml(path, text) if path.suffix in ENDINGS else _escaped(_json(path, text))
    if not isinstance(document, dict):
        raise wrong(f"{path} must hold an object, with `task`, `model` and `data`")
    return document


def _json(path: Path, text: str) -> Any:
    try:
        return json.loads(text, object_pairs_hook=lambda pairs: _object(path, pairs))
    except (ValueError, RecursionError) as error:
        raise wrong(f"{path} is not JSON: {error or 'it is nested too deeply'}") from None


def _object(path: Path, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise wrong(f"`{twice}` stands twice in one object: leave one out", str(path))
    return found


def _yaml(path: Path, text: str) -> Any:
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException
    from yaml import YAMLError

    try:
        return OmegaConf.to_container(OmegaConf.create(text))
    except (YAMLError, OmegaConfBaseException, OSError, ValueError, RecursionError) as error:
        raise wrong(f"{path} is not YAML: {' '.join(str(error).split())}") from None


def _escaped(value: Any) -> Any:
    """The document with `${` written so that it stays what it is: JSON knows no references."""
    if isinstance(value, str):
        return _INTERPOLATION.sub(lambda found: found[1] * 2 + "\\${", value)
    if isinstance(value, list):
        return [_escaped(member) for member in value]
    if isinstance(value, dict):
        return {name: _escaped(member) for name, member in value.items()}
    return value

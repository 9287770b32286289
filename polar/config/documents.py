"""Files of specs: JSON as it stands, YAML as Hydra composes it (with `defaults`, `${…}`)."""

import re
from pathlib import Path
from typing import Any

from polar.config.errors import wrong
from polar.config.places import ENDINGS
from trainer_core.json_words import json_problem, parse_json

_INTERPOLATION = re.compile(r"(\\*)\$\{")


def read_document(path: Path) -> dict[str, Any]:
    """Read a spec's file as a configuration; raises ConfigError for what is none."""
    try:
        document = _yaml(path) if path.suffix in ENDINGS else _escaped(_json(path))
    except RecursionError:
        raise wrong(f"{path} is nested too deeply") from None
    if not isinstance(document, dict):
        raise wrong(f"{path} must hold an object, with `task`, `model` and `data`")
    return document


def _json(path: Path) -> Any:
    try:
        return parse_json(path.read_bytes())
    except OSError as error:
        raise wrong(f"{path}: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:
        raise wrong(f"{path} is not JSON: {json_problem(error)}") from None


def _yaml(path: Path) -> Any:
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException
    from yaml import YAMLError

    try:
        text = path.read_text(encoding="utf-8")
        return OmegaConf.to_container(OmegaConf.create(text))
    except UnicodeDecodeError as error:
        raise wrong(f"{path} is not UTF-8: {error}") from None
    except OSError as error:
        raise wrong(f"{path}: {error.strerror or error}") from None
    except (YAMLError, OmegaConfBaseException, ValueError) as error:
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

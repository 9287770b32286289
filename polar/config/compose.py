"""Composing: a base (file, configuration or nothing), options of groups, overrides."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from polar.config.check import checked
from polar.config.documents import read_document
from polar.config.errors import ConfigError, wrong
from polar.config.origins import Source
from polar.config.overrides import Override, looks_like_file, read_overrides
from polar.config.places import ENDINGS, JOB, PACKAGED, Places, shown
from trainer_core.problems import nearest
from trainer_core.spec import JobSpec

_BASE = "polar_base"
_GLOBAL = "_global_"
_ODD = (ValueError, TypeError)
"""What the libraries raise for files and names of shapes that they do not expect."""


@dataclass(frozen=True)
class Composed:
    """A spec, and the document that says of it only what was given."""

    spec: JobSpec
    document: dict[str, Any]


@dataclass(frozen=True)
class Request:
    """What is to be composed."""

    places: Places
    file: Path | None
    overrides: list[Override]
    groups: Mapping[str, list[str]] = field(default_factory=dict)


def compose_spec(arguments: Sequence[str], places: Places) -> Composed:
    """Compose a job's spec from the words of a command line: at most one file, and overrides.

    Raises ConfigError; its lines name field, value, origin and way out.
    """
    request = read_request(arguments, places)
    for override in request.overrides:
        if override.is_sweep:
            raise wrong(f"`{override.text}` has several values: --multirun tries each")
    return compose_one(request, [each.line() for each in request.overrides])


def read_request(arguments: Sequence[str], places: Places) -> Request:
    """Tell a file from overrides, and check what they name; raises ConfigError."""
    files = [argument for argument in arguments if looks_like_file(argument)]
    if len(files) > 1:
        raise wrong(f"one file is composed, not {' and '.join(files)}: overrides are key=value")
    if files and places.config_name is not None:
        raise wrong(f"--config-name and {files[0]} are both what to start from: leave one out")
    groups = places.groups()
    texts = [argument for argument in arguments if argument not in files]
    request = Request(
        places, Path(files[0]) if files else None, read_overrides(texts, groups), groups
    )
    for override in request.overrides:
        _check_option(override, groups)
    return request


def compose_one(request: Request, lines: Sequence[str]) -> Composed:
    """Compose and check one spec of these overrides; raises ConfigError."""
    base, sources = _base(request)
    keys = {line.lstrip("+").partition("=")[0]: line for line in lines}
    if request.file is not None and "defaults" not in base:
        # A block that is chosen anew is not mixed with the file's own.
        chosen = {group for group in request.groups if group in keys}
        base = {name: value for name, value in base.items() if name not in chosen}
    document, choices = _composed(request, base, lines)
    sources += [_source(request.places, group, option) for group, option in choices.items()]
    return Composed(checked(document, request.overrides, sources), document)


def _check_option(override: Override, groups: Mapping[str, list[str]]) -> None:
    if not override.is_group or override.deletes:
        return
    for value in _options(override):
        if value is None or value in groups[override.key]:
            continue
        known = groups[override.key]
        close = nearest(str(value), known)
        meant = f"did you mean `{close}`?" if close else f"known are {', '.join(known)}"
        raise wrong(f"there is no {override.key} `{value}`: {meant}", override.text)


def _options(override: Override) -> list[Any]:
    value = override.parsed.value()
    if override.is_sweep:
        return [line.partition("=")[2] for line in override.lines()]
    return value if isinstance(value, list) else [value]


def _base(request: Request) -> tuple[dict[str, Any], list[Source]]:
    path = request.file or _named(request.places)
    document = read_document(path)
    return document, [Source(path.absolute(), (), document)]


def _named(places: Places) -> Path:
    name = places.config_name or JOB
    found = places.file("", name)
    if found is None:
        folders = ", ".join(map(shown, places.folders()))
        raise wrong(f"--config-name: there is no {name}.yaml in {folders}")
    return found


def _source(places: Places, group: str, option: str) -> Source:
    file = places.file(group, option) or Path(group) / option
    text = file.read_text(encoding="utf-8") if file.is_file() else ""
    everywhere = f"@package {_GLOBAL}" in text
    document = read_document(file) if file.suffix in ENDINGS and text else {}
    return Source(file, () if everywhere else tuple(group.split("/")), document)


def _composed(
    request: Request, base: Mapping[str, Any], lines: Sequence[str]
) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the document, and what was chosen of each group."""
    from omegaconf import OmegaConf

    with _hydra(request.places, base) as compose:
        present = _choices(compose([]))
        nothing = [group for group in request.groups if f"{group}=null" in _last(lines)]
        wanted = (line for line in _last(lines) if line.removesuffix("=null") not in nothing)
        left_out = [f"~{group}" for group in nothing if group in present]
        composed = compose([*left_out, *(_added(line, present, request.groups) for line in wanted)])
        choices = _choices(composed)
        OmegaConf.set_struct(composed, False)
        del composed["hydra"]
        document = OmegaConf.to_container(composed, resolve=True)
    if not isinstance(document, dict):
        raise wrong("the configuration must be an object, with `task`, `model` and `data`")
    return {str(name): v for name, v in document.items() if name not in nothing}, choices


def _choices(composed: Any) -> dict[str, str]:
    found = composed.hydra.runtime.choices
    return {
        str(group): str(option)
        for group, option in found.items()
        if option is not None and not str(group).startswith("hydra")
    }


def _last(lines: Sequence[str]) -> list[str]:
    """Of a key that is given twice the last line."""
    return list({line.partition("=")[0]: line for line in lines}.values())


def _added(line: str, present: Mapping[str, str], groups: Mapping[str, list[str]]) -> str:
    """A group that the base chooses nothing of is added, not changed."""
    key, equals, _ = line.partition("=")
    return f"+{line}" if equals and key in groups and key not in present else line


@contextmanager
def _hydra(places: Places, base: Mapping[str, Any]) -> Iterator[Any]:
    """Give Hydra's `compose` over the places; what it says is told without its frames."""
    from hydra import compose, initialize_config_dir
    from hydra.core.config_store import ConfigStore
    from hydra.core.global_hydra import GlobalHydra
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException
    from yaml import YAMLError

    folders = places.folders()
    search = [] if folders == [PACKAGED] else [f"hydra.searchpath=[{_quoted(PACKAGED)}]"]
    try:
        ConfigStore.instance().store(_BASE, dict(base))
        GlobalHydra.instance().clear()
        with initialize_config_dir(str(folders[0]), job_name="polar", version_base=None):

            def composed(lines: Sequence[str]) -> Any:
                return compose(_BASE, [*search, *lines], return_hydra_config=True)

            yield composed
    except ConfigError:
        raise
    except RecursionError:
        raise wrong("the configuration is nested too deeply: a spec has a few levels") from None
    except (HydraException, OmegaConfBaseException, YAMLError, *_ODD) as error:
        raise wrong(" ".join(_first_lines(str(error)))) from None


def _quoted(folder: Path) -> str:
    return "'file://" + str(folder).replace("'", "\\'") + "'"


def _first_lines(text: str) -> list[str]:
    """What Hydra says, without its notes on how it searched."""
    lines = [line.strip() for line in text.splitlines()]
    return [line for line in lines if line and not line.startswith(("full_key", "object_type"))]

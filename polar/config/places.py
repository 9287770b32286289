"""Where options and configurations are looked for: the user's folder first, then the packaged."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from polar.config.errors import wrong

PACKAGED = Path(__file__).parent / "groups"
OWN = Path("conf")
"""The user's folder where none is named."""
JOB = "job"
"""The configuration that is composed where neither a file nor a name is given."""
ENDINGS = (".yaml", ".yml")


@dataclass(frozen=True)
class Places:
    """What the command line says of places: `--config-dir` and `--config-name`."""

    config_dir: Path | None = None
    config_name: str | None = None

    def folders(self) -> list[Path]:
        """Return the folders that hold options, the first to be asked first.

        Raises ConfigError where a named folder is not there.
        """
        if self.config_dir is not None and not self.config_dir.is_dir():
            raise wrong(f"--config-dir: there is no folder {self.config_dir}")
        own = self.config_dir or (OWN if OWN.is_dir() else None)
        return [PACKAGED] if own is None else [own.absolute(), PACKAGED]

    def groups(self) -> dict[str, list[str]]:
        """Return the options of each group, sorted."""
        found: dict[str, set[str]] = {}
        for folder in self.folders():
            for file in _yaml_files(folder):
                group = file.parent.relative_to(folder).as_posix()
                if group != ".":
                    found.setdefault(group, set()).add(file.stem)
        return {group: sorted(options) for group, options in found.items()}

    def file(self, group: str, option: str) -> Path | None:
        """Return the file of an option (group "" for a configuration itself), None without."""
        name = option.removesuffix(".yaml")
        candidates = (folder / group / f"{name}.yaml" for folder in self.folders())
        return next((path for path in candidates if path.is_file()), None)


def shown(path: Path) -> str:
    """Return a path as people would write it: from here, where it lies below this folder."""
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


def _yaml_files(folder: Path) -> Iterator[Path]:
    return (path for path in folder.rglob("*.yaml") if path.is_file())

"""Makes the project's own environment; the standard library is all it needs.

    python3 bootstrap.py [--profile full|service] [--venv FOLDER]

`full` is everything, with PyTorch for the driver found here; `service` is everything but the
training stack. Nothing happens when the environment is already right.
"""

import os
import shutil
import sys

OLDEST = (3, 11)

if sys.version_info < OLDEST:  # what follows may use newer syntax than this Python knows
    for _minor in (13, 12, 11):
        _newer = shutil.which(f"python3.{_minor}")
        if _newer:
            os.execv(_newer, [_newer, *sys.argv])  # noqa: S606 - the same program again
    sys.exit(
        f"POLAR needs Python 3.11 or newer; {sys.executable} is {sys.version.split()[0]}.\n"
        "Install one (Debian and Ubuntu: apt-get install python3.11 python3.11-venv)\n"
        "or name it: make PYTHON=/path/to/python3.12"
    )

import argparse
import contextlib
import fcntl
import hashlib
import importlib.util
import platform
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent
UV = "uv>=0.13,<0.14"
TORCH = "torch==2.13.0"
EXTRAS = {"full": "service,train,stack,dev", "service": "service,stack,dev"}
GIGABYTE = 1_000_000_000


class Missing(Exception):
    """Something this machine lacks; the message says what to do."""


def say(text: str, end: str = "\n") -> None:
    """Print at once."""
    print(text, end=end, flush=True)


def has_nvidia_driver() -> bool:
    """Say whether an NVIDIA driver with a GPU is there."""
    if not Path("/proc/driver/nvidia/version").exists() and not shutil.which("nvidia-smi"):
        return False
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        listed = subprocess.run(
            ["nvidia-smi", "-L"], capture_output=True, text=True, timeout=30, check=False
        )
        return listed.returncode == 0 and "GPU" in listed.stdout
    return False


def check_python() -> None:
    """Raise Missing when this Python can't make environments."""
    if not sys.platform.startswith("linux"):
        raise Missing("POLAR runs on Linux; on other systems use docker compose up")
    missing = [name for name in ("venv", "ensurepip") if importlib.util.find_spec(name) is None]
    if missing:
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        raise Missing(
            f"this Python ({sys.executable}) lacks {' and '.join(missing)}; on Debian and Ubuntu "
            f"run: apt-get install python{version}-venv"
        )


def check_disk(needed: float) -> None:
    """Raise Missing when fewer than `needed` bytes are free for the environment."""
    free = shutil.disk_usage(ROOT).free
    if free < needed:
        raise Missing(
            f"the environment needs {needed / GIGABYTE:.1f} GB and {ROOT} has "
            f"{free / GIGABYTE:.1f} GB free; free some space and run the same command again"
        )


class Setup:
    """One environment: where it lies, what it holds, and the steps that make it."""

    def __init__(self, venv: Path, profile: str) -> None:
        self.venv = venv
        self.profile = profile
        self.python = venv / "bin" / "python"
        self.log = venv / "bootstrap.log"
        self.stamp = venv / "bootstrap.stamp"
        self.cuda = profile == "full" and has_nvidia_driver()

    @property
    def disk_needed(self) -> float:
        """Bytes that the environment takes, with what is needed meanwhile."""
        if self.profile == "service":
            return 1.5 * GIGABYTE
        return (12 if self.cuda else 4) * GIGABYTE

    def identity(self) -> str:
        """Return a hash of everything that the environment depends on."""
        parts = [sys.version, str(ROOT), str(self.venv), self.profile, str(self.cuda)]
        for name in ("pyproject.toml", "requirements.lock", "bootstrap.py"):
            parts.append((ROOT / name).read_text(encoding="utf-8"))
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()

    def is_done(self) -> bool:
        """Say whether the environment is there and made from the same inputs."""
        if not self.stamp.exists() or not self.python.exists():
            return False
        return self.stamp.read_text(encoding="utf-8") == self.identity()

    def make(self) -> None:
        """Make or update the environment; raises Missing when a step fails."""
        started = time.monotonic()
        check_python()
        check_disk(self.disk_needed)
        accelerator = "with CUDA" if self.cuda else "for the CPU"
        say(f"Setting up {self.venv.name} ({self.profile}) with Python {platform.python_version()}")
        self.step("environment", self.make_venv)
        self.step("uv", lambda: self.run("-m", "pip", "install", "--quiet", UV))
        if self.profile == "full":
            self.step(f"PyTorch {TORCH.partition('==')[2]} {accelerator}", self.install_torch)
            self.step("locked dependencies", lambda: self.uv("-r", "requirements.lock"))
            self.step("this project", lambda: self.uv("--no-deps", "-e", "."))
        else:
            target = f".[{EXTRAS[self.profile]}]"
            self.step("dependencies", lambda: self.uv("-c", "requirements.lock", "-e", target))
        self.stamp.write_text(self.identity(), encoding="utf-8")
        say(f"  ready in {time.monotonic() - started:.0f} s")

    def step(self, name: str, action: Callable[[], None]) -> None:
        """Run one step and say how long it took."""
        say(f"  {name} … ", end="")
        started = time.monotonic()
        action()
        say(f"{time.monotonic() - started:.0f} s")

    def make_venv(self) -> None:
        """Make an empty environment unless a working one of this Python and place is there."""
        probe = "import sys; print(sys.version, sys.prefix)"
        expected = f"{sys.version} {self.venv}"
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            found = subprocess.run(
                [self.python, "-c", probe], capture_output=True, text=True, timeout=60, check=False
            )
            if found.returncode == 0 and found.stdout.strip() == expected.strip():
                return
        command = [sys.executable, "-m", "venv", "--clear", str(self.venv)]
        made = subprocess.run(command, capture_output=True, text=True, check=False)
        if made.returncode:
            raise Missing(f"python -m venv failed:\n{made.stdout}{made.stderr}")

    def install_torch(self) -> None:
        """Install PyTorch: a local wheel that fits, else its own index, else the plain index."""
        installed = self.attempt(
            "-c", f"import torch; assert torch.__version__.split('+')[0] == '{TORCH[7:]}'"
        )
        if installed:
            return
        wheel = self.local_torch()
        if wheel is not None:
            self.uv(str(wheel))
            return
        backend = "auto" if self.cuda else "cpu"
        own_index = ("-m", "uv", "pip", "install", TORCH, f"--torch-backend={backend}")
        if self.attempt(*own_index):
            return
        say("its own index can't be reached, taking the package index's larger build … ", end="")
        self.uv(TORCH)

    def local_torch(self) -> Path | None:
        """Return a wheel of a find-links folder that fits this Python, machine and driver."""
        python = f"cp{sys.version_info.major}{sys.version_info.minor}"
        for folder in self.find_links().split():
            pattern = f"torch-{TORCH[7:]}*-{python}-*_{platform.machine()}.whl"
            for wheel in sorted(Path(folder.removeprefix("file://")).glob(pattern)):
                if ("+cpu" in wheel.name) != self.cuda:
                    return wheel
        return None

    def find_links(self) -> str:
        """Return pip's find-links setting: environment, else its configuration."""
        return os.environ.get("PIP_FIND_LINKS") or self.pip_setting("find-links")

    def pip_setting(self, name: str) -> str:
        """Return a setting of pip's configuration, or nothing."""
        asked = subprocess.run(
            [sys.executable, "-m", "pip", "config", "get", f"global.{name}"],
            capture_output=True,
            text=True,
            check=False,
        )
        return asked.stdout.strip() if asked.returncode == 0 else ""

    def environment(self) -> dict[str, str]:
        """Return the variables for pip and uv: uv does not read pip's settings by itself."""
        given = dict(os.environ, VIRTUAL_ENV=str(self.venv), PIP_DISABLE_PIP_VERSION_CHECK="1")
        given.setdefault("UV_HTTP_TIMEOUT", "120")
        for variable, value in (
            ("UV_FIND_LINKS", self.find_links().replace(" ", ",")),
            ("UV_DEFAULT_INDEX", given.get("PIP_INDEX_URL") or self.pip_setting("index-url")),
            ("SSL_CERT_FILE", given.get("PIP_CERT") or self.pip_setting("cert")),
        ):
            if value:
                given.setdefault(variable, value)
        if not os.access(Path.home(), os.W_OK):
            given.setdefault("UV_NO_CACHE", "1")
        return given

    def attempt(self, *arguments: str) -> bool:
        """Run the environment's Python; say whether it succeeded. Its output goes to the log."""
        with self.log.open("ab") as log:
            command = [str(self.python), *arguments]
            log.write(f"$ {' '.join(arguments)}\n".encode())
            log.flush()
            done = subprocess.run(
                command, cwd=ROOT, env=self.environment(), stdout=log, stderr=log, check=False
            )
        return done.returncode == 0

    def run(self, *arguments: str) -> None:
        """Run the environment's Python; raises Missing with the end of its output."""
        if not self.attempt(*arguments):
            tail = self.log.read_text(encoding="utf-8", errors="replace").splitlines()[-25:]
            raise Missing("this step failed:\n" + "\n".join(tail) + f"\n(all of it: {self.log})")

    def uv(self, *arguments: str) -> None:
        """Install with uv; raises Missing when that fails."""
        self.run("-m", "uv", "pip", "install", *arguments)


def main() -> int:
    """Make the environment that the arguments name; 1 when something is missing."""
    parser = argparse.ArgumentParser(description="Make POLAR's environment.")
    parser.add_argument("--profile", choices=sorted(EXTRAS), default="full")
    parser.add_argument("--venv", default=".venv")
    options = parser.parse_args()
    sys.stdout.reconfigure(errors="replace")  # type: ignore[union-attr]
    setup = Setup(ROOT / options.venv, options.profile)
    folder = os.open(ROOT, os.O_RDONLY)
    fcntl.flock(folder, fcntl.LOCK_EX)  # two makes at once: the second waits and finds it done
    try:
        if not setup.is_done():
            setup.make()
    except Missing as missing:
        say(f"\nCannot set up POLAR: {missing}")
        return 1
    finally:
        os.close(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())

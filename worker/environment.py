"""What a trainer may know of our environment: what it needs to run, and none of our secrets."""

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

import psutil

from app.settings import Settings
from trainer_core.confine import KEEP_OUT, MEMORY
from trainer_core.outbound import REACHABLE

ATTEMPT_MARK = "POLAR_ATTEMPT_ID"
STACK_MARK = "POLAR_STACK_PID"

_NAMES = frozenset(
    {
        *("PATH", "HOME", "USER", "LOGNAME", "LANG", "LANGUAGE", "TZ", "TMPDIR", "PYTHONPATH"),
        *("LD_LIBRARY_PATH", "VIRTUAL_ENV", "XDG_CACHE_HOME", "CC", "CXX"),
        *("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"),
        *("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy"),
        STACK_MARK,
    }
)
_FAMILIES = ("LC_", "HF_", "TRANSFORMERS_", "PYTORCH_", "TORCH_", "CUDA_", "NVIDIA_", "NCCL_")
# Read when a library is imported: a fork of a process that imported it comes too late.
_IMPORT_TIME = ("HF_", "TRANSFORMERS_", "PYTORCH_", "TORCH_", "LD_", "PYTHONPATH")
_SECRET_WORDS = ("TOKEN", "SECRET", "PASSWORD", "_KEY", "CREDENTIAL")


def clean_environment(source: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the variables of `source` (default: ours) that a trainer may see."""
    source = os.environ if source is None else source
    return {name: value for name, value in source.items() if _may_see(name)}


def _may_see(name: str) -> bool:
    if any(word in name for word in _SECRET_WORDS):
        return False
    return name in _NAMES or name.startswith(_FAMILIES)


def bounds(settings: Settings, work: Path) -> dict[str, str]:
    """Return the variables that say what a trainer in this work folder keeps and may reach.

    What libraries compile goes below the data folder, for of its user's own folders a trainer can
    only reach what was there before it.
    """
    compiled = settings.home / "cache" / "compiled"
    return {
        KEEP_OUT: str(settings.home),
        REACHABLE: ",".join(settings.outbound_allow),
        "XDG_CACHE_HOME": str(compiled),
        "TRITON_CACHE_DIR": str(compiled / "triton"),
        "TORCHINDUCTOR_CACHE_DIR": str(compiled / "inductor"),
        "CUDA_CACHE_PATH": str(compiled / "cuda"),
    } | ({"TMPDIR": str(work)} if settings.home.is_relative_to(tempfile.gettempdir()) else {})


def memory_bound(settings: Settings) -> dict[str, str]:
    """Return the variable that bounds the memory of a preparation: half of the host's, or 4 GiB."""
    half = max(psutil.virtual_memory().total // 2, 4 << 30)
    return {MEMORY: str(int(settings.prepare_memory_gb * 2**30) or half)}


def import_time(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that only count for a process that starts with them."""
    return {k: v for k, v in environment.items() if k.startswith(_IMPORT_TIME)}

"""What a trainer may know of our environment: what it needs to run, and none of our secrets."""

import os
from collections.abc import Mapping

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


def import_time(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that only count for a process that starts with them."""
    return {k: v for k, v in environment.items() if k.startswith(_IMPORT_TIME)}

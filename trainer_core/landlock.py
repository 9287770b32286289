"""Linux' Landlock: a process gives up, for itself and its children, all files but some.

Needs no privileges and holds for root as well. Older kernels do not have it (5.13 brought it).
"""

import ctypes
import os
import stat
from collections.abc import Iterable

_CREATE, _ADD_RULE, _RESTRICT = 444, 445, 446  # system calls, the same on every machine
_VERSION_FLAG, _RULE_PATH_BENEATH = 1, 1
_RIGHTS_OF_VERSION = (0, 13, 14, 15, 15, 16)  # how many file rights each version knows
_FILE_RIGHTS = 0b1100000000000111  # execute, write, read, truncate, device ioctl
_SCOPED = 0b11  # abstract sockets and signals stay within (version 6)
_PR_SET_NO_NEW_PRIVS = 38
_CAPABILITIES_VERSION = 0x20080522
# Of root's capabilities only those that open its own files, pin memory and set priorities: others
# would let it look into processes outside of what Landlock leaves it.
_KEPT_CAPABILITIES = sum(1 << number for number in (0, 1, 2, 3, 4, 14, 23))


class _Ruleset(ctypes.Structure):
    _fields_ = [
        ("files", ctypes.c_uint64),
        ("network", ctypes.c_uint64),
        ("scoped", ctypes.c_uint64),
    ]


class _PathBeneath(ctypes.Structure):
    _pack_ = 1
    _layout_ = "ms"
    _fields_ = [("allowed", ctypes.c_uint64), ("parent", ctypes.c_int32)]


_libc = ctypes.CDLL(None, use_errno=True)


def version() -> int:
    """The kernel's version of Landlock; 0: it has none, or it is switched off."""
    return max(int(_libc.syscall(_CREATE, None, ctypes.c_size_t(0), _VERSION_FLAG)), 0)


def shed_privileges() -> None:
    """Keep no more of root's capabilities than files need, and never gain privileges again."""
    _libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    header = (ctypes.c_uint32 * 2)(_CAPABILITIES_VERSION, 0)
    sets = (ctypes.c_uint32 * 6)()  # effective, permitted and inheritable; low bits, then high
    if _libc.capget(header, sets) == 0:
        low = [bits & _KEPT_CAPABILITIES for bits in sets[:3]]
        _libc.capset(header, (ctypes.c_uint32 * 6)(*low))


def restrict_to(paths: Iterable[str]) -> None:
    """Leave this thread, and what it starts, only what lies at or below these paths.

    Other processes outside can then neither be signalled nor looked into. Raises OSError where
    the kernel refuses.
    """
    known = version()
    every = (1 << _RIGHTS_OF_VERSION[min(known, len(_RIGHTS_OF_VERSION) - 1)]) - 1
    attributes = _Ruleset(every, 0, _SCOPED if known >= 6 else 0)
    size = 24 if known >= 6 else 8
    ruleset = _checked(_libc.syscall(_CREATE, ctypes.byref(attributes), ctypes.c_size_t(size), 0))
    try:
        for path in paths:
            _allow(ruleset, path, every)
        shed_privileges()
        _checked(_libc.syscall(_RESTRICT, ruleset, 0))
    finally:
        os.close(ruleset)


def _allow(ruleset: int, path: str, every: int) -> None:
    try:
        opened = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return  # it is not there, or not ours
    try:
        folder = stat.S_ISDIR(os.fstat(opened).st_mode)
        rule = _PathBeneath(every if folder else every & _FILE_RIGHTS, opened)
        added = _libc.syscall(_ADD_RULE, ruleset, _RULE_PATH_BENEATH, ctypes.byref(rule), 0)
        _checked(added)
    finally:
        os.close(opened)


def _checked(result: int) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result

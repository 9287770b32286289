"""Run a module of ours with a wall clock that is wrong by some seconds.

    python clock.py SECONDS MODULE [ARGUMENT ...]

libc's `clock_gettime` is rewritten in this process (and so in its forks): all that asks for the
date, in Python or in C, gets another one. Clocks that only measure time are as they were, as on a
host whose date is wrong. No compiler, library or privilege is needed; x86-64 only.
"""

import ctypes
import mmap
import platform
import runpy
import struct
import sys
import time

_PAGE = mmap.PAGESIZE


def can_shift() -> bool:
    """Say whether this machine's code is known."""
    return sys.platform == "linux" and platform.machine() == "x86_64"


def _code(seconds: int) -> bytes:
    """clock_gettime(clock in edi, time in rsi): the system call, and a shift of the date."""
    return b"".join(
        (
            b"\xf3\x0f\x1e\xfa",  # endbr64
            b"\xb8" + struct.pack("<i", 228),  # mov eax, 228 (clock_gettime)
            b"\x0f\x05",  # syscall
            b"\x85\xc0\x75\x0b",  # test eax, eax; jnz the end: it failed
            b"\x85\xff\x75\x07",  # test edi, edi; jnz the end: not CLOCK_REALTIME
            b"\x48\x81\x06" + struct.pack("<i", seconds),  # add qword [rsi], seconds
            b"\xc3",  # ret
        )
    )


def shift(seconds: float) -> None:
    """Have everything in this process say another date from now on."""
    libc = ctypes.CDLL(None)
    address = ctypes.cast(libc.clock_gettime, ctypes.c_void_p).value
    assert address is not None
    code = _code(int(seconds))
    first = address & -_PAGE
    size = (address + len(code) - first + _PAGE - 1) & -_PAGE
    everything = mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC
    before = time.time()
    if libc.mprotect(ctypes.c_void_p(first), ctypes.c_size_t(size), everything):
        raise OSError("libc may not be rewritten here")
    ctypes.memmove(address, code, len(code))
    libc.mprotect(ctypes.c_void_p(first), ctypes.c_size_t(size), mmap.PROT_READ | mmap.PROT_EXEC)
    assert abs(time.time() - before - int(seconds)) < 60


if __name__ == "__main__":
    sys.path.pop(0)  # this folder: its modules are none of the program's business
    shift(float(sys.argv[1]))
    module = sys.argv[2]
    sys.argv[:] = sys.argv[2:]
    runpy.run_module(module, run_name="__main__", alter_sys=True)

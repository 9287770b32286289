"""Memory of freed tensors stays with a process that trains, instead of going back and forth.

A step frees its activations and asks for the same again in the next one. By default glibc returns
them in between, and the kernel then fills every page with zeros anew: up to a fifth of a small
step on a CPU. What is kept is bounded, and is memory that the last step needed as well.
"""

import ctypes

# Numbers of mallopt(3), as malloc.h has them.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_OWN_MAPPING = 32 * 2**20
"""Bytes from which a block has a mapping of its own: the most that glibc takes."""
_KEPT = 256 * 2**20
"""Free bytes at the end of the heap that are not returned."""


def keep_freed() -> None:
    """Have malloc keep what is freed from here on, up to 256 MiB, for blocks of up to 32 MiB.

    Does nothing where the C library is not glibc.
    """
    try:
        set_option = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # another C library; TypeError: Windows
        return
    set_option(_MMAP_THRESHOLD, _OWN_MAPPING)
    set_option(_TRIM_THRESHOLD, _KEPT)

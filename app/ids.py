"""Sortable, unguessable ids: a prefix and a ULID (48 bits of milliseconds, 80 random bits)."""

import secrets
import time

_ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"  # Crockford's base 32


def new_id(prefix: str) -> str:
    """Return `<prefix>_<26 characters>`, sortable by creation time in milliseconds.

    Layout: https://github.com/ulid/spec.
    """
    value = (time.time_ns() // 1_000_000) << 80 | secrets.randbits(80)
    return f"{prefix}_" + "".join(_ALPHABET[value >> shift & 31] for shift in range(125, -1, -5))

"""Seeds for everything, derived from the run's seed and a name: no random state to store or restore."""

from __future__ import annotations

import hashlib


def derive_seed(*parts: int | str) -> int:
    """Return a 63-bit seed that depends on every part and on nothing else.

    Parts are joined with their types, so (1, "2") and ("1", 2) differ.
    """
    text = "\x1f".join(f"{type(part).__name__}:{part}" for part in parts)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1

"""Files that are there whole or not at all."""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Iterable
from pathlib import Path


def write(path: Path, chunks: Iterable[bytes]) -> str:
    """Write a file of which one chunk at a time is in memory, atomically; return its SHA-256."""
    draft, digest = path.with_name(f".{path.name}-{secrets.token_hex(4)}"), hashlib.sha256()
    try:
        with draft.open("wb") as file:
            for chunk in chunks:
                digest.update(chunk)
                file.write(chunk)
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)
    return digest.hexdigest()


__all__ = ["write"]

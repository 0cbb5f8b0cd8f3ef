"""Files that are there whole or not at all."""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from qfunc.errors import FileError


def write(path: Path, chunks: Iterable[bytes]) -> str:
    """Write a file of which one chunk at a time is in memory, atomically; return its SHA-256.

    Raises:
        FileError: the system refuses it, as on a full disk; an older file of this path stays.
    """
    digest = hashlib.sha256()
    with _draft(path) as draft:
        with draft.open("wb") as file:
            for chunk in chunks:
                digest.update(chunk)
                file.write(chunk)
            file.flush()
            os.fsync(file.fileno())  # a machine that loses power has the old file or the new one
        os.replace(draft, path)
    return digest.hexdigest()


def require_writable(path: Path) -> None:
    """Refuse a path at which no file can be created.

    Raises:
        FileError: the folder is missing or read-only, or the name is too long.
    """
    with _draft(path) as draft:
        draft.touch()


@contextmanager
def _draft(path: Path) -> Iterator[Path]:
    # Yield the path of a file in the same folder, which is deleted at the end.
    draft = path.with_name(f".{path.name}-{secrets.token_hex(4)}")
    try:
        try:
            yield draft
        finally:
            draft.unlink(missing_ok=True)
    except OSError as e:
        found, wanted = (e.strerror or str(e)).lower(), "a file that can be written"
        do = "Make space there, or choose another place; an older file there is unchanged."
        raise FileError(where=str(path), found=found, wanted=wanted, do=do) from e

"""Files of a folder: regular ones of limited size, no links to elsewhere."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import BinaryIO

from qfunc.errors import FileError
from qfunc.files.json_text import damage_error

LARGEST = 1 << 34
"""The largest number of bytes of a file that is read whole."""

_COPY = "Copy the file itself to that place."


def is_plain_name(name: object) -> bool:
    """Return True for a name of a file in a folder on every system: without folders, drives and control characters.

    >>> [is_plain_name(n) for n in ("model.onnx", "../model.onnx", "/etc/passwd", "a\\\\b", "c:x", "", "..", None)]
    [True, False, False, False, False, False, False, False]
    """
    if not isinstance(name, str) or name in ("", ".", "..") or len(name.encode(errors="replace")) > 255:
        return False
    return name.isprintable() and not any(c in name for c in "/\\:")


def open_file(path: Path) -> BinaryIO:
    """Open a regular file for reading; a link is not followed, and a pipe is not waited for.

    Raises:
        FileError: it is something else, it is too large, or it cannot be read.
    """
    if path.is_symlink():
        raise FileError(where=str(path), found=f"a link to {os.readlink(path)!r}", wanted="a file", do=_COPY)
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    try:
        file = os.fdopen(os.open(path, flags), "rb")
    except OSError as e:
        raise FileError(where=str(path), found=(e.strerror or str(e)).lower(), wanted="a file", do=_COPY) from e
    status = os.fstat(file.fileno())
    if not stat.S_ISREG(status.st_mode):
        file.close()
        raise FileError(where=str(path), found="a device or pipe", wanted="a file", do=_COPY)
    if status.st_size > LARGEST:
        file.close()
        raise damage_error(str(path), "", f"{status.st_size:,} bytes", f"at most {LARGEST:,}")
    return file


def read_file(path: Path) -> bytes:
    """Return the bytes of a regular file.

    Raises:
        FileError: it is something else, it is too large, or it cannot be read.
    """
    with open_file(path) as file:
        return file.read()


def read_folder(place: Path) -> dict[str, bytes]:
    """Return the files of a folder by name, without its folders.

    Raises:
        FileError: one is a link, it is too large, or it cannot be read.
    """
    try:
        paths = sorted(place.iterdir())
    except OSError as e:
        raise FileError(where=str(place), found=(e.strerror or str(e)).lower(), wanted="a folder", do=_COPY) from e
    return {p.name: read_file(p) for p in paths if p.is_symlink() or p.is_file()}

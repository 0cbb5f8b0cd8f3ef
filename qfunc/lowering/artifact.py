"""Artifacts: the files that a toolchain loads, as bytes."""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from attrs import field, frozen

from qfunc.errors import DeployError, FileError, a_or_an
from qfunc.files.fields import Object, require
from qfunc.files.folder import is_plain_name
from qfunc.files.json_text import parse

REPORT = "qfunc.json"


def file_of(files: Mapping[str, bytes], name: str) -> bytes:
    """Return one file of an artifact by its default name, "model.onnx", whatever the stem of its files.

    Raises:
        FileError: there is no such file.
    """
    return files[name_of_file(files, name)]


def name_of_file(files: Mapping[str, bytes], name: str) -> str:
    """Return the name of one file of an artifact, by its default name.

    Raises:
        FileError: there is no such file.
    """
    if name in files:
        return name
    renamed = name.startswith("model.") and not any(n.startswith(("model.", "model_")) for n in files)
    named = [n for n in files if renamed and n.endswith(name.removeprefix("model"))]
    if not named:
        do = "Deploy the model for the target of this runner."
        raise FileError(where=name, found=f"no such file among {', '.join(sorted(files))}", wanted="one", do=do)
    return min(named, key=len)  # net.onnx, not net_float.onnx


def digests(files: Mapping[str, bytes]) -> dict[str, str]:
    """Return the SHA-256 of each file but the report, which holds them."""
    return {name: hashlib.sha256(content).hexdigest() for name, content in sorted(files.items()) if name != REPORT}


def as_bytes(files: Mapping[str, bytes]) -> Mapping[str, bytes]:
    """Return a view of files that nobody can change.

    Raises:
        DeployError: a file that is not bytes.
    """
    for name, content in files.items():
        if not isinstance(content, bytes | bytearray | memoryview):
            do = "Let the lowering return bytes: text.encode()."
            raise DeployError(where=f"Artifact.files[{name!r}]", found=a_or_an(type(content)), wanted="bytes", do=do)
    return MappingProxyType({name: bytes(content) for name, content in files.items()})


@frozen(eq=False)
class Artifact:
    """A frozen mapping from file name to bytes.

    `files["qfunc.json"]` is the report of the deployment: versions, target, the qparams of every tensor, the
    predicted units, the SHA-256 of each other file.

    Raises:
        DeployError: a name that is no plain file name, a content that is not bytes, or no report.

    >>> Artifact({"model.onnx": b"", "qfunc.json": b"{}"}).files.keys()
    dict_keys(['model.onnx', 'qfunc.json'])
    """

    files: Mapping[str, bytes] = field(converter=as_bytes, repr=lambda files: f"{sorted(files)}")

    def __attrs_post_init__(self) -> None:
        for name in self.files:
            if not is_plain_name(name):
                do = "Return names without folders from the lowering."
                raise DeployError(where="Artifact.files", found=repr(name), wanted="a plain file name", do=do)
        if REPORT not in self.files:
            do = f"Add {REPORT!r}, which marks a directory as an artifact."
            raise DeployError(where="Artifact.files", found=f"{sorted(self.files)}", wanted="a report", do=do)

    def __reduce__(self) -> tuple[Any, ...]:
        return Artifact, (dict(self.files),)

    @property
    def report(self) -> dict[str, Any]:
        """A new copy of the report."""
        found: dict[str, Any] = require(Object(), parse(self.files[REPORT], REPORT), REPORT)
        return found

    def save(self, directory: str | os.PathLike[str]) -> Path:
        """Write all files or none: an earlier artifact stays until the new one is complete.

        Args:
            directory: New or empty, or an earlier artifact of the same files, which is replaced.
        Raises:
            DeployError: the path is a file, or a directory with other files.
        """
        if not isinstance(directory, str | os.PathLike):
            do = "Write artifact.save('directory')."
            raise DeployError(where="Artifact.save", found=repr(directory), wanted="a directory", do=do)
        path = Path(directory).resolve()
        file = next((p for p in path.parents if p.is_file()), None)
        if file is not None:
            where, found = f"Artifact.save({str(directory)!r})", f"a file in the path, {file.name!r}"
            raise DeployError(where=where, found=found, wanted="a directory", do="Choose a path of directories.")
        if path.exists() and (foreign := self._foreign(path)):
            do = "Choose a new or empty directory."
            raise DeployError(where=f"Artifact.save({str(directory)!r})", found=foreign, wanted="an empty directory", do=do)
        path.parent.mkdir(parents=True, exist_ok=True)
        draft, old = (path.with_name(f".{path.name}-{secrets.token_hex(4)}") for _ in range(2))
        try:
            draft.mkdir()
            for name, content in self.files.items():
                (draft / name).write_bytes(content)
            if path.exists():
                os.replace(path, old)
            try:
                os.replace(draft, path)
            except BaseException:
                if old.exists():
                    os.replace(old, path)
                raise
        finally:
            shutil.rmtree(draft, ignore_errors=True)
            shutil.rmtree(old, ignore_errors=True)
        return path

    def _foreign(self, path: Path) -> str:
        # The content that is no part of an earlier artifact, or "".
        if not path.is_dir():
            return "a file"
        names = sorted(p.name for p in path.iterdir())
        others = [name for name in names if name not in self.files or not (path / name).is_file()]
        if others or (names and REPORT not in names):
            return f"a directory with other files ({', '.join((others or names)[:3])})"
        return ""

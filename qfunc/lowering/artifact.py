"""Artifacts: what a vendor's toolchain loads, as bytes."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from attrs import field, frozen

from qfunc.errors import DeployError, FileError
from qfunc.files.fields import Object, require
from qfunc.files.folder import is_plain_name
from qfunc.files.json_text import parse

REPORT = "qfunc.json"


def file_of(files: Mapping[str, bytes], name: str) -> bytes:
    """Return one file of an artifact.

    Raises:
        FileError: there is no such file.
    """
    if name not in files:
        do = "Deploy the model for the target of this runner."
        raise FileError(where=name, found=f"no such file among {', '.join(sorted(files))}", wanted="one", do=do)
    return files[name]


def _view(files: Mapping[str, bytes]) -> Mapping[str, bytes]:
    return MappingProxyType({name: bytes(content) for name, content in files.items()})


@frozen(eq=False)
class Artifact:
    """A frozen mapping from file name to bytes.

    `files["qfunc.json"]` is the report of how it was made: versions, target, the qparams of every tensor,
    the predicted units.

    Raises:
        DeployError: a name that is no plain file name, or no report.

    >>> Artifact({"model.onnx": b"", "qfunc.json": b"{}"}).files.keys()
    dict_keys(['model.onnx', 'qfunc.json'])
    """

    files: Mapping[str, bytes] = field(converter=_view, repr=lambda files: f"{sorted(files)}")

    def __attrs_post_init__(self) -> None:
        for name in self.files:
            if not is_plain_name(name):
                do = "Let the lowering return names without folders."
                raise DeployError(where="Artifact.files", found=repr(name), wanted="a plain file name", do=do)
        if REPORT not in self.files:
            do = f"Add {REPORT!r}, by which a directory is known as an artifact."
            raise DeployError(where="Artifact.files", found=f"{sorted(self.files)}", wanted="a report", do=do)

    def __reduce__(self) -> tuple[Any, ...]:
        return Artifact, (dict(self.files),)

    @property
    def report(self) -> dict[str, Any]:
        """The report, read anew: changing it changes nothing."""
        found: dict[str, Any] = require(Object(), parse(self.files[REPORT], REPORT), REPORT)
        return found

    def save(self, directory: str | os.PathLike[str]) -> Path:
        """Writes all files, or none: an earlier artifact stays as it is until the new one is complete.

        Args:
            directory: New, empty, or holding an earlier artifact of the same files, which is replaced.
        Raises:
            DeployError: the place is a file, or a directory that holds something else.
        """
        if not isinstance(directory, str | os.PathLike):
            do = "Write artifact.save('directory')."
            raise DeployError(where="Artifact.save", found=repr(directory), wanted="a directory", do=do)
        place = Path(directory).resolve()
        file = next((p for p in place.parents if p.is_file()), None)
        if file is not None:
            where, found = f"Artifact.save({str(directory)!r})", f"a file on the way, {file.name!r}"
            raise DeployError(where=where, found=found, wanted="a directory", do="Choose a path through directories.")
        if place.exists() and (foreign := self._foreign(place)):
            do = "Choose a new or empty directory."
            raise DeployError(where=f"Artifact.save({str(directory)!r})", found=foreign, wanted="an empty directory", do=do)
        place.parent.mkdir(parents=True, exist_ok=True)
        draft, old = (place.with_name(f".{place.name}-{secrets.token_hex(4)}") for _ in range(2))
        try:
            draft.mkdir()
            for name, content in self.files.items():
                (draft / name).write_bytes(content)
            if place.exists():
                os.replace(place, old)
            try:
                os.replace(draft, place)
            except BaseException:
                if old.exists():
                    os.replace(old, place)
                raise
        finally:
            shutil.rmtree(draft, ignore_errors=True)
            shutil.rmtree(old, ignore_errors=True)
        return place

    def _foreign(self, place: Path) -> str:
        # What is there besides an earlier artifact, or "".
        if not place.is_dir():
            return "a file"
        there = sorted(p.name for p in place.iterdir())
        others = [name for name in there if name not in self.files or not (place / name).is_file()]
        if others or (there and REPORT not in there):
            return f"a directory with other files ({', '.join((others or there)[:3])})"
        return ""

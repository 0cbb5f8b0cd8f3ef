"""Artifacts: what a vendor's toolchain loads, as bytes."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from attrs import field, frozen

from qfunc.errors import DeployError

REPORT = "qfunc.json"


def _view(files: Mapping[str, bytes]) -> Mapping[str, bytes]:
    return MappingProxyType(dict(files))


@frozen(eq=False)
class Artifact:
    """A frozen mapping from file name to bytes, and the report that says how it was made.

    `files["qfunc.json"]` is the report: versions, target, the qparams of every tensor, the predicted units.

    >>> Artifact({"model.onnx": b"", "qfunc.json": b"{}"}, {}).files.keys()
    dict_keys(['model.onnx', 'qfunc.json'])
    """

    files: Mapping[str, bytes] = field(converter=_view)
    report: Mapping[str, Any] = field(repr=False)

    def save(self, directory: str | os.PathLike[str]) -> Path:
        """Writes all files, or none.

        Args:
            directory: New, empty, or holding an earlier artifact, which is replaced.
        Raises:
            DeployError: the directory holds something else.
        """
        place = Path(directory)
        if place.exists() and not self._replaceable(place):
            do = "Choose a new or empty directory."
            raise DeployError(where=f"Artifact.save({str(place)!r})", found="a place with other files", wanted="an empty directory", do=do)
        place.parent.mkdir(parents=True, exist_ok=True)
        draft = Path(tempfile.mkdtemp(prefix=f".{place.name}-", dir=place.parent))
        try:
            for name, content in self.files.items():
                (draft / name).write_bytes(content)
            draft.chmod(0o755)
            if place.exists():
                old = Path(tempfile.mkdtemp(prefix=f".{place.name}-old-", dir=place.parent))
                os.replace(place, old / "artifact")
                os.replace(draft, place)
                shutil.rmtree(old)
            else:
                os.replace(draft, place)
        finally:
            shutil.rmtree(draft, ignore_errors=True)
        return place

    @staticmethod
    def _replaceable(place: Path) -> bool:
        return place.is_dir() and (not any(place.iterdir()) or (place / REPORT).is_file())

"""Rows of a sweep on disk, so that a sweep that was stopped goes on."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from attrs import asdict
from torch import Tensor, fx

from qfunc.errors import FileError
from qfunc.files.folder import is_plain_name
from qfunc.lowering.artifact import Artifact
from qfunc.sweeps.report import SweepRow


class Stored:
    """The rows in a folder: `NAME.json` has a row and the digest of what it was measured on, `NAME` the files of the target.

    Args:
        folder: New or empty, or that of an earlier sweep.
        digest: The digest of all that the targets share.
    Raises:
        FileError: the path is a file, or a name of a target is no name of a file.
    """

    def __init__(self, folder: str | os.PathLike[str], names: Iterable[str], digest: str) -> None:
        self.folder, self.digest = Path(folder).resolve(), digest
        if self.folder.exists() and not self.folder.is_dir():
            where = f"sweep, folder {str(folder)!r}"
            raise FileError(where=where, found="a file", wanted="a folder", do="Choose the path of a folder.")
        for name in names:
            if not is_plain_name(name):
                do = "Pass a dict of short names to targets."
                raise FileError(where="sweep, targets", found=repr(name), wanted="names of files", do=do)

    def row(self, name: str, text: str) -> SweepRow | None:
        """Return the stored row of a target whose `repr` is `text`; None if there is none, or if it is of other values."""
        path = self.folder / f"{name}.json"
        if not path.is_file():
            return None
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
            if found["digest"] != self._digest(text):
                return None
            row = SweepRow(**found["row"])
        except (ValueError, KeyError, TypeError) as e:
            do = "Delete it, so that the target is measured again."
            raise FileError(where=str(path), found=f"a damaged row ({e})", wanted="a row of sweep", do=do) from e
        return row if row.size is None or (self.folder / name).is_dir() else None

    def artifact(self, name: str) -> Artifact:
        """Return the stored files of a target."""
        return Artifact({path.name: path.read_bytes() for path in (self.folder / name).iterdir()})

    def write(self, text: str, row: SweepRow, artifact: Artifact | None) -> None:
        """Store the files of a target, then its row."""
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"{row.name}.json"
        path.unlink(missing_ok=True)
        shutil.rmtree(self.folder / row.name, ignore_errors=True)
        if artifact is not None:
            artifact.save(self.folder / row.name)
        draft = path.with_name(f".{path.name}-{secrets.token_hex(4)}")
        draft.write_text(json.dumps({"digest": self._digest(text), "row": asdict(row)}, indent=1), encoding="utf-8")
        os.replace(draft, path)

    def _digest(self, text: str) -> str:
        return hashlib.sha256(f"{self.digest}\n{text}".encode()).hexdigest()


def digest_of(network: fx.GraphModule, tensors: Iterable[Tensor], functions: Iterable[Any]) -> str:
    """Return a digest of a float network, of tensors such as those of the first batches, and of the names of functions."""
    found = hashlib.sha256()
    for name, tensor in sorted(network.state_dict().items()):
        found.update(name.encode() + _bytes(tensor))
    found.update(network.code.encode() + b"".join(map(_bytes, tensors)))
    found.update("\n".join(_name(f) for f in functions).encode())
    return found.hexdigest()


def _name(function: Any) -> str:
    return f"{getattr(function, '__module__', '')}.{getattr(function, '__qualname__', repr(function))}"


def _bytes(tensor: Tensor) -> bytes:
    value = tensor.detach().cpu().contiguous()
    return f"{value.dtype}{list(value.shape)}".encode() + value.flatten().view(torch.uint8).numpy().tobytes()


__all__ = ["Stored", "digest_of"]

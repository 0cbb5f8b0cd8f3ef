"""Checkpoints of finished units, from which an interrupted reconstruction resumes."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import save as to_bytes
from torch import Tensor

from qfunc.errors import CalibrationError, FileError
from qfunc.files.fields import Keyed, Text, describe, require
from qfunc.files.folder import read_file
from qfunc.files.json_text import parse
from qfunc.files.tensors import read_tensors
from qfunc.files.whole import write
from qfunc.numerics.qparams import Affine
from qfunc.reconstruction.optimize import Optimized

_INDEX = "reconstruction.json"
_DELETE = "Delete that file; its unit is then reconstructed again."


class Checkpoint:
    """The directory of one reconstruction: one file per unit, and an index that identifies the reconstruction.

    Args:
        directory: The directory, new or of a reconstruction of the same model, method and batches; None stores nothing.
        digests: Digests or texts of everything that the units depend on, by name.
    Raises:
        CalibrationError: the directory has other files, or units of another reconstruction.
        FileError: the index is damaged.
    """

    def __init__(self, directory: str | os.PathLike[str] | None, digests: Mapping[str, str]) -> None:
        self.directory = None if directory is None else Path(directory)
        if self.directory is None:
            return
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
        except OSError as e:
            self._refuse((e.strerror or str(e)).lower(), "a directory that can be written")
        index = self.directory / _INDEX
        files = sorted(p.name for p in self.directory.iterdir() if not p.name.startswith("."))
        if not index.is_file():
            if files:
                self._refuse(f"other files ({', '.join(files[:3])})", "an empty directory, or one written with resume=")
            write(index, [(json.dumps(dict(digests), indent=1, sort_keys=True) + "\n").encode()])
            return
        stored = require(Keyed(Text()), parse(read_file(index), str(index)), str(index))
        for name, digest in digests.items():
            if stored.get(name) != digest:
                self._refuse(f"units of another {name}", f"the units of this {name}")

    def _refuse(self, found: str, wanted: str) -> None:
        do = "Use another directory."
        raise CalibrationError(where=f"reconstruct, resume={str(self.directory)!r}", found=found, wanted=wanted, do=do)

    def read(self, number: int, like: Optimized) -> Optimized | None:
        """Return the result of unit `number`, or None if it is not stored.

        Args:
            number: The unit.
            like: A result of this unit, with the names, shapes and dtypes that the stored one must have.
        Raises:
            FileError: the file is damaged, or not of this unit.
        """
        path = None if self.directory is None else self._path(number)
        if path is None or not path.is_file():
            return None
        try:
            tensors = read_tensors(path)
        except FileError as e:
            raise FileError(where=e.where, found=e.found, wanted=e.wanted, do=_DELETE) from e
        expected = _tensors(like)
        if tensors.keys() != expected.keys():  # scales that are not learned are not stored
            expected = {name: t for name, t in expected.items() if name.startswith("up:")}
        for name in sorted(tensors.keys() | expected.keys()):
            where = f"{path}: {describe(name)}"
            found, wanted = _describe(tensors.get(name)), _describe(expected.get(name))
            if found != wanted:
                raise FileError(where=where, found=found, wanted=wanted, do=_DELETE)
            if name.startswith("scale:") and not bool((tensors[name].isfinite() & (tensors[name] > 0)).all()):
                raise FileError(where=where, found="a scale that is not", wanted="finite positive scales", do=_DELETE)
        up, scale, zero = ({k[len(p) :]: t for k, t in tensors.items() if k.startswith(p)} for p in ("up:", "scale:", "zero:"))
        return Optimized({k: t.bool() for k, t in up.items()}, {k: Affine(scale[k], zero[k]) for k in scale})

    def write(self, number: int, result: Optimized, metadata: Mapping[str, str]) -> None:
        """Write the result of unit `number` atomically."""
        if self.directory is None:
            return
        copies = {name: t.detach().cpu().clone().contiguous() for name, t in _tensors(result).items()}
        write(self._path(number), [to_bytes(copies, dict(metadata))])

    def _path(self, number: int) -> Path:
        assert self.directory is not None
        return self.directory / f"unit-{number:04}.safetensors"


def _tensors(result: Optimized) -> dict[str, Tensor]:
    # The tensors of a file by name.
    tensors = {f"up:{path}": up.to(torch.uint8) for path, up in result.up.items()}
    tensors |= {f"scale:{path}": q.scale for path, q in result.qparams.items()}
    return tensors | {f"zero:{path}": q.zero_point for path, q in result.qparams.items()}


def _describe(tensor: Tensor | None) -> str:
    return "no such tensor" if tensor is None else f"{str(tensor.dtype).removeprefix('torch.')} of shape {tuple(tensor.shape)}"

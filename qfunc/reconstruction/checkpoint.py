"""Finished units in a directory, from which an interrupted reconstruction goes on."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from safetensors.torch import save as to_bytes
from torch import Tensor

from qfunc.errors import CalibrationError
from qfunc.numerics.qparams import Affine
from qfunc.reconstruction.optimize import Optimized

_INDEX = "reconstruction.json"


class Checkpoint:
    """What a directory holds of one reconstruction: a file a unit, and what they belong to.

    Args:
        place: The directory, new or of a reconstruction of the same model, method and batches; None keeps nothing.
        belongs: Digests or texts of what the units depend on, by a word for each.
    Raises:
        CalibrationError: it holds something else, or units of another reconstruction.
    """

    def __init__(self, place: str | os.PathLike[str] | None, belongs: Mapping[str, str]) -> None:
        self.place = None if place is None else Path(place)
        if self.place is None:
            return
        self.place.mkdir(parents=True, exist_ok=True)
        index = self.place / _INDEX
        there = sorted(p.name for p in self.place.iterdir() if not p.name.startswith("."))
        if not index.is_file():
            if there:
                self._refuse(f"other files ({', '.join(there[:3])})", "an empty directory, or one that resume= made")
            _write(index, (json.dumps(dict(belongs), indent=1, sort_keys=True) + "\n").encode())
            return
        try:
            held = dict(json.loads(index.read_text()))
        except ValueError:
            held = {}
        for word, digest in belongs.items():
            if held.get(word) != digest:
                self._refuse(f"units of another {word}", f"those of this {word}")

    def _refuse(self, found: str, wanted: str) -> None:
        do = "Give another directory."
        raise CalibrationError(where=f"reconstruct, resume={str(self.place)!r}", found=found, wanted=wanted, do=do)

    def read(self, number: int) -> Optimized | None:
        """What unit `number` learned, if it is there."""
        path = None if self.place is None else self._path(number)
        if path is None or not path.is_file():
            return None
        try:
            held = load_file(path)
        except SafetensorError as e:
            do = "Delete that file: its unit is done again."
            where = f"reconstruct, resume={str(self.place)!r}"
            raise CalibrationError(where=where, found=f"{path.name}, cut or changed ({e})", wanted="whole files", do=do) from e
        up, scale, zero = ({k[len(p) :]: t for k, t in held.items() if k.startswith(p)} for p in ("up:", "scale:", "zero:"))
        return Optimized({k: t.bool() for k, t in up.items()}, {k: Affine(scale[k], zero[k]) for k in scale})

    def write(self, number: int, found: Optimized, told: Mapping[str, str]) -> None:
        """Stores a unit: the whole file, or none."""
        if self.place is None:
            return
        tensors = {f"up:{path}": up.to(torch.uint8) for path, up in found.up.items()}
        tensors |= {f"scale:{path}": q.scale for path, q in found.qparams.items()}
        tensors |= {f"zero:{path}": q.zero_point for path, q in found.qparams.items()}
        own = {name: t.detach().cpu().clone().contiguous() for name, t in tensors.items()}
        _write(self._path(number), to_bytes(own, dict(told)))

    def _path(self, number: int) -> Path:
        assert self.place is not None
        return self.place / f"unit-{number:04}.safetensors"


def _write(path: Path, content: bytes) -> None:
    draft = path.with_name(f".{path.name}-{secrets.token_hex(4)}")
    try:
        draft.write_bytes(content)
        os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)


def digest(tensors: Mapping[str, Tensor], *texts: str) -> str:
    """Return a number that differs where a name, a shape, a type, a bit or a text differs.

    >>> digest({"x": torch.zeros(2)}) == digest({"x": torch.zeros(2)}), digest({}, "a") == digest({}, "b")
    (True, False)
    """
    made = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        made.update(f"{name} {tuple(tensor.shape)} {tensor.dtype};".encode())
        flat = tensor.detach().cpu().contiguous().reshape(-1)
        made.update(flat.view(torch.uint8).numpy().data if flat.numel() else b"")
    for text in texts:
        made.update(text.encode())
    return made.hexdigest()


__all__ = ["Checkpoint", "digest"]

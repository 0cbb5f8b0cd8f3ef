"""The weights of a checkpoint on disk, which are read when they are due."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from qfunc.errors import FileError
from qfunc.files.fields import JsonObject, Keyed, Object, Text, require
from qfunc.files.folder import is_plain_name
from qfunc.files.json_text import parse
from qfunc.files.stored_tensor import StoredTensor, stored_tensors

_INDEX, _WHOLE = "model.safetensors.index.json", "model.safetensors"
_FLOATS = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
_INDEXED = JsonObject({"weight_map": Keyed(Text())}, {"metadata": Object()})


class Weights:
    """The tensors of a folder: those of the safetensors files in its index, or of its only file.

    Raises:
        FileError: a file is damaged, missing or in another folder, or has not the tensors that the index says.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, index = folder, folder / _INDEX
        names = {_WHOLE}
        if index.is_file():
            described = require(_INDEXED, parse(index.read_bytes(), str(index)), str(index))["weight_map"]
            names = set(described.values())
            for name in names:
                if not is_plain_name(name):
                    do = "Take an index whose shards are in its own folder."
                    raise FileError(where=str(index), found=f"the file {name!r}", wanted="names without folders", do=do)
        self.files = {name: folder / name for name in sorted(names)}
        self.tensors: dict[str, StoredTensor] = {}
        for path in self.files.values():
            self.tensors |= stored_tensors(path)[0]

    @property
    def identity(self) -> str:
        """A text that is another one for other files: their names, sizes and times of change."""
        found = {name: [p.stat().st_size, p.stat().st_mtime_ns] for name, p in self.files.items()}
        return json.dumps(found, sort_keys=True)

    def load(self, module: nn.Module, names: Mapping[int, str], recurse: bool = True) -> None:
        """Give a module the parameters and buffers that are on the meta device, in float32, in place.

        Args:
            module: The module.
            names: The name of each tensor in the checkpoint by its id.
            recurse: False for those of the module itself, without those of its submodules.
        Raises:
            FileError: there is no such tensor, or one of another shape.
        """
        fill(module, lambda held: self._read(names[id(held)], held), recurse)

    def _read(self, name: str, like: Tensor) -> Tensor:
        stored, where = self.tensors.get(name), f"{self.folder}, tensor {name!r}"
        shape = tuple(like.shape)
        if stored is None:
            near = ", ".join(list(self.tensors)[:3])
            do = "Build the model from the checkpoint's own config."
            raise FileError(where=where, found=f"no such tensor among {near}, ...", wanted=f"one of shape {shape}", do=do)
        if stored.shape != shape or stored.dtype not in _FLOATS:
            found = f"{stored.dtype} of shape {stored.shape}"
            do = "Build the model from the checkpoint's own config, and take a checkpoint that is not quantized."
            raise FileError(where=where, found=found, wanted=f"floats of shape {shape}", do=do)
        flat = torch.frombuffer(bytearray(stored.tobytes()), dtype=_FLOATS[stored.dtype]) if stored.nbytes else torch.empty(0)
        return flat.reshape(shape).float()


def fill(module: nn.Module, value: Callable[[Tensor], Tensor], recurse: bool = True) -> None:
    """Replace the parameters and buffers of a module on the meta device, in place; those that are shared stay shared."""
    made: dict[int, Any] = {}
    for part in module.modules() if recurse else [module]:
        for held in (part._parameters, part._buffers):
            for name, tensor in held.items():
                if tensor is None or not tensor.is_meta:
                    continue
                if id(tensor) not in made:
                    new = value(tensor)
                    made[id(tensor)] = nn.Parameter(new, requires_grad=False) if isinstance(tensor, nn.Parameter) else new
                held[name] = made[id(tensor)]

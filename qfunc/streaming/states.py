"""Where the inputs of the next layer are kept: in memory, or on disk, from which an interrupted stream goes on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from attrs import frozen
from torch import Tensor

from qfunc.files.stored_tensor import StoredTensor, file_of_tensors, stored_tensors
from qfunc.files.whole import write
from qfunc.specs._values import readable

States = Mapping[str, Sequence[Tensor]]
"""Name of a network, "float" or "rounded" -> the inputs of its next layer, one tensor a batch."""


@readable
@frozen
class StatesInMemory:
    """The inputs of the next layer are in memory.

    After a kill, those of the float network are computed again.  Layers that were rounded on the inputs of the quantized
    network are rounded again.

    >>> StatesInMemory()
    StatesInMemory()
    """

    def keep(self, folder: Path, layer: int, states: States) -> None:
        """Store nothing."""

    def kept(self, folder: Path, layer: int) -> States | None:
        """Return None: nothing is stored."""
        return None


@readable
@frozen
class StatesOnDisk:
    """The inputs of the next layer are also in a file beside the finished layers, so that none is computed again after a kill.

    The file has 4 bytes for each entry of the inputs, of all batches; with a rounding, twice as many.

    >>> StatesOnDisk()
    StatesOnDisk()
    """

    def keep(self, folder: Path, layer: int, states: States) -> None:
        """Store the inputs of a layer, in place of the inputs of the layer before."""
        tensors = {f"{name}.{i}": _stored(t) for name, each in states.items() for i, t in enumerate(each)}
        write(_path(folder, layer), file_of_tensors(tensors, {}))
        _path(folder, layer - 1).unlink(missing_ok=True)

    def kept(self, folder: Path, layer: int) -> States | None:
        """Return the stored inputs of a layer, or None."""
        path = _path(folder, layer)
        if not path.is_file():
            return None
        found: dict[str, list[Tensor]] = {}
        tensors = stored_tensors(path)[0]
        for key in sorted(tensors, key=lambda key: int(key.rpartition(".")[2])):
            stored = tensors[key]
            value = torch.frombuffer(bytearray(stored.tobytes()), dtype=torch.float32).reshape(stored.shape)
            found.setdefault(key.rpartition(".")[0], []).append(value)
        return found


def _path(folder: Path, layer: int) -> Path:
    return folder / f"states-{layer:05}.safetensors"


def _stored(tensor: Tensor) -> StoredTensor:
    return StoredTensor("F32", tuple(tensor.shape), lambda: tensor.contiguous().numpy().tobytes())

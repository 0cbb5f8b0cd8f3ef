"""Cache the inputs and targets of units for all images: in memory up to a budget, then in a temporary folder."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from math import prod
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from attrs import define, frozen
from torch import Tensor, fx

from qfunc.errors import CalibrationError
from qfunc.reconstruction.layout import BatchAxis, Layout, NoBatchAxis


@define(eq=False)
class _Entry:
    layout: BatchAxis | NoBatchAxis
    tensor: Tensor
    device: torch.device
    bytes: int  # of memory; 0 on disk
    channels_last: bool = False  # stored as channels last, which is faster for convolutions on CPUs

    def rows(self, stored: Tensor) -> Tensor:
        """Return `tensor`, or some rows of it, with its axes in the order of the cached value."""
        return stored.permute(0, 1, 4, 2, 3) if self.channels_last else stored


_ALIGNED = 64
"""The bytes to which PyTorch aligns new tensors."""


@frozen
class Key:
    """A value of the network by name, in one of the streams "float", "quantized", "gradient"."""

    stream: str
    name: str


class Cache:
    """Values of `images` images by key.

    Values beyond a total of `memory` bytes go to memory-mapped files in a temporary folder, which is removed when the
    context exits.

    >>> with Cache(images=5, memory=1 << 20) as cache:
    ...     cache.write(Key("float", "x"), 0, torch.arange(10.0).reshape(5, 2), BatchAxis())
    ...     cache.take(Key("float", "x"), torch.tensor([3, 0]))
    tensor([[6., 7.],
            [0., 1.]])
    """

    def __init__(self, images: int, memory: int) -> None:
        self.images, self.memory = images, memory
        self.used = self.most = self.spilled = 0
        self._entries: dict[Key, _Entry] = {}
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._files = 0

    def __enter__(self) -> Cache:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._entries.clear()
        if self._folder is not None:
            self._folder.cleanup()

    def __contains__(self, key: Key) -> bool:
        return key in self._entries

    def write(self, key: Key, start: int, value: Tensor, layout: Layout) -> None:
        """Store the values of the images from `start` on; for a `NoBatchAxis`, the value itself.

        Raises:
            CalibrationError: a tensor with another shape than for earlier images, or without a batch axis.
        """
        if isinstance(layout, NoBatchAxis):
            self._entries.setdefault(key, _Entry(layout, value.detach(), value.device, 0))
            return
        if not isinstance(layout, BatchAxis):
            raise CalibrationError(
                where=f"reconstruct, tensor {key.name!r}",
                found="a value without a batch axis",
                wanted="a batch axis in every tensor between units",
                do="Name a module around it with Blocks(modules=...), or exclude the ops before it with select=.",
            )
        rows = layout.split(value.detach())
        entry = self._entries.get(key) or self._new(key, rows, layout)
        stored = entry.rows(entry.tensor)
        if stored.shape[1:] != rows.shape[1:]:
            raise CalibrationError(
                where=f"reconstruct, tensor {key.name!r}",
                found=f"parts of shape {tuple(rows.shape[1:])} after parts of shape {tuple(stored.shape[1:])}",
                wanted="batches that differ only in the number of images",
                do="Give images, or padded sequences, of one size.",
            )
        stored[start : start + len(rows)].copy_(rows)

    def take(self, key: Key, index: Tensor) -> Tensor:
        """Return the values of the images at an index, an int64 vector."""
        entry = self._entries[key]
        if isinstance(entry.layout, NoBatchAxis):
            return entry.tensor
        rows = entry.tensor.index_select(0, index.to(entry.tensor.device))
        return entry.layout.join(entry.rows(rows).to(entry.device))

    def part(self, key: Key, start: int, stop: int) -> Tensor:
        """Return the values of the images from start to stop."""
        entry = self._entries[key]
        if isinstance(entry.layout, NoBatchAxis):
            return entry.tensor
        rows = entry.tensor[start:stop]
        if rows.data_ptr() % _ALIGNED:  # the order of sums in some kernels depends on it
            rows = rows.clone()
        return entry.layout.join(entry.rows(rows).to(entry.device))

    def alias(self, key: Key, as_: Key) -> None:
        """Add another key for a stored value."""
        self._entries[key] = self._entries[as_]

    def is_alias(self, key: Key, other: Key) -> bool:
        """Return True if two keys refer to the same value."""
        return self._entries[key] is self._entries[other]

    def change(self, key: Key, function: Callable[[Tensor], None]) -> None:
        """Change a value in place."""
        function(self._entries[key].tensor)

    def drop(self, key: Key) -> None:
        """Remove a value."""
        entry = self._entries.pop(key, None)
        if entry is not None and all(entry is not other for other in self._entries.values()):
            self.used -= entry.bytes

    def _new(self, key: Key, rows: Tensor, layout: BatchAxis) -> _Entry:
        channels_last = layout.channels_last
        rows = rows.permute(0, 1, 3, 4, 2) if channels_last else rows
        shape = (self.images, *rows.shape[1:])
        size = prod(shape) * rows.element_size()
        if self.used + size <= self.memory or not size:
            entry = _Entry(layout, torch.empty(shape, dtype=rows.dtype, device=rows.device), rows.device, size, channels_last)
        else:
            entry = _Entry(layout, self._mapped(shape, rows.dtype), rows.device, 0, channels_last)
            self.spilled += size
        self.used += entry.bytes
        self.most = max(self.most, self.used)
        self._entries[key] = entry
        return entry

    def _mapped(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        self._folder = self._folder or tempfile.TemporaryDirectory(prefix="qfunc-", ignore_cleanup_errors=True)
        self._files += 1
        path = Path(self._folder.name) / str(self._files)
        mapped = torch.from_file(str(path), shared=True, size=prod(shape), dtype=dtype).reshape(shape)
        path.unlink(missing_ok=True)  # the mapping keeps the file's content alive
        return mapped


class Collector:
    """Collects the arguments of each call of a quantized model, and the number of the batch of each."""

    def __init__(self, network: fx.GraphModule) -> None:
        self.network, self.calls, self.numbers = network, list[dict[str, Any]](), list[int]()
        self.names = [n.name for n in network.graph.nodes if n.op == "placeholder"]

    def observe(self, arguments: tuple[Any, ...], number: int) -> Any:
        """Record one call and return the output of the float network."""
        inputs = self.network.graph.process_inputs(*arguments)
        self._keep(inputs, number)
        with torch.no_grad():
            return self.network(*arguments)

    def record(self, arguments: tuple[Any, ...], number: int) -> None:
        """Record one call, without computing the output."""
        self._keep(self.network.graph.process_inputs(*arguments), number)

    def _keep(self, inputs: Any, number: int) -> None:
        self.calls.append(dict(zip(self.names, inputs, strict=False)))
        self.numbers.append(number)

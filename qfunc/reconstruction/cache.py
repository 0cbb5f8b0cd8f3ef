"""The tensors that units read and should give, of all images: in memory up to a budget, in a temporary folder beyond it."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from math import prod
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from attrs import define, frozen
from torch import Tensor, fx

from qfunc.errors import CalibrationError, a_or_an
from qfunc.reconstruction.layout import BatchAxis, Layout, NoBatchAxis, is_channels_last

__all__ = ["Cache", "Collector", "Inputs", "Key", "LEAST"]


@define(eq=False)
class _Held:
    layout: BatchAxis | NoBatchAxis
    tensor: Tensor
    device: torch.device
    bytes: int  # of memory; 0 on disk
    turned: bool = False  # channels last, as convolutions on CPUs like them

    def rows(self, kept: Tensor) -> Tensor:
        """Return the axes of `tensor`, or of some rows of it, in the order of the value's."""
        return kept.permute(0, 1, 4, 2, 3) if self.turned else kept


@frozen
class Key:
    """A value of the network by name, in one of the streams "float", "quantized", "gradient"."""

    stream: str
    name: str


class Cache:
    """Values of `images` images by key.

    What would not fit into `memory` bytes beside what is there goes to files, mapped into memory, of a folder that
    leaving the context removes.

    >>> with Cache(images=5, memory=1 << 20) as cache:
    ...     cache.write(Key("float", "x"), 0, torch.arange(10.0).reshape(5, 2), BatchAxis())
    ...     cache.take(Key("float", "x"), torch.tensor([3, 0]))
    tensor([[6., 7.],
            [0., 1.]])
    """

    def __init__(self, images: int, memory: int) -> None:
        self.images, self.memory = images, memory
        self.used = self.most = self.spilled = 0
        self._held: dict[Key, _Held] = {}
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._files = 0

    def __enter__(self) -> Cache:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._held.clear()
        if self._folder is not None:
            self._folder.cleanup()

    def __contains__(self, key: Key) -> bool:
        return key in self._held

    def write(self, key: Key, start: int, value: Tensor, layout: Layout) -> None:
        """Return the values of the images from `start` on; of a `NoBatchAxis` the value.

        Raises:
            CalibrationError: a tensor of another shape than the images before had, or without a part for each image.
        """
        if isinstance(layout, NoBatchAxis):
            self._held.setdefault(key, _Held(layout, value.detach(), value.device, 0))
            return
        if not isinstance(layout, BatchAxis):
            raise CalibrationError(
                where=f"reconstruct, tensor {key.name!r}",
                found="a value without a part for each image",
                wanted="units between which every tensor has an axis that runs over the images",
                do="Name a module around it by Blocks(modules=...), or leave the ops before it out by select=.",
            )
        rows = layout.split(value.detach())
        held = self._held.get(key) or self._new(key, rows, layout)
        there = held.rows(held.tensor)
        if there.shape[1:] != rows.shape[1:]:
            raise CalibrationError(
                where=f"reconstruct, tensor {key.name!r}",
                found=f"parts of shape {tuple(rows.shape[1:])} behind parts of {tuple(there.shape[1:])}",
                wanted="batches that differ in the number of images alone",
                do="Give images, or padded sequences, of one size.",
            )
        there[start : start + len(rows)].copy_(rows)

    def take(self, key: Key, index: Tensor) -> Tensor:
        """Return the value of the images at an index, an int64 vector."""
        held = self._held[key]
        if isinstance(held.layout, NoBatchAxis):
            return held.tensor
        rows = held.tensor.index_select(0, index.to(held.tensor.device))
        return held.layout.join(held.rows(rows).to(held.device))

    def part(self, key: Key, start: int, stop: int) -> Tensor:
        """Return the value of the images from start to stop."""
        held = self._held[key]
        if isinstance(held.layout, NoBatchAxis):
            return held.tensor
        return held.layout.join(held.rows(held.tensor[start:stop]).to(held.device))

    def same(self, key: Key, as_: Key) -> None:
        """Another key for a value that is there."""
        self._held[key] = self._held[as_]

    def alike(self, key: Key, other: Key) -> bool:
        """Return True if two keys stand for one value."""
        return self._held[key] is self._held[other]

    def change(self, key: Key, how: Callable[[Tensor], None]) -> None:
        """Changes a value in place."""
        how(self._held[key].tensor)

    def drop(self, key: Key) -> None:
        """Lets a value go."""
        held = self._held.pop(key, None)
        if held is not None and all(held is not other for other in self._held.values()):
            self.used -= held.bytes

    def _new(self, key: Key, rows: Tensor, layout: BatchAxis) -> _Held:
        turned = rows.ndim == 5 and is_channels_last(rows.flatten(0, 1))
        rows = rows.permute(0, 1, 3, 4, 2) if turned else rows
        shape = (self.images, *rows.shape[1:])
        size = prod(shape) * rows.element_size()
        if self.used + size <= self.memory or not size:
            held = _Held(layout, torch.empty(shape, dtype=rows.dtype, device=rows.device), rows.device, size, turned)
        else:
            held = _Held(layout, self._mapped(shape, rows.dtype), rows.device, 0, turned)
            self.spilled += size
        self.used += held.bytes
        self.most = max(self.most, self.used)
        self._held[key] = held
        return held

    def _mapped(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        self._folder = self._folder or tempfile.TemporaryDirectory(prefix="qfunc-", ignore_cleanup_errors=True)
        self._files += 1
        path = Path(self._folder.name) / str(self._files)
        made = torch.from_file(str(path), shared=True, size=prod(shape), dtype=dtype).reshape(shape)
        path.unlink(missing_ok=True)  # the mapping holds it until it is dropped
        return made


LEAST = 3


@frozen(eq=False)
class Inputs:
    """The value of each placeholder; those in `split` hold all images along their first axis."""

    values: dict[str, Tensor]
    split: frozenset[str]
    images: int
    batch: int

    def few(self) -> dict[str, Tensor]:
        """Return the values on as many images as tell which axes run over them."""
        return {name: v[:LEAST] if name in self.split else v for name, v in self.values.items()}


class Collector:
    """Takes the arguments of each call of a quantized model, until `inputs` puts them together."""

    def __init__(self, network: fx.GraphModule) -> None:
        self.network, self.calls = network, list[dict[str, Any]]()
        self.names = [n.name for n in network.graph.nodes if n.op == "placeholder"]

    def see(self, arguments: tuple[Any, ...], number: int) -> Any:
        """One call; what the float network returns."""
        given = self.network.graph.process_inputs(*arguments)
        self.calls.append(dict(zip(self.names, given, strict=False)))
        with torch.no_grad():
            return self.network(*arguments)

    def note(self, arguments: tuple[Any, ...], number: int) -> None:
        """As `see`, where nobody asks for the value."""
        self.calls.append(dict(zip(self.names, self.network.graph.process_inputs(*arguments), strict=False)))

    def inputs(self) -> Inputs:
        """Return all of them.

        Raises:
            CalibrationError: fewer than three images, inputs that are no tensors, or batches of other shapes.
        """
        for name, value in self.calls[0].items() if self.calls else ():
            if not isinstance(value, Tensor):
                do = "Give quantize example_inputs=(...,), whose tensors are then inputs of their own."
                found = a_or_an(type(value))
                raise CalibrationError(where=f"reconstruct, input {name!r}", found=found, wanted="a tensor", do=do)
        counts = [_images(call.values()) for call in self.calls]
        if sum(counts) < LEAST:
            wanted, do = f"at least {LEAST}", "Give images as for calibration; the papers take 1,024."
            raise CalibrationError(where="reconstruct, batches", found=f"{sum(counts)} images", wanted=wanted, do=do)
        made, split = dict[str, Tensor](), set[str]()
        for name in self.calls[0]:
            values = [call[name] for call in self.calls]
            if all(v.ndim and v.shape[0] == n for v, n in zip(values, counts, strict=True)):
                _require_alike(name, values)
                split.add(name)
                made[name] = torch.cat([v.detach() for v in values])
            else:
                made[name] = values[0].detach()
                if not all(torch.equal(v, values[0]) for v in values[1:]):
                    raise _unlike(f"input {name!r}", "other values in each batch, and no axis that runs over the images")
        return Inputs(made, frozenset(split), sum(counts), max(counts))


def _images(values: Any) -> int:
    return next((len(v) for v in values if v.ndim), 0)


def _require_alike(name: str, values: Sequence[Tensor]) -> None:
    first = values[0]
    other = next((v for v in values if (v.shape[1:], v.dtype) != (first.shape[1:], first.dtype)), None)
    if other is not None:
        shapes = " and ".join(f"{v.dtype} of shape {tuple(v.shape[1:])} an image" for v in (first, other))
        raise _unlike(f"input {name!r}", shapes)


def _unlike(where: str, found: str) -> CalibrationError:
    do = "Give images, or padded sequences, of one size."
    return CalibrationError(
        where=f"reconstruct, {where}", found=found, wanted="batches that differ in the number of images alone", do=do
    )

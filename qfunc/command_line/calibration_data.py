"""The examples that the command line calibrates with: an .npz file, or an iterable of batches in a module."""

from __future__ import annotations

import math
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from attrs import frozen
from torch import Tensor, fx

from qfunc.command_line.target_argument import attribute_of
from qfunc.errors import CalibrationError, FileError
from qfunc.files.folder import open_file
from qfunc.graph.record import record_of

_DO = "Give an .npz file with one array per input, or module:attribute, an iterable of batches."


@frozen
class ProgramInput:
    """An input of a model: its name, its shape with None for each axis that varies, and its dtype; None for any integers."""

    name: str
    shape: tuple[int | None, ...]
    dtype: torch.dtype | None

    def __str__(self) -> str:
        sizes = ", ".join("any" if size is None else str(size) for size in self.shape)
        return f"{self.name} ({sizes}) of {self.kind}"

    @property
    def kind(self) -> str:
        """The name of its type."""
        return "integers" if self.dtype is None else str(self.dtype).removeprefix("torch.")


def inputs_of(program: torch.export.ExportedProgram | fx.GraphModule) -> tuple[ProgramInput, ...]:
    """Return the tensors that a program, or the model of a file, takes, in order."""
    if isinstance(program, fx.GraphModule):
        return tuple(_inputs_of_module(program))
    values = {n.name: n.meta["val"] for n in program.graph.nodes if n.op == "placeholder"}
    found = [(name, values[name]) for name in program.graph_signature.user_inputs if isinstance(name, str)]
    return tuple(
        ProgramInput(name, tuple(size if isinstance(size, int) else None for size in value.shape), value.dtype)
        for name, value in found
        if isinstance(value, Tensor)
    )


def _inputs_of_module(model: fx.GraphModule) -> Iterator[ProgramInput]:
    record = record_of(model)
    assert record is not None
    fixed = dict(record.sizes)
    nodes = [node for node in model.graph.nodes if node.op == "placeholder"]
    for node, axes in zip(nodes, record.axes, strict=True):
        name = str(node.target)
        yield ProgramInput(
            name, fixed.get(name, (None,) * len(axes)), None if record.facts[node.name].is_integer else torch.float32
        )


def read_batches(data: str, inputs: tuple[ProgramInput, ...], size: int) -> Iterable[tuple[Tensor, ...]]:
    """Return batches for a program.

    Args:
        data: The path of an .npz file, or "module:attribute".  In the file each array has the name of an input, or there is
            one array for each input in order; examples are along axis 0.
        inputs: The inputs of the program.
        size: Examples a batch.  A program that was exported with a fixed batch takes batches of that size, and the rest of
            the examples is omitted.
    Raises:
        FileError: a file that is damaged.
        CalibrationError: arrays that do not fit the inputs.
        SpecError: the module cannot be imported.
    """
    if ":" in data and not data.endswith(".npz"):
        batches: Iterable[Any] = attribute_of(data, _DO)
        return batches
    arrays = _arrays(Path(data))
    named = set(arrays) == {i.name for i in inputs}
    if not named and len(arrays) != len(inputs):
        wanted = ", ".join(map(str, inputs))
        raise CalibrationError(where=data, found=f"the arrays {', '.join(arrays) or 'none'}", wanted=wanted, do=_DO)
    ordered = [arrays[i.name] for i in inputs] if named else list(arrays.values())
    tensors = [_tensor(data, array, wanted) for array, wanted in zip(ordered, inputs, strict=True)]
    lengths = sorted({len(t) for t in tensors})
    if len(lengths) != 1:
        found, do = f"arrays of {' and '.join(map(str, lengths))} examples", "Give the inputs of the same examples."
        raise CalibrationError(where=data, found=found, wanted="as many examples for each input", do=do)
    fixed = next((i.shape[0] for i in inputs if i.shape[0] is not None), None)
    size = size if fixed is None else fixed
    count = lengths[0] if fixed is None else lengths[0] // fixed * fixed
    if count == 0:
        wanted = f"at least {max(size, 1)}" if fixed is not None else "at least one"
        raise CalibrationError(where=data, found=f"{lengths[0]} examples", wanted=wanted, do="Give more examples.")
    return [tuple(t[k : k + size] for t in tensors) for k in range(0, count, size)]


def _arrays(path: Path) -> dict[str, np.ndarray[Any, Any]]:
    with open_file(path) as file:
        try:
            with zipfile.ZipFile(file) as entries:
                for entry in entries.infolist():
                    _require_its_bytes(entries, entry)
            file.seek(0)
            with np.load(file, allow_pickle=False) as archive:
                return {name: archive[name] for name in archive.files}
        except Exception as e:  # zipfile and NumPy raise many kinds of errors for damaged files
            found = f"{type(e).__name__}: {e}"
            raise FileError(where=str(path), found=found, wanted="an .npz file of arrays of numbers", do=_DO) from e


def _require_its_bytes(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> None:
    # NumPy allocates the shape of the header, whatever follows it.
    with archive.open(entry) as file:
        version = np.lib.format.read_magic(file)
        read_header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = read_header(file)
    size = math.prod(shape) * dtype.itemsize
    if min(shape, default=0) < 0 or size > entry.file_size:
        raise ValueError(f"the shape {shape} of {dtype} in an entry of {entry.file_size} bytes")


def _tensor(data: str, array: np.ndarray[Any, Any], wanted: ProgramInput) -> Tensor:
    shape = tuple(array.shape)
    fits = len(shape) == len(wanted.shape) and len(shape) > 0
    if not fits or any(b is not None and a != b for a, b in zip(shape[1:], wanted.shape[1:], strict=False)):
        do = "Examples are along axis 0. Axes of any size are those that torch.export made dynamic."
        raise CalibrationError(where=f"{data}, input {wanted.name!r}", found=f"the shape {shape}", wanted=str(wanted), do=do)
    if str(array.dtype) != wanted.kind and not (wanted.dtype is None and array.dtype.kind in "iub"):
        do = f"Convert it: array.astype({('int64' if wanted.dtype is None else wanted.kind)!r})."
        raise CalibrationError(where=f"{data}, input {wanted.name!r}", found=f"{array.dtype}", wanted=wanted.kind, do=do)
    return torch.from_numpy(array)

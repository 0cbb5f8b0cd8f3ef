"""Convert calibration batches to the arguments of a captured model."""

from __future__ import annotations

import contextlib
import os
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx, nn

from qfunc.errors import CalibrationError, a_or_an
from qfunc.graph.arguments import fixed_arguments, flatten, free_arguments, require_batch
from qfunc.graph.input_limits.ids import id_tables, require_ids
from qfunc.graph.input_limits.positions import require_positions, written_positions
from qfunc.graph.input_limits.sizes import require_sizes
from qfunc.graph.record import TensorInfo, record_of

_ONE_BATCH = "Put the inputs of each batch into a tuple, and a single batch into a list: [(a, b)]."
_PACKAGE = f"{Path(__file__).parent.parent}{os.sep}"


def warn_caller(text: str) -> None:
    """Warn, with the file and line of the nearest caller outside qfunc and of the decorators of its functions."""
    level, frame = 2, sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith((_PACKAGE, contextlib.__file__)):
        level, frame = level + 1, frame.f_back
    warnings.warn(text, UserWarning, stacklevel=level)


class Binder:
    """Convert tensors, tuples and dicts to positional arguments; warn once about ignored elements."""

    def __init__(self, network: fx.GraphModule) -> None:
        self.network = network
        # Graphs of torch.export record the structure of their inputs; traced graphs only the names.
        info = getattr(network.graph._codegen, "pytree_info", None)
        # Arguments that were exported by keyword follow the positional ones.
        specs = () if info is None or info.in_spec is None else info.in_spec.children()
        self.spec = None if not specs else [part for spec in specs for part in spec.children()]
        nodes = [n for n in network.graph.nodes if n.op == "placeholder"]
        self.names = [str(n.target) for n in nodes] if info is None else [n for n in info.orig_args if n != "self"]
        needed = sum(not n.args for n in nodes) if self.spec is None else len(self.spec)
        self.required = max(needed, 1)
        self.fixed = fixed_arguments(network)  # batches may omit these
        self.required_count = max(needed - len(self.fixed), 1)
        if self.spec is not None:
            self.takes_dict = self.required_count == 1 and self.spec[0].type is dict
        else:
            self.takes_dict = needed == 1 and any(isinstance(key, str) for user in nodes[0].users for key in user.args)
        self.warned = False
        self.tables, self.written = id_tables(network), written_positions(network)

    def __call__(self, batch: Any, step: str) -> tuple[Any, ...]:
        """Return the positional arguments of one batch.

        Raises:
            CalibrationError: too few inputs, unknown or missing keys, or another structure.
            CaptureError: other sizes than torch.export fixed, ids outside of a table, or positions outside of a state.
        """
        given = batch
        if isinstance(batch, Tensor) or (isinstance(batch, Mapping) and self.takes_dict and self.names[0] not in batch):
            batch = (batch,)
        if isinstance(batch, Mapping):
            _, named = free_arguments(self.network, (), dict(batch))
            return self._like_the_model(self._named(named, step, batch), step)
        if not isinstance(batch, tuple | list):
            raise self._error(step, a_or_an(type(batch)))
        if self.fixed:  # raise for other values
            free_arguments(self.network, tuple(batch[: self.required]), {})
        rest = self.names[len(batch) : self.required]
        if rest and all(name in self.fixed for name in rest) and len(batch):
            batch = (*batch, *map(self.fixed.__getitem__, rest))
        if len(batch) < self.required:
            one = isinstance(given, Tensor) and self.required_count > 1
            raise self._error(step, f"{len(batch)} input{'s' * (len(batch) != 1)}", do=_ONE_BATCH if one else "")
        if len(batch) > self.required and not self.warned:
            self.warned = True
            text = f"{step}: batches of {len(batch)} elements for {self.required} required inputs; extra elements are ignored."
            warn_caller(text)
        return self._like_the_model(tuple(batch[: self.required]), step)

    def _named(self, batch: Mapping[str, Any], step: str, given: Mapping[str, Any]) -> tuple[Any, ...]:
        batch = {**self.fixed, **batch}
        last = max((self.names.index(k) for k in batch if k in self.names), default=-1)
        positional = self.names[: max(last + 1, self.required)]
        if any(k not in self.names for k in batch) or any(n not in batch for n in positional):
            raise self._error(step, f"a dict with keys {as_list(given)}")
        return tuple(batch[n] for n in positional)

    def _like_the_model(self, arguments: tuple[Any, ...], step: str) -> tuple[Any, ...]:
        require_batch(record_of(self.network), arguments)
        if self.spec is None:
            self._require_indices(arguments, step)
            return arguments
        ordered = tuple(self._ordered(v, self.spec[i], step, self.names[i]) for i, v in enumerate(arguments))
        require_sizes(record_of(self.network), ordered)
        self._require_indices(flatten(ordered), step)
        return ordered

    def _require_indices(self, arguments: Iterable[Any], step: str) -> None:
        inputs, where = list(arguments), f"{step}, batch"
        require_ids(self.tables, inputs, where)
        require_positions(self.written, inputs, where)

    def _ordered(self, value: Any, spec: Any, step: str, place: str) -> Any:
        # The order of keys does not matter in a dict, but it does in the flattened inputs.
        if spec.is_leaf():
            return value
        count = spec.num_children
        if spec.type is dict:
            if not isinstance(value, Mapping) or set(value) != set(spec.context):
                found = f"keys {as_list(value)}" if isinstance(value, Mapping) else a_or_an(type(value))
                raise self._error(step, f"{found} for input {place!r}", f"a dict with keys {as_list(spec.context)}")
            return {k: self._ordered(value[k], spec.child(i), step, f"{place}[{k!r}]") for i, k in enumerate(spec.context)}
        if spec.type in (tuple, list):
            if not isinstance(value, tuple | list) or len(value) != count:
                raise self._error(step, f"{a_or_an(type(value))} for input {place!r}", f"{count} entries")
            return spec.type(self._ordered(v, spec.child(i), step, f"{place}[{i}]") for i, v in enumerate(value))
        return value

    def _error(self, step: str, found: str, wanted: str = "", do: str = "") -> CalibrationError:
        wanted = wanted or f"a tensor, tuple or dict for the inputs {', '.join(self.names)} ({self.required_count} required)"
        do = do or "Pass batches with the arguments of the model's forward."
        do = "Convert arrays: torch.from_numpy(array)." if found == "an ndarray" else do
        return CalibrationError(where=f"{step}, batch", found=found, wanted=wanted, do=do)


def as_list(keys: Iterable[Any]) -> str:
    """Format keys for messages."""
    return ", ".join(sorted(map(repr, keys))) or "none"


def require_batches(batches: Any, step: str, progress: Any = True, call: str = "") -> None:
    """Refuse a value that is not an iterable of batches; a single tensor would be iterated row by row.

    Args:
        batches: What the user gave.
        step: The name of the public function.
        progress: What the user gave in the place of `progress`.
        call: The right call, for the message; by default qfunc.STEP(batches)(model).
    Raises:
        CalibrationError: `batches` is a tensor, a dict, a model or not iterable; or `progress` is no bool.
    """
    if isinstance(batches, nn.Module) or isinstance(progress, nn.Module):
        model = batches if isinstance(batches, nn.Module) else progress
        do = f"Write {call or f'qfunc.{step}(batches)(model)'}."
        found = a_or_an(type(model))
        raise CalibrationError(where=step, found=found, wanted="batches first, and then the model", do=do)
    if type(progress) is not bool:
        do = "Pass the other arguments by name."
        raise CalibrationError(where=f"{step}, progress", found=a_or_an(type(progress)), wanted="True or False", do=do)
    if isinstance(batches, Tensor | Mapping | str) or not isinstance(batches, Iterable):
        do = "Call it, and pass its result." if callable(batches) else "Put a single batch into a list: [batch]."
        if isinstance(batches, torch.utils.data.Dataset):
            do = "Let a loader make the batches: torch.utils.data.DataLoader(dataset, batch_size=32)."
        streams = (torch.utils.data.IterableDataset, torch.utils.data.DataLoader)
        splits = [k for k, v in batches.items() if isinstance(v, streams)] if isinstance(batches, Mapping) else []
        if splits:
            do = f"Pass one of its values, such as that of {splits[0]!r}."
        raise CalibrationError(where=step, found=a_or_an(type(batches)), wanted="an iterable of batches", do=do)


def require_repeatable(batches: Any, step: str, name: str, progress: Any, call: str) -> None:
    """Refuse what `require_batches` refuses, and batches that can be iterated only once.

    Raises:
        CalibrationError: names the argument.
    """
    require_batches(batches, step, progress, call)
    if isinstance(batches, Iterator):
        where, do = f"{step}, {name}", "Put them into a list, or pass a DataLoader."
        raise CalibrationError(where=where, found="an iterator", wanted="batches that can be iterated again", do=do)


def require_some(batches: Iterable[Any], step: str, name: str) -> None:
    """Refuse batches whose number is known to be 0.

    Raises:
        CalibrationError: names the argument.
    """
    try:
        empty = len(batches) == 0  # type: ignore[arg-type]
    except (TypeError, NotImplementedError):  # a stream
        return
    if empty:
        raise _no_batches(step, name)


def first_batch(batches: Iterable[Any], step: str, name: str) -> Any:
    """Return the first batch.

    Raises:
        CalibrationError: there is none.
    """
    for batch in batches:
        return batch
    raise _no_batches(step, name)


def _no_batches(step: str, name: str) -> CalibrationError:
    do = "Pass a list or a DataLoader that has batches."
    return CalibrationError(where=f"{step}, {name}", found="no batches", wanted="at least one", do=do)


def require_finite_input(statistic: Tensor, step: str, op: str) -> None:
    """Refuse a statistic of an op's input that is not finite.

    Raises:
        CalibrationError: names the op.
    """
    if not bool(statistic.isfinite().all()):
        found, do = "NaN or infinite values in its input", "Remove the batch, or repair the weights."
        raise CalibrationError(where=f"{step}, op {op!r}", found=found, wanted="finite values", do=do)


def infos(arguments: Any) -> tuple[TensorInfo, ...]:
    """Return shape and dtype of every tensor in the arguments."""
    return tuple(TensorInfo(tuple(v.shape), str(v.dtype)) for v in tensors_of(arguments))


def tensors_of(value: Any) -> list[Tensor]:
    """Return the tensors in nested tuples, lists and dicts, in order."""
    return [v for v in flatten(value) if isinstance(v, Tensor)]


SAMPLE = 4096
"""The number of elements of each tensor of a batch by which other batches are recognised."""


def sample(tensor: Tensor) -> bytes:
    r"""Return the dtype, the shape and up to 2 SAMPLE elements of a tensor, for a digest; all of them if it has no more.

    >>> sample(torch.tensor([1, 2], dtype=torch.uint8))
    b'torch.uint8 (2,)\x01\x02'
    """
    # At equal odd distances, so that they are not all in one column of a table of even width.
    flat = tensor.detach().reshape(-1)
    some = flat[:: flat.numel() // SAMPLE | 1].cpu().contiguous()
    return f"{tensor.dtype} {tuple(tensor.shape)}".encode() + some.view(torch.uint8).numpy().tobytes()

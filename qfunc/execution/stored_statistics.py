"""Statistics of a calibration on disk, so that a calibration that was stopped goes on."""

from __future__ import annotations

import glob
import hashlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from attrs import asdict, fields, has
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor

from qfunc.errors import CalibrationError, first_line
from qfunc.execution.batches import sample, tensors_of
from qfunc.execution.distributed import map_tensors
from qfunc.execution.observers import Observer
from qfunc.files.json_text import damage_error, parse
from qfunc.files.tensors import digest, read_tensors
from qfunc.files.values import class_name, decode, encode
from qfunc.files.whole import require_writable, write
from qfunc.graph.record import TensorInfo

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

INTERVAL = 60.0
"""Seconds between two writes."""


class StoredStatistics:
    """The statistics of some observers in one file, which is written at most once a minute.

    In a process group each rank has a file of its own: statistics.safetensors becomes statistics-2.safetensors.

    Args:
        file: The path; None stores nothing.
        observers: The observers.
        group: The process group, or None.
        clock: A function that returns seconds.
    """

    def __init__(
        self,
        file: str | os.PathLike[str] | None,
        observers: Sequence[Observer],
        group: ProcessGroup | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        path = None if file is None else Path(file)
        self.path = path if path is None or group is None else path.with_name(f"{path.stem}-{group.rank()}{path.suffix}")
        self.observers, self.clock, self.last, self.key = observers, clock, clock(), ""
        self.count, self.first, self.wanted, self.seen = 0, "", ("", ""), hashlib.sha256()
        if self.path is not None:
            self.key = _key(observers, 1 if group is None else group.size())
            if self.path.is_dir() or not self.path.resolve().parent.is_dir():
                self._refuse("no path of a file in an existing folder", "the path of a file", "Create the folder first.")
            require_writable(self.path)

    def load(self) -> int:
        """Set the observers to the stored statistics, if there are any, and return the number of batches in them.

        Raises:
            CalibrationError: statistics of another model, of other targets or of other weights.
            FileError: the file is damaged.
        """
        if self.path is None or not self.path.is_file():
            return 0
        tensors = read_tensors(self.path)
        with safe_open(self.path, "pt") as file:
            metadata = file.metadata() or {}
        text, key, values = str(self.path), metadata.get("key", ""), metadata.get("values", "")
        if metadata.get("digest") != digest(tensors, key, values):
            raise damage_error(text, "", "other bytes than were written", "the statistics of a calibration")
        if key != self.key:
            do = "Delete it, or choose another file."
            found = "statistics of another model, of other weights or estimators, or of another number of processes"
            self._refuse(found, "those of this calibration", do)
        found = decode(parse(values.encode(), text), tensors, _classes(self.observers), text)
        try:
            count, (first, last), states = found
            for observer, (of_observer, shapes, inputs, ranges, example, batch) in zip(self.observers, states, strict=True):
                observer.states = [_moved(s, observer) for s in of_observer]
                observer.shapes, observer.ranges = shapes, _moved(ranges, observer)
                observer.inputs = tuple(TensorInfo(**info) for info in inputs)
                observer.example, observer.batch = _moved(example, observer), batch
            self.count, self.wanted = int(count), (str(first), str(last))
            return self.count
        except (TypeError, ValueError) as e:
            raise damage_error(text, "", first_line(e), "the statistics of a calibration") from e

    def has(self, batch: Any, number: int) -> bool:
        """Return True if the statistics of a batch were stored, and must not be computed again.

        Raises:
            CalibrationError: the first batch, or the first `count` of them, are not those of the stored statistics.
        """
        if self.path is None:
            return False
        for tensor in tensors_of(batch):
            self.seen.update(sample(tensor))
        if number == 1:
            self.first = self.seen.hexdigest()
        stored = number <= self.count
        for place, wanted in zip((1, self.count), self.wanted, strict=True):
            if stored and number == place and self.seen.hexdigest() != wanted:
                found = "another first batch" if number == 1 else f"other batches among the first {number}"
                do = "Give the same batches in the same order: a loader that shuffles needs the seed of the first run."
                self._refuse(f"{found} than in its statistics", "those of the calibration that was stopped", do)
        return stored

    def save(self, count: int) -> None:
        """Write the statistics after a number of batches, if a minute has passed.

        Raises:
            CalibrationError: an estimator whose state is no nested value of tensors and numbers.
            FileError: the system refuses the file, as on a full disk.
        """
        if self.path is None or self.clock() - self.last < INTERVAL:
            return
        self.last = self.clock()
        states = [(o.states, o.shapes, [asdict(i) for i in o.inputs], o.ranges, o.example, o.batch) for o in self.observers]
        tensors = dict[str, Tensor]()
        try:
            values = encode((count, (self.first, self.seen.hexdigest()), states), tensors)
        except TypeError as e:
            do = "Keep the state in tuples, lists and dicts of tensors and numbers, or calibrate without resume=."
            self._refuse(f"{e} in the state of an estimator", "tensors, numbers, texts, tuples, lists and dicts", do)
        text = json.dumps(values)
        write(self.path, [save(tensors, {"key": self.key, "values": text, "digest": digest(tensors, self.key, text)})])

    def remove(self) -> None:
        """Delete the file after the last batch, and what processes left that were killed while they wrote it."""
        if self.path is not None:
            for path in (self.path, *self.path.parent.glob(f".{glob.escape(self.path.name)}-{'[0-9a-f]' * 8}")):
                path.unlink(missing_ok=True)

    def _refuse(self, found: str, wanted: str, do: str) -> NoReturn:
        raise CalibrationError(where=f"calibrate, resume={str(self.path)!r}", found=found, wanted=wanted, do=do)


def _key(observers: Iterable[Observer], processes: int) -> str:
    # A digest of the networks' code and tensors, of the statistics with their estimators, and of the number of processes.
    digest = hashlib.sha256(str(processes).encode())
    for observer in observers:
        network = observer.interpreter.module
        digest.update(str(network.code).encode())
        for name, tensor in network.state_dict().items():
            value = tensor.detach().cpu().contiguous().flatten()
            digest.update(f"{name} {value.dtype}".encode() + value.view(torch.uint8).numpy().tobytes())
        for statistic in observer.statistics:
            text = f"{statistic.site.name} {statistic.site.estimator!r} {statistic.site.scheme!r} {statistic.owners}"
            digest.update(text.encode())
    return digest.hexdigest()


def _classes(observers: Iterable[Observer]) -> dict[str, Any]:
    # The classes of named tuples in the modules of the estimators.
    modules = {type(e).__module__ for o in observers for s in o.statistics for e in _nested(s.site.estimator)}
    values = (v for m in modules for v in vars(sys.modules[m]).values())
    return {class_name(v): v for v in values if isinstance(v, type) and issubclass(v, tuple) and hasattr(v, "_fields")}


def _nested(estimator: Any) -> list[Any]:
    inner = [getattr(estimator, f.name) for f in fields(type(estimator))] if has(type(estimator)) else []
    return [estimator, *(e for value in inner if has(type(value)) for e in _nested(value))]


def _moved(value: Any, observer: Observer) -> Any:
    return map_tensors(value, lambda t: t.to(observer.device))

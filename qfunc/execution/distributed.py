"""Distributed calibration: each process reads its own batches, and the statistics are merged in order of rank."""

from __future__ import annotations

import functools
import os
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import torch
from torch import Tensor

from qfunc.errors import CalibrationError, QfuncError, SpecError
from qfunc.estimators import PowerOfTwo
from qfunc.execution.fixed_qparams import FixedScale
from qfunc.execution.tensor_ranges.measure import union
from qfunc.execution.varying_sizes import join_sizes
from qfunc.graph.record import TensorInfo
from qfunc.quantizers.site import Site
from qfunc.specs.protocols import MergeableEstimator

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

if torch.distributed.is_available():
    # Its functions keep the default group of the time of their import, and torch.export imports them: the threads of a group
    # that is never freed can abort the process when it ends.
    import torch.distributed.nn


class Statistic(Protocol):
    """The statistic of one estimator."""

    @property
    def site(self) -> Site:
        """The first of its sites."""
        ...


class Observer(Protocol):
    """The statistics of one network, their states (None before the first value), shapes of scales, and ranges of tensors."""

    states: list[Any]
    shapes: dict[int, tuple[int, ...]]
    inputs: tuple[TensorInfo, ...]
    ranges: dict[str, Tensor]
    device: torch.device | None

    @property
    def statistics(self) -> Sequence[Statistic]:
        """The statistics, one for each state."""
        ...


class _Report(NamedTuple):
    """The first message to the other ranks: a failure, or the number of batches and the statistics of this rank."""

    failure: str = ""
    batches: int = 0
    statistics: tuple[tuple[str, str], ...] = ()
    shapes: tuple[dict[int, tuple[int, ...]], ...] = ()
    inputs: tuple[tuple[TensorInfo, ...], ...] = ()
    ranges: tuple[dict[str, Tensor], ...] = ()


def require_group(group: Any, step: str = "calibrate") -> None:
    """Refuse a value that is not a group of this process.

    Raises:
        SpecError: `group` is neither None nor a group of this process.
    """
    import torch.distributed as dist

    if group is not None and not (dist.is_available() and isinstance(group, dist.ProcessGroup)):
        wanted = "a torch.distributed.ProcessGroup that this process is in, or None"
        do = "Pass the result of dist.new_group in a member process, or mesh.get_group()."
        raise SpecError(where=f"{step}, group", found=repr(group), wanted=wanted, do=do)


def ranks(group: ProcessGroup | None) -> ProcessGroup | None:
    """Return the group, or the default group for None; return None if it has only this process, or if this one is alone.

    Warns:
        UserWarning: `torchrun` started several processes, and there is no default group.
    """
    import torch.distributed as dist

    if group is None and not _ALONE.get():
        group = dist.group.WORLD if dist.is_available() and dist.is_initialized() else None
        if group is None and (count := os.environ.get("WORLD_SIZE", "1")) != "1" and "RANK" in os.environ:
            text = f"found WORLD_SIZE={count} and no process group: each process works alone, on its own batches. "
            warnings.warn(text + "Call torch.distributed.init_process_group() first.", UserWarning, stacklevel=3)
    return group if group is not None and group.size() > 1 else None


def require_one_process(step: str, do: str) -> None:
    """Refuse a default group of several processes, for a step that cannot share its work.

    Raises:
        SpecError: there is such a group.
    """
    if (group := ranks(None)) is not None:
        found, wanted = f"a default process group of {group.size()} processes", "one process"
        raise SpecError(where=step, found=found, wanted=wanted, do=do)


_ALONE = ContextVar("alone", default=False)


@contextmanager
def alone() -> Iterator[None]:
    """Let steps without `group=` run in this process alone, also if there is a default group."""
    token = _ALONE.set(True)
    try:
        yield
    finally:
        _ALONE.reset(token)


@contextmanager
def propagate_errors(group: ProcessGroup | None) -> Iterator[None]:
    """Propagate an exception to the other ranks, which would otherwise block on the gather."""
    try:
        yield
    except Exception as error:
        if group is not None:
            tell_failure(error, group)
        raise


def tell_failure(error: Exception, group: ProcessGroup) -> None:
    """Let the next gather of the other ranks raise an error with the text of this one."""
    text = str(error) if isinstance(error, QfuncError) else f"{type(error).__name__}: {error}"
    _gather(_Report(failure=text), group)


def require_mergeable(observers: Sequence[Observer], group: ProcessGroup | None) -> None:
    """Refuse estimators without `merge` if there are several processes.

    Raises:
        CalibrationError: an estimator has no `merge`; the message names the site and the estimator.
    """
    if group is None:
        return
    for site in (s.site for o in observers for s in o.statistics):
        if not _has_merge(site.estimator):
            raise CalibrationError(
                where=f"site {site.name!r}",
                found=f"{_text(site.estimator)}, which has no merge, in {group.size()} processes",
                wanted="an estimator with merge(a, b) -> state",
                do="Use another estimator, such as Mse(), or calibrate in one process and load its state_dict in the others.",
            )


def merge(observers: Sequence[Observer], batches: int, group: ProcessGroup | None) -> int:
    """Merge the states of all ranks, in order of rank, into the observers; return the total number of batches.

    States are merged one at a time on the CPU, so that memory does not grow with the number of sites.

    Raises:
        CalibrationError: another rank failed, calibrates another model, or has another number of scales at a site.
    """
    if group is None:
        return batches
    reports = _gather_reports(_report(observers, batches), group, "calibrate")
    for number, observer in enumerate(observers):
        for index, statistic in enumerate(observer.statistics):
            _require_same_scales(statistic.site.name, [r.shapes[number].get(index) for r in reports])
    for number, observer in enumerate(observers):
        observer.inputs = functools.reduce(_first_nonempty, (r.inputs[number] for r in reports))
        for name, span in [pair for r in reports for pair in r.ranges[number].items()]:
            observer.ranges[name] = union(observer.ranges.get(name), span.to(observer.device))
        for index, statistic in enumerate(observer.statistics):
            observer.states[index] = _merge_state(observer.states[index], statistic.site.estimator, observer.device, group)
    return sum(r.batches for r in reports)


def gather_counts(
    counts: Any, batches: int, sites: Sequence[str], group: ProcessGroup | None, step: str
) -> tuple[list[Any], int]:
    """Return the counts of all ranks, in order of rank, with tensors on the CPU, and the total number of batches.

    Args:
        counts: The counts of this rank, in tuples and dicts.
        batches: The number of batches of this rank.
        sites: The names of the counted sites, equal on all ranks.
        group: The result of `ranks`; None for this process alone.
        step: The name of the step, for messages.
    Raises:
        CalibrationError: another rank failed, or has another model; or no rank has a batch.
    """
    reports = [_Report(batches=batches)]
    if group is not None:
        reports = _gather_reports(_Report(batches=batches, statistics=tuple(("", name) for name in sites)), group, step)
    total = sum(r.batches for r in reports)
    if not total:
        do = "Pass a non-empty iterable, not one already used up."
        raise CalibrationError(where=step, found="no batches", wanted="at least one", do=do)
    return ([counts] if group is None else _gather(map_tensors(counts, lambda t: t.detach().cpu()), group)), total


def _gather_reports(report: _Report, group: ProcessGroup, step: str) -> list[_Report]:
    # Gather the reports of all ranks, after each rank has read all its batches.
    reports = _gather(report, group)
    for rank, other in enumerate(reports):
        if other.failure:
            do = "Fix the failure on that rank; every rank must finish the pass."
            found = f"a failure: {other.failure!r}"
            raise CalibrationError(where=f"{step}, rank {rank}", found=found, wanted="statistics of all ranks", do=do)
        _require_same(reports[0], other, rank, step)
    return reports


def _merge_state(state: Any, estimator: Any, device: torch.device | None, group: ProcessGroup) -> Any:
    states = [s for s in _gather(map_tensors(state, lambda t: t.detach().cpu().clone()), group) if s is not None]
    if not states:
        return None
    return map_tensors(functools.reduce(estimator.merge, states), lambda t: t.to(device))


def _report(observers: Sequence[Observer], batches: int) -> _Report:
    sites = (s.site for o in observers for s in o.statistics)
    statistics = tuple((s.name, f"{_text(s.estimator)} in {s.scheme!r}") for s in sites)
    ranges = tuple(map_tensors(o.ranges, lambda t: t.cpu()) for o in observers)
    return _Report("", batches, statistics, tuple(o.shapes for o in observers), tuple(o.inputs for o in observers), ranges)


def _require_same(first: _Report, other: _Report, rank: int, step: str) -> None:
    if first.statistics == other.statistics:
        return
    pairs = zip(first.statistics, other.statistics, strict=False)
    a, b = next(((a, b) for a, b in pairs if a != b), (("", ""), ("", "")))
    found = f"{len(first.statistics)} estimators and {len(other.statistics)}"
    if a != b:
        found = f"{a[1]} at {a[0]!r} and {b[1]} at {b[0]!r}" if a[0] else f"{a[1]!r} and {b[1]!r}"
    where, do = f"{step}, ranks 0 and {rank}", "Give every process of the group the same model."
    raise CalibrationError(where=where, found=found, wanted="the same quantized model", do=do)


def _require_same_scales(name: str, shapes: Sequence[tuple[int, ...] | None]) -> None:
    known = [(rank, shape) for rank, shape in enumerate(shapes) if shape is not None]
    for rank, shape in known:
        if shape != known[0][1]:
            found = f"scales of shape {known[0][1]} on rank {known[0][0]} and {shape} on rank {rank}"
            do = "Pass batches that differ only in the axes that share a scale, or use a scale per tensor."
            raise CalibrationError(where=f"site {name!r}", found=found, wanted="one shape on all ranks", do=do)


def _first_nonempty(a: tuple[TensorInfo, ...], b: tuple[TensorInfo, ...]) -> tuple[TensorInfo, ...]:
    # Return the shapes of one process that reads the batches of a, then those of b.
    return b if b and (not a or any(0 in i.shape for i in a)) else join_sizes(a, b)


def _has_merge(estimator: Any) -> bool:
    if isinstance(estimator, FixedScale) and not estimator.value.smaller:
        return True
    if isinstance(estimator, PowerOfTwo | FixedScale):  # its merge is the inner estimator's
        return _has_merge(estimator.inner)
    return isinstance(estimator, MergeableEstimator)


def _text(estimator: Any) -> str:
    return re.sub(r" at 0x[0-9a-fA-F]+", "", repr(estimator))  # addresses differ between processes


def _gather(value: Any, group: ProcessGroup) -> list[Any]:
    import torch.distributed as dist

    values: list[Any] = [None] * group.size()
    dist.all_gather_object(values, value, group=group)
    return values


def map_tensors(state: Any, function: Callable[[Tensor], Tensor]) -> Any:
    """Return a nested structure with a function applied to its tensors."""
    if isinstance(state, Tensor):
        return function(state)
    if isinstance(state, Mapping):
        return {k: map_tensors(v, function) for k, v in state.items()}
    if isinstance(state, tuple | list):
        parts = [map_tensors(v, function) for v in state]
        return type(state)(*parts) if hasattr(state, "_fields") else type(state)(parts)
    return state

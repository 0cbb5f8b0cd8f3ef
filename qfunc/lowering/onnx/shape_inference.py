"""Infer the shape of every value of a network, and the axes that vary from call to call, on the meta device."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from itertools import zip_longest
from typing import Any

import torch
from attrs import frozen
from torch import Tensor, fx

from qfunc.errors import DeployError, first_line
from qfunc.execution.varying_sizes import Axes
from qfunc.graph.copying import on_meta
from qfunc.graph.interpreter import ObservingInterpreter
from qfunc.graph.record import TensorInfo, path_of


@frozen
class Shape:
    """The shape of one tensor; an axis that varies is None.  `tried` has the sizes in each run."""

    dims: tuple[int | None, ...]
    dtype: torch.dtype
    tried: tuple[tuple[int, ...], ...] = ()

    @property
    def rank(self) -> int:
        """The number of axes."""
        return len(self.dims)


@frozen
class Varying:
    """A number that varies: its values in the runs."""

    tried: tuple[Any, ...]


def shapes_of(network: fx.GraphModule, inputs: tuple[TensorInfo, ...], axes: Axes | None = ()) -> dict[str, Any]:
    """Return {node name: Shape, a tuple of Shapes, `Varying`, or a value that is always the same}.

    The network runs on the meta device with two or three sizes of each axis; values that differ vary.  Without `axes` the
    first axis of the inputs is the batch, unless the network takes only one batch size.  With `axes` None nothing varies.

    Raises:
        DeployError: the network cannot run with the inputs' shapes.
    """
    error, walk = None, ObservingInterpreter(on_meta(network), lambda name, value: None)
    for trial in _trials(inputs, axes):
        try:
            runs = [_run(walk, inputs, sizes) for sizes in trial]
            return {name: _merge(*(found[name] for found in runs)) for name in runs[0]}
        except Exception as e:
            error = e
    assert error is not None
    message = first_line(error)
    wanted, do = "a network that runs with the shapes seen in calibration", "Give deploy the example_inputs."
    if "meta tensors" in message:  # it reads values, which tensors on the meta device do not have
        wanted = "an op that does not depend on values, as in an artifact"
        do = (
            "Write it with torch.where, or quantize the submodules around it: quantize(target, submodules=('backbone', "
            "'head'))."
        )
    where = f"deploy, op {path_of(network, walk.current)!r}" if walk.current is not None else "deploy"
    raise DeployError(where=where, found=message, wanted=wanted, do=do) from error


Sizes = list[tuple[int, ...]]
FAR, MOST_TIES = 38, 50


def _trials(inputs: tuple[TensorInfo, ...], axes: Axes | None) -> Iterator[list[Sizes]]:
    """Yield the shapes of the runs of one trial: other sizes on every axis that varies; last the shapes themselves."""
    given = [i.shape for i in inputs]
    if axes is None:
        yield [given, given]
        return
    named = [(*row, *(None,) * (len(shape) - len(row))) for row, shape in zip_longest(axes[: len(given)], given, fillvalue=())]
    now = {name: size for shape, row in zip(given, named, strict=True) for size, name in zip(shape, row, strict=True) if name}
    seen = {name: size for i, row in zip(inputs, named, strict=True) for size, name in zip(i.other, row, strict=False) if name}
    if now:
        for sizes in _sizes(now, seen):
            count = len(next(iter(sizes.values())))
            yield [
                [tuple(n if name is None else sizes[name][run] for n, name in zip(shape, row, strict=True))
                 for shape, row in zip(given, named, strict=True)]
                for run in range(count)
            ]  # fmt: skip
    else:
        size = given[0][0] if given and given[0] else 0
        yield [[(n, *s[1:]) if s and s[0] == size else s for s in given] for n in (2, 3)]
    yield [given, given]


def _sizes(now: dict[str, int], seen: dict[str, int]) -> Iterator[dict[str, tuple[int, ...]]]:
    """Axis -> its sizes in the runs of a trial, each axis its own: no two have the same in all runs, unless they are tied.

    `seen` has another size of an axis, if one is known; a network may take no sizes but multiples of a number.
    """
    symbols = [name for name in now if name != "batch"]
    # Neighbours may have the same half, and sizes a multiple of 7 or 8 apart the same rest: a third size is far from both.
    # An axis may stand at its least or its greatest size.
    steps: tuple[tuple[int, tuple[int, ...]], ...] = ((1, (0, 1, FAR)), (-1, (0, 1, FAR)), (1, (0, 1)), (-1, (0, 1)))
    apart = math.gcd(*(abs(seen.get(name, now[name]) - now[name]) for name in symbols))
    steps += ((apart, (0, 1, 5)),) if apart > 1 else ()
    trials = [(ties, step, offsets) for ties in _ties(symbols, now, seen) for step, offsets in steps]
    trials.append(({name: now[name] for name in symbols}, 0, (0, 1)))  # axes a fixed number apart
    for ties, step, offsets in trials:
        found = {name: tuple(_size(now[name], ties[name], offset, step) for offset in offsets) for name in symbols}
        first = next(n for n in range(2, 99) if tuple(range(n, n + len(offsets))) not in found.values())
        if all(size > 0 for sizes in found.values() for size in sizes):
            yield {"batch": tuple(range(first, first + len(offsets))), **found}


def _size(now: int, k: int, offset: int, step: int) -> int:
    # The size of the k-th axis in one run.
    if step < 0 and offset == FAR:
        return now // 2 - k
    return now + (step * (2 * k) if step else 0) + (step or 1) * offset


def _ties(symbols: list[str], now: dict[str, int], seen: dict[str, int]) -> list[dict[str, int]]:
    """Axis -> number of its tie: axes of one size may have to be one; those with the fewest ties come first."""
    sizes = {name: (now[name], seen.get(name)) for name in symbols}
    found: list[dict[str, int]] = [{}]
    for name in symbols:
        longer = [
            {**ties, name: k}
            for ties in found
            for k in (max(ties.values(), default=-1) + 1, *{t for n, t in ties.items() if sizes[n] == sizes[name]})
        ]
        found = sorted(longer, key=lambda ties: -len({*ties.values()}))[:MOST_TIES]
    return found


def _run(walk: ObservingInterpreter, inputs: tuple[TensorInfo, ...], sizes: Sizes) -> dict[str, Any]:
    found: dict[str, Any] = {}

    def see(name: str, value: Any) -> None:
        found[name] = value

    walk.observe = see
    given = [
        torch.empty(s, dtype=getattr(torch, i.dtype.removeprefix("torch.")), device="meta")
        for s, i in zip(sizes, inputs, strict=True)
    ]
    walk.extra_traceback = False
    with torch.no_grad():
        walk.run(*given, enable_io_processing=False)
    return found


def _merge(first: Any, *others: Any) -> Any:
    if isinstance(first, Tensor):
        tried = tuple(zip(first.shape, *(t.shape for t in others), strict=True))
        return Shape(tuple(sizes[0] if len(set(sizes)) == 1 else None for sizes in tried), first.dtype, tried)
    if isinstance(first, dict) or dataclasses.is_dataclass(first):
        return None  # only the output node has such a value, and its tensors are known by their own nodes
    if isinstance(first, tuple | list):
        return tuple(_merge(*parts) for parts in zip(first, *others, strict=True))
    same = all(type(first) is type(other) and first == other for other in others)
    return first if same else Varying((first, *others))

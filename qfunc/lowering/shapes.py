"""Shapes of every value of a network, and which axes follow the batch, found without computing."""

from __future__ import annotations

import copy
from typing import Any

import torch
from attrs import frozen
from torch import Tensor, fx

from qfunc.errors import DeployError
from qfunc.graph.network import Walk
from qfunc.graph.record import TensorInfo


@frozen
class Shape:
    """The shape of one tensor; an axis that follows the batch is None."""

    dims: tuple[int | None, ...]
    dtype: torch.dtype

    @property
    def rank(self) -> int:
        """The number of axes."""
        return len(self.dims)


def shapes_of(network: fx.GraphModule, inputs: tuple[TensorInfo, ...]) -> dict[str, Any]:
    """Node name -> Shape, a tuple of them, or a plain value that does not depend on the batch.

    The network runs on the meta device at two batch sizes; what differs follows the batch.  A network that
    takes only one batch size has static shapes.

    Raises:
        DeployError: the network cannot run with the inputs' shapes.
    """
    meta = copy.deepcopy(network).to("meta")
    size = inputs[0].shape[0] if inputs and inputs[0].shape else 0
    try:
        first, second = (_run(meta, inputs, size, n) for n in (2, 3))
    except Exception:
        try:
            first = second = _run(meta, inputs, size, size)
        except Exception as e:
            raise DeployError(
                where="deploy",
                found=f"{type(e).__name__}: {str(e).splitlines()[0] if str(e) else ''}",
                wanted="a network that runs with the shapes seen in calibration",
                do="Give deploy the example_inputs.",
            ) from e
    return {name: _merge(first[name], second[name]) for name in first}


def _run(meta: fx.GraphModule, inputs: tuple[TensorInfo, ...], size: int, batch: int) -> dict[str, Any]:
    def tensor(info: TensorInfo) -> Tensor:
        shape = tuple(batch if i == 0 and n == size else n for i, n in enumerate(info.shape))
        return torch.empty(shape, dtype=getattr(torch, info.dtype.removeprefix("torch.")), device="meta")

    found: dict[str, Any] = {}

    def see(name: str, value: Any) -> None:
        found[name] = value

    walk = Walk(meta, see)
    with torch.no_grad():
        walk.run(*(tensor(i) for i in inputs), enable_io_processing=False)
    return found


def _merge(a: Any, b: Any) -> Any:
    if isinstance(a, Tensor):
        return Shape(tuple(x if x == y else None for x, y in zip(a.shape, b.shape, strict=True)), a.dtype)
    if isinstance(a, dict):
        return None  # only the output node has such a value, and its tensors are known by their own nodes
    if isinstance(a, tuple | list):
        return tuple(_merge(x, y) for x, y in zip(a, b, strict=True))
    return a if a == b else None

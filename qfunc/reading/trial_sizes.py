"""Sizes where ONNX's shape inference knows none: the network on the meta device, with two sizes for each axis that varies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, fx

Dims = tuple[int | str | None, ...]
"""The sizes of a tensor: a number, the name of a size that varies, or None for one that nothing is known of."""

_TRIED = (96, 160)
"""Sizes of axes that vary: multiples of 32, which networks with several scales need."""
_BATCH = (2, 3)


class TrialSizes:
    """The shapes of nodes in two runs, computed when they are asked for.

    Args:
        dims: What is known of the inputs.
    """

    def __init__(self, dims: Mapping[fx.Node, Dims]) -> None:
        self.dims, self._found = dims, dict[fx.Node, tuple[Any, Any] | None]()

    def of(self, node: fx.Node) -> tuple[int | None, ...] | None:
        """Return the sizes of a tensor, None for those that vary; None if the network cannot run with such sizes."""
        pending = [node]
        while pending:
            current = pending[-1]
            unknown = [n for n in current.all_input_nodes if n not in self._found]
            if current not in self._found and unknown:
                pending += unknown
                continue
            pending.pop()
            if current not in self._found:
                self._found[current] = self._run(current)
        both = self._found[node]
        if both is None or not all(isinstance(v, Tensor) for v in both) or both[0].ndim != both[1].ndim:
            return None
        return tuple(a if a == b else None for a, b in zip(both[0].shape, both[1].shape, strict=True))

    def _run(self, node: fx.Node) -> tuple[Any, Any] | None:
        if node.op in ("placeholder", "get_attr"):
            dims = self.dims[node]
            dtype = node.meta["val"].dtype
            return tuple(  # type: ignore[return-value]
                torch.empty([d if isinstance(d, int) else _BATCH[k] if axis == 0 else _TRIED[k] for axis, d in enumerate(dims)],
                            dtype=dtype, device="meta") for k in (0, 1)
            )  # fmt: skip
        inputs = [self._found[n] for n in node.all_input_nodes]
        if any(i is None for i in inputs):
            return None
        if node.op == "call_module":
            return inputs[0]
        try:
            return self._call(node, 0), self._call(node, 1)
        except Exception:  # sizes that do not go together, which says nothing about others
            return None

    def _call(self, node: fx.Node, k: int) -> Any:
        args, kwargs = fx.map_arg((node.args, node.kwargs), lambda n: self._found[n][k])  # type: ignore[index]
        target: Any = node.target
        with torch.device("meta"), torch.no_grad():
            return target(*args, **kwargs)

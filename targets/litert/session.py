"""A model loaded into LiteRT.

`machines.worker` also runs this file in a Python that has NumPy and LiteRT alone.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

RESOLVERS = {"xnnpack": "AUTO", "reference": "BUILTIN_REF", "optimised": "BUILTIN_WITHOUT_DEFAULT_DELEGATES"}
_DELEGATE = "DELEGATE"


class Session:
    """A model in LiteRT, with one of its kernel sets; with `listed`, `facts` has the tensors that a delegate computes."""

    saved = b""

    def __init__(self, model: bytes, *, kernels: str = "xnnpack", threads: int = 0, listed: bool = False) -> None:
        self.model, self.threads, self.kernels = model, threads, kernels
        self.interpreter, self.sizes = self._loaded(), list[tuple[int, ...]]()
        self.facts: dict[str, Any] = {"delegated": sorted(_delegated(self._loaded()))} if listed else {}

    def _loaded(self) -> Any:
        litert = importlib.import_module("ai_edge_litert.interpreter")
        return litert.Interpreter(
            model_content=self.model,
            num_threads=self.threads or None,
            experimental_op_resolver_type=getattr(litert.OpResolverType, RESOLVERS[self.kernels]),
        )

    def run(self, inputs: Sequence[Any]) -> list[Any]:
        """Return the outputs for one batch.

        For inputs of other sizes than before the model is loaded again: after a second resize, LiteRT 2.3 computes the last
        examples of some products of two tensors wrongly.
        """
        arrays = [np.ascontiguousarray(i) for i in inputs]
        sizes = [array.shape for array in arrays]
        if sizes != self.sizes:
            self.interpreter, self.sizes = self._loaded() if self.sizes else self.interpreter, sizes
        details = self.interpreter.get_input_details()
        for detail, array in zip(details, arrays, strict=True):
            if tuple(detail["shape"]) != array.shape:  # LiteRT would prepare its kernels again
                self.interpreter.resize_tensor_input(detail["index"], array.shape)
        self.interpreter.allocate_tensors()
        for detail, array in zip(details, arrays, strict=True):
            self.interpreter.set_tensor(detail["index"], array)
        self.interpreter.invoke()
        return [self.interpreter.get_tensor(o["index"]) for o in self.interpreter.get_output_details()]


def _delegated(interpreter: Any) -> set[str]:
    # The names of the tensors that a delegate computes.  It is listed after the operators that it replaces, with the tensors
    # that it reads and returns.
    interpreter.allocate_tensors()
    names = {d["index"]: d["name"] for d in interpreter.get_tensor_details()}
    operators = interpreter._get_ops_details()  # LiteRT has no other list of its operators
    producers = {int(o): each for each in operators if each["op_name"] != _DELEGATE for o in each["outputs"]}
    found: set[int] = set()
    for each in operators:
        if each["op_name"] == _DELEGATE:
            found |= _between(producers, {int(i) for i in each["inputs"]}, [int(o) for o in each["outputs"]])
    return {names[i].removesuffix(".nhwc") for i in found if i in names}


def _between(producers: Mapping[int, Any], first: set[int], last: list[int]) -> set[int]:
    # The tensors that depend on `first` up to `last`, without `first`.
    found, left = set[int](), list(last)
    while left:
        index = left.pop()
        if index in found or index in first or index not in producers:
            continue
        found.add(index)
        left += [int(i) for i in producers[index]["inputs"]]
    return found

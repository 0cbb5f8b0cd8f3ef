"""The methods of quantize functions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable


@runtime_checkable
class Function(Protocol):
    """A quantize function: the values that the hardware has, with the gradient of the method.

    >>> from qfunc.functions import Fixed, Lsq
    >>> isinstance(Fixed(), Function), isinstance(Fixed(), LearnedFunction), isinstance(Lsq(), LearnedFunction)
    (True, False, True)
    """

    def init(self, qparams: Any, x: Any, scheme: Any) -> Any:
        """Return parameters, from estimated qparams."""

    def apply(self, params: Any, x: Any, scheme: Any) -> Any:
        """Return the value that the hardware has in place of x."""

    def export(self, params: Any, x: Any, scheme: Any) -> Any:
        """Return (codes, qparams) with dequantize(codes, qparams) == apply(params, x, scheme)."""


@runtime_checkable
class LearnedFunction(Protocol):
    """A quantize function with parameters that train; without this method no parameter trains."""

    def learned(self, scheme: Any) -> Sequence[str]:
        """Return the names of the fields that train."""
        ...


@runtime_checkable
class RelaxedFunction(Protocol):
    """A quantize function whose value in training differs from `apply`."""

    def relax(self, params: Any, x: Any, scheme: Any, noise: Any) -> Any:
        """Return the value that training uses; `noise` is uniform in [0, 1) and has the shape of x."""


@runtime_checkable
class NoiselessFunction(Protocol):
    """A quantize function that declares by `noisy = False` that its `relax` ignores the noise, so that none is drawn."""

    noisy: bool


@runtime_checkable
class SearchingFunction(Protocol):
    """A quantize function that declares by `searches = True` that it finds minimums and integers of scales for a tensor."""

    searches: bool


@runtime_checkable
class ScalableFunction(Protocol):
    """A quantize function that computes its parameters for multiples of x."""

    def scaled(self, params: Any, factor: Any) -> Any:
        """Return the parameters for which factor * x gets factor times the values of x, or None if there are none.

        The factors are positive and have the shape of the parameters.
        """


@runtime_checkable
class OnnxFunction(Protocol):
    """A quantize function that writes its own ONNX nodes instead of QuantizeLinear and DequantizeLinear."""

    def onnx(self, graph: Any, tensor: str, qparams: Any, scheme: Any, name: str) -> str:
        """Add nodes that compute `apply` of `tensor`; return the name of the last one's output, which is `name`."""
        ...

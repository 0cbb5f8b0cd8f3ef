"""Protocols: how specs type the algorithms and runtimes that live on higher floors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable


@runtime_checkable
class Estimator(Protocol):
    """Statistics of a tensor, as an explicit state, and the qparams that follow from them."""

    def init(self, scheme: Any, like: Any) -> Any:
        """The state before any data; only the shape and device of `like` are read."""

    def update(self, state: Any, x: Any, scheme: Any) -> Any:
        """The state after x; the old one is unchanged."""

    def finalize(self, state: Any, scheme: Any) -> Any:
        """The qparams."""


@runtime_checkable
class Function(Protocol):
    """A quantize function: the value that the hardware will hold, with the method's own gradient.

    Three methods are optional.  `learned(scheme)` names the fields of the parameters that train; without it
    none do.  `relax(params, x, scheme, noise)` is what training sees instead of `apply`, with noise uniform
    in [0, 1) of the shape of x.  `scaled(params, factor)` are the parameters by which factor * x gets factor times the
    values of x, for positive factors of their shape; None, or no such method, where there are none.
    """

    def init(self, qparams: Any, x: Any, scheme: Any) -> Any:
        """Parameters, from estimated qparams."""

    def apply(self, params: Any, x: Any, scheme: Any) -> Any:
        """x as the hardware holds it."""

    def export(self, params: Any, x: Any, scheme: Any) -> Any:
        """(codes, qparams) with dequantize(codes, qparams) == apply(params, x, scheme)."""


@runtime_checkable
class Lowering(Protocol):
    """The step from standard Q/DQ ONNX to what a vendor's toolchain loads.

    Two members are optional.  `legality`, a tuple of `Refuse`, are the ops that its files cannot say, of which `quantize` is to
    tell.  `refuses(scheme, constant)` is what it wants in the place of a tensor's scheme, empty if it takes it.
    """

    def lower(self, model: Any, sites: Any) -> Mapping[str, bytes]:
        """File name -> content."""
        ...


@runtime_checkable
class Runner(Protocol):
    """A runtime that can be run here."""

    def run(self, artifact: Any, inputs: Any) -> Any:
        """The artifact's outputs, as a list of arrays."""

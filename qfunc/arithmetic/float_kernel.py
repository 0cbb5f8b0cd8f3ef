"""Ops in float between codes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from attrs import evolve, field, frozen
from torch import Tensor

from qfunc.arithmetic.computation import Computation, Real, bounded, per_axis, substituted
from qfunc.arithmetic.unit import OpItself, UnitSpec
from qfunc.numerics.kernels.integer import quantize_wide
from qfunc.numerics.kernels.pooling import quantize_interior
from qfunc.numerics.sums.dynamic import flushed
from qfunc.specs._check import ROUNDINGS, implements, instance_of, one_of, refuse
from qfunc.specs._values import readable
from qfunc.specs.protocols import CodesLibrary, Library

_library = implements(Library, optional=True)


def _own_function(instance: object, attribute: Any, value: Any) -> None:
    if isinstance(value, str):
        do = "Give a value, such as targets.arithmetics.Mlas()."
        raise refuse(instance, "function", value, "a library, which is a frozen value with the method form, or None", do)
    _library(instance, attribute, value)


@readable
@frozen
class FloatKernel:
    """Dequantize, compute in `dtype`, quantize with R (x / s_y, or x * (1/s_y) without `division`).

    `zero_point="before"`: z is added before R; with `fma` that sum is one with the product x * (1/s_y).  `function` is the
    library whose form of the op is computed, one of `qfunc.numerics.libraries`, a chip's or your own.  None: PyTorch's.

    Inputs and result are float32 on both sides of `dtype`.  `wide`: they are float64 as well, (q - z) s and x / s_y included.
    Without `denormals`, those below 2^-126 are 0.

    Source: ONNX Runtime look-up tables and concat; ExecuTorch average pooling; Tengine's float simulator.

    >>> from qfunc.numerics.libraries import GeluErfc
    >>> FloatKernel(function=GeluErfc())
    FloatKernel(function=GeluErfc())
    """

    dtype: str = field(default="float32", validator=one_of(("float16", "bfloat16", "float32", "float64")))
    rounding: str = field(default="half_even", validator=one_of(ROUNDINGS))
    division: bool = field(default=True, validator=instance_of(bool))
    zero_point: str = field(default="after", validator=one_of(("after", "before")))
    function: Library | None = field(default=None, validator=_own_function)
    fma: bool = field(default=False, kw_only=True, validator=instance_of(bool))
    wide: bool = field(default=False, kw_only=True, validator=instance_of(bool))
    denormals: bool = field(default=True, kw_only=True, validator=instance_of(bool))

    def __attrs_post_init__(self) -> None:
        if self.dtype != "float32" and not self.denormals:
            raise refuse(self, "denormals", False, 'dtype "float32"', "Drop one of them.")
        if self.wide and (self.dtype != "float64" or self.function is not None or self.fma):
            wanted, do = 'dtype "float64", and neither function nor fma', 'Give FloatKernel("float64", wide=True).'
            raise refuse(self, "wide", True, wanted, do)
        if self.fma and (self.division or self.zero_point != "before"):
            wanted, do = "no division, and the zero point before R", 'Give division=False, zero_point="before".'
            raise refuse(self, "fma", True, wanted, do)

    @property
    def float_bias(self) -> bool:
        """True: the bias is a real number."""
        return True

    @property
    def reads_reals(self) -> bool:
        """True: a weight with codes is dequantized."""
        return True

    def own_error(self, levels: int) -> float:
        """Return 0: the result is rounded once."""
        return 0.0

    def refuses(self, unit: UnitSpec) -> str:
        """Return "": another kind of op is an error of the target."""
        return ""

    def kernel(self, unit: UnitSpec) -> Computation | OpItself:
        """Return the codes, or the real values, of an op."""
        pool = self.function.form_of_codes(unit.kind) if isinstance(self.function, CodesLibrary) else None
        if pool is not None:
            return self._pool(unit, pool)
        if unit.output is None:
            bare = bounded(unit, self._value(unit, "bare"))
            return bare if self.denormals else Computation(_normal, (evolve(bare, name=""),))
        value: Computation | OpItself = self._value(unit, "real")
        if not self.denormals:
            value = Computation(_normal, (value,), "normal")
        how = (unit.coding.scale, *unit.code_range, self.rounding, self.division, self.zero_point)
        return (
            Computation(quantize_wide, (value, *how)) if self.wide else Computation(quantize_interior, (value, *how, self.fma))
        )

    def _value(self, unit: UnitSpec, name: str) -> Computation | OpItself:
        # The op in float: PyTorch's own, or the form of a library.
        dtype = getattr(torch, self.dtype)
        sources: dict[Any, Any] = {o: Real(o, self.wide) for o in unit.operands if o.at == 0}
        if not self.denormals:
            sources = {o: Computation(_normal, (x,), "normal", o) for o, x in sources.items()}
        if dtype != torch.float32 and not self.wide:
            sources = {o: Computation(torch.Tensor.to, (x, dtype), "wide", o) for o, x in sources.items()}
        if self.function is None:
            return OpItself(sources, name)
        arguments = substituted(tuple(unit.arguments.values()), sources)
        form = self.function.form(unit.kind)
        if form is None:
            found = f"FloatKernel(function={self.function!r}) for an op of kind {unit.kind!r}"
            raise unit.error(found, "a kind that the library computes")
        return Computation(form, arguments, name)

    def _pool(self, unit: UnitSpec, function: Callable[..., Tensor]) -> Computation:
        # An average pool, whose windows a library sums in its own order.
        x, *_ = unit.coded_inputs
        how = (self.rounding, self.division, self.zero_point)
        own, output = (x.coding.scale, x.coding.zero_point), (unit.coding.scale, *unit.code_range)
        if unit.kind == "adaptive_avg_pool":
            return Computation(function, (x, *own, per_axis(unit, "output_size"), *output, *how))
        window = [per_axis(unit, name) for name in ("kernel_size", "stride", "padding")]
        counted = (unit.arguments["ceil_mode"], unit.arguments["count_include_pad"])
        return Computation(function, (x, *own, *window, *counted, *output, *how))


def _normal(x: Tensor) -> Tensor:
    # A tensor without subnormal numbers.
    return flushed(x) if x.is_floating_point() else x

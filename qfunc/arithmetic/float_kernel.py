"""Ops in float between codes."""

from __future__ import annotations

from typing import Any

import torch
from attrs import evolve, field, frozen
from torch import Tensor

from qfunc.arithmetic.computation import Computation, Real, bounded, per_axis, substituted
from qfunc.arithmetic.unit import OpItself, UnitSpec
from qfunc.numerics.kernels.integer import quantize_wide
from qfunc.numerics.kernels.libraries import LIBRARIES
from qfunc.numerics.kernels.pooling import adaptive_pool_codes, average_pool_codes, quantize_interior
from qfunc.numerics.sums.dynamic import flushed
from qfunc.specs._check import ROUNDINGS, instance_of, one_of, refuse
from qfunc.specs._values import readable

_FUNCTIONS = ("mlas", "mlas_logistic", "window_sum", "gelu_erfc", "xnnpack", "ncnn", "mlas_nbits", "eigen",
              "xnnpack_float", "xnnpack_float_avx2")  # fmt: skip


def _own_function(instance: object, attribute: object, value: Any) -> None:
    if value is not None and (type(value) is not str or value not in _FUNCTIONS):
        wanted = "None, " + " or ".join((", ".join(f'"{f}"' for f in _FUNCTIONS[:-1]), f'"{_FUNCTIONS[-1]}"'))
        raise refuse(instance, "function", value, wanted, "Choose one of them.")


_WINDOWS = {
    (library, kind) for library in ("window_sum", "xnnpack") for kind in ("avg_pool", "adaptive_avg_pool", "global_avg_pool")
}
"""(`FloatKernel.function`, kind) of pools that a library sums in its own order."""


@readable
@frozen
class FloatKernel:
    """Dequantize, compute in `dtype`, quantize with R (x / s_y, or x * (1/s_y) without `division`).

    `zero_point="before"`: z is added before R; with `fma` that sum is one with the product x * (1/s_y).  `function` names the
    library whose form of the op is computed: "mlas"
    (norms, softmax and curves), "mlas_logistic" (a rational polynomial), "window_sum" (pooling summed in window order),
    "mlas_nbits" (products with 4-bit weights in blocks: rows along K, a row alone in 16 lanes),
    "eigen" (RMS norms, sine and cosine, in packets of four lanes),
    "xnnpack" (pooling summed by columns, nine at a time; hardswish as x * clamp(x/6 + 1/2, 0, 1); GELU and sigmoid in
    float64), "xnnpack_float" (softmax, norms, curves and products of reals, with AVX-512), "xnnpack_float_avx2" (without it),
    "gelu_erfc" (by erfc), "ncnn" (pools, exponentials and hard curves).  None: PyTorch's.

    Inputs and result are float32 on both sides of `dtype`.  `wide`: they are float64 as well, (q - z) s and x / s_y included.
    Without `denormals`, those below 2^-126 are 0.

    Source: ONNX Runtime look-up tables and concat; ExecuTorch average pooling; Tengine's float simulator.

    >>> FloatKernel(function="mlas_logistic")
    FloatKernel(function='mlas_logistic')
    """

    dtype: str = field(default="float32", validator=one_of(("float16", "bfloat16", "float32", "float64")))
    rounding: str = field(default="half_even", validator=one_of(ROUNDINGS))
    division: bool = field(default=True, validator=instance_of(bool))
    zero_point: str = field(default="after", validator=one_of(("after", "before")))
    function: str | None = field(default=None, validator=_own_function)
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
        if (self.function, unit.kind) in _WINDOWS:
            return self._window_sum(unit)
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
        return Computation(self._form(unit), arguments, name)

    def _form(self, unit: UnitSpec) -> Any:
        forms = LIBRARIES.get(self.function or "", {})
        if unit.kind not in forms:
            computed = {*forms, *(kind for name, kind in _WINDOWS if name == self.function)}
            found = f"FloatKernel(function={self.function!r}) for an op of kind {unit.kind!r}"
            raise unit.error(found, f"one of the kinds that it computes: {', '.join(sorted(computed))}")
        return forms[unit.kind]

    def _window_sum(self, unit: UnitSpec) -> Computation:
        # An average pool, summed in window order, or in the order of XNNPACK.
        x, *_ = unit.coded_inputs
        how = (self.rounding, self.division, self.zero_point, self.function == "xnnpack")
        own, output = (x.coding.scale, x.coding.zero_point), (unit.coding.scale, *unit.code_range)
        if unit.kind == "adaptive_avg_pool":
            return Computation(adaptive_pool_codes, (x, *own, per_axis(unit, "output_size"), *output, *how))
        window = [per_axis(unit, name) for name in ("kernel_size", "stride", "padding")]
        counted = (unit.arguments["ceil_mode"], unit.arguments["count_include_pad"])
        return Computation(average_pool_codes, (x, *own, *window, *counted, *output, *how))


def _normal(x: Tensor) -> Tensor:
    # A tensor without subnormal numbers.
    return flushed(x) if x.is_floating_point() else x

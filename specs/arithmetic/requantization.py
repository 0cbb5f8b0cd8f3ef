"""Arithmetic: how one unit of a runtime turns exact integer accumulators into codes.

A closed set of parametrised values, each implemented once.  Notation: x the input codes minus their zero
point, acc the sum of products, s_x s_w s_y the scales, z the output's zero point, M = s_x*s_w/s_y,
R the rounding; every result is then clamped to the codes of the output.  acc is exact unless it needs more bits than
its `accumulator` has; the accumulator is that of products, not of means and of sums of two tensors.
"""

from __future__ import annotations

from typing import Any

from attrs import field, frozen

from qfunc.specs._check import ROUNDINGS, instance_of, integer, one_of, refuse, text
from qfunc.specs._values import readable

_rounding = one_of(ROUNDINGS)


@readable
@frozen
class SumScaled:
    """y = R((a*m_a + b*m_b) * 2^-k) + z: integers m = half_even(s/s_y * 2^k), the larger one of `bits` bits.

    a and b are codes minus their zero points; the sum is exact and is rounded once.  s/s_y is a float32, and lies in
    [2^-10, 2^8): XNNPACK takes no others.  `least` is another exponent for the smaller s/s_y.

    `outside`: the arithmetic for other s/s_y, and for one whose m needs more than `bits` bits.  None: they are refused.

    Source: XNNPACK microparams-init.c, xnn_init_qs8_add_minmax (21 bits, half up); ONNX Runtime mlas/lib/qladd.cpp, NEON
        kernels (22 bits, half away, from 2^-14, else in float32).

    >>> SumScaled()
    SumScaled()
    """

    rounding: str = field(default="half_up", validator=_rounding)
    bits: int = field(default=21, validator=integer(7, 31))
    least: int = field(default=-10, kw_only=True, validator=integer(-31, -10))
    outside: FloatKernel | None = field(default=None, kw_only=True)

    def __attrs_post_init__(self) -> None:
        if self.outside is not None and type(self.outside) is not FloatKernel:
            raise refuse(self, "outside", self.outside, "FloatKernel or None", "Give a value such as FloatKernel(...).")


_FUNCTIONS = ("mlas", "mlas_logistic", "window_sum", "gelu_erfc", "xnnpack", "ncnn", "mlas_nbits", "eigen",
              "xnnpack_float", "xnnpack_float_avx2")  # fmt: skip


def _own_function(instance: object, attribute: object, value: Any) -> None:
    if value is not None and (type(value) is not str or value not in _FUNCTIONS):
        wanted = "None, " + " or ".join((", ".join(f'"{f}"' for f in _FUNCTIONS[:-1]), f'"{_FUNCTIONS[-1]}"'))
        raise refuse(instance, "function", value, wanted, "Choose one of them.")


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
    rounding: str = field(default="half_even", validator=_rounding)
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


@readable
@frozen
class Copy:
    """Codes move, values do not: reshape, transpose, max pool.

    >>> Copy()
    Copy()
    """


@readable
@frozen
class Unknown:
    """The vendor's arithmetic is not public; `nearest` names a target that can be emulated instead.

    >>> Unknown("closed source", nearest="onnxruntime")
    Unknown('closed source', nearest='onnxruntime')
    """

    reason: str = field(validator=text())
    nearest: str | None = field(default=None, validator=text(optional=True))

    def refuses(self, unit: Any) -> str:
        """Return the reason."""
        return self.reason

    def kernel(self, unit: Any) -> Any:
        """Raise the reason as an EmulationError."""
        raise unit.error(repr(self), "a public arithmetic")

"""Arithmetic: how one unit of a runtime turns exact integer accumulators into codes.

A closed set of parametrised values, each implemented once.  Notation: x the input codes minus their zero
point, acc the sum of products, s_x s_w s_y the scales, z the output's zero point, M = s_x*s_w/s_y,
R the rounding; every result is then clamped to the codes of the output.  acc is exact unless it needs more bits than
its `accumulator` has; the accumulator is that of products, not of means and of sums of two tensors.
"""

from __future__ import annotations

from typing import Any

from attrs import field, frozen

from qfunc.specs._check import ROUNDINGS, as_tuple, instance_of, integer, one_of, refuse, text
from qfunc.specs._values import readable
from qfunc.specs.arithmetic.accumulator import Accumulator, canonical, is_accumulator

_rounding = one_of(ROUNDINGS)


def _each_step(instance: Any, attribute: Any, value: Any) -> None:
    wanted = 'a rounding, or "srdhm" or "sqdmulh" and a rounding'
    words = type(value) is tuple and all(type(step) is str for step in value)
    if not words or value[:-1] not in ((), ("srdhm",), ("sqdmulh",)) or value[-1:] not in tuple((r,) for r in ROUNDINGS):
        raise refuse(instance, "steps", value, wanted, 'Give e.g. ("srdhm", "half_away").')


@readable
@frozen
class FloatMultiplier:
    """y = R(float32(acc) * M) + z in float32, with M = float32(float32(s_x*s_w) / s_y).

    `zero_point="before"`: z is added before R.  `fma`: that addition is fused with the product.
    `float_bias`: the bias stays float and enters as bias/s_y (MNN) instead of into acc as an int32.  An output without
    qparams is float32(acc) * float32(s_x*s_w).

    `dtype="float64"`: each step is in float64, in which acc and s_x*s_w are exact; an output without qparams is rounded to
    float32 at the end.  Of products, with or without constant weights; means and prelus have float32, and so has `fma`.

    Source: ONNX Runtime MLAS, XNNPACK qs8 "fp32" requantization, MNN.

    >>> FloatMultiplier(zero_point="before")
    FloatMultiplier(zero_point='before')
    """

    rounding: str = field(default="half_even", validator=_rounding)
    zero_point: str = field(default="after", validator=one_of(("after", "before")))
    fma: bool = field(default=False, validator=instance_of(bool))
    float_bias: bool = field(default=False, validator=instance_of(bool))
    accumulator: int | Accumulator = field(default=32, converter=canonical, validator=is_accumulator)
    dtype: str = field(default="float32", kw_only=True, validator=one_of(("float32", "float64")))

    def __attrs_post_init__(self) -> None:
        if self.fma and self.dtype != "float32":
            do = "Leave out one of them: no known kernel fuses in float64."
            raise refuse(self, "dtype", self.dtype, '"float32" with fma', do)


@readable
@frozen
class FloatRequantize:
    """v = float32(acc)*float32(s_x*s_w) + bias in real units, the activation there, y = R(v / s_y) + z.

    `fma`: one rounding for product and bias.  `division=False`: v * float32(1/s_y).  `reciprocals`: in place of
    float32(s_x*s_w) stands 1/(float32(1/s_x)*float32(1/s_w)), of a file that holds 1/s.  `quotient`: float32(acc) is divided by
    this product of reciprocals, in place of the product with its reciprocal.  `merged`: with a fused relu, v is in steps, with
    m / s_y for m and bias / s_y for the bias.  An output without qparams is v.

    `by_range`: each scale is (h - l)/n, and y = R(v r + c) + qmin with one rounding for product and sum.  Here l and h are
    the real values of qmin and qmax, n = qmax - qmin, r = n/(h - l) and c = -l n/(h - l), each step in float32.  With l = 0
    and no upper bound, r is 1/(1/r).  A fused addition of codes q' with step t is v (1/t) + q' - z', or (v - c' t)(1/t) + q' -
    qmin' for codes that a convolution reads, too; l and h are divided by t.

    Source: ncnn convolution_x86 (fma, half away, multiply, reciprocals), convolutiondepthwise_arm (quotient, measured),
        requantize_arm (merged); OpenVINO CPU (no fma, half even, divide; by range: measured, openvino 2026.4).

    >>> FloatRequantize("half_away", fma=True)
    FloatRequantize('half_away', fma=True)
    """

    rounding: str = field(default="half_even", validator=_rounding)
    fma: bool = field(default=False, validator=instance_of(bool))
    division: bool = field(default=True, validator=instance_of(bool))
    accumulator: int | Accumulator = field(default=32, converter=canonical, validator=is_accumulator)
    reciprocals: bool = field(default=False, validator=instance_of(bool))
    by_range: bool = field(default=False, validator=instance_of(bool), kw_only=True)
    quotient: bool = field(default=False, kw_only=True, validator=instance_of(bool))
    merged: bool = field(default=False, kw_only=True, validator=instance_of(bool))

    def __attrs_post_init__(self) -> None:
        if self.quotient and (self.fma or not self.reciprocals):
            do = 'Give FloatRequantize("half_away", reciprocals=True, quotient=True).'
            raise refuse(self, "quotient", True, "reciprocals, and no fma", do)


@readable
@frozen
class FixedPoint:
    """y = steps(acc * m * 2^-e) + z with M = m * 2^-e, m an integer of `bits` bits.

    One step: one rounding of the 64-bit product.  Two: "srdhm" (saturating rounding doubling high multiply), or "sqdmulh",
    which cuts off (of two shifts the one to the right is at least 1); then the rounding shift named second.  leaky_relu and
    prelu have an M for each side of 0, s_x / s_y and s_x slope / s_y; a mean of n has m' = floor(m 2^k / n) and e' = e + k,
    with k = floor(log2 n).

    `reduced`: m is rounded a second time, half up, to `reduced` bits and at most 2^reduced - 1: for sums of 64 bits.
    `float_ratio`: M is a float32, computed as of `FloatMultiplier`.  `float_product`: where s_x s_w is one number, it is
    rounded to float32, and divided by s_y in float64.

    Source: gemmlowp fixedpoint.h; TFLite common.cc, and mul.cc and kernel_util.cc, GetQuantizedConvolutionMultipler
        (the types of M); ruy, sqdmulh of kernel_arm64.cc; TOSA 1.0 apply_scale_32; CMSIS-NN
        arm_nnsupportfunctions.h, REDUCE_MULTIPLIER (31 bits, then 15); XNNPACK microparams-init.c, rndnu (24 bits, half up).

    >>> FixedPoint("half_up")
    FixedPoint('half_up')
    """

    steps: tuple[str, ...] = field(default=("srdhm", "half_away"), converter=as_tuple, validator=_each_step)
    bits: int = field(default=31, validator=integer(7, 31))
    accumulator: int | Accumulator = field(default=32, converter=canonical, validator=is_accumulator)
    reduced: int | None = field(default=None, kw_only=True, validator=integer(7, 30, optional=True))
    float_ratio: bool = field(default=False, kw_only=True, validator=instance_of(bool))
    float_product: bool = field(default=False, kw_only=True, validator=instance_of(bool))

    def __attrs_post_init__(self) -> None:
        if self.float_ratio and self.float_product:
            raise refuse(self, "float_product", True, "float_ratio or float_product", "Drop one of them.")
        if self.reduced is not None and (self.reduced >= self.bits or len(self.steps) > 1):
            wanted, do = "fewer bits than the multiplier's, and one step", 'Give e.g. FixedPoint("half_up", reduced=15).'
            raise refuse(self, "reduced", self.reduced, wanted, do)


@readable
@frozen
class Shift:
    """y = R(acc * 2^-k): every scale is a power of two.

    Products, sums of two tensors, and biases with a power of two of their own: acc is exact, with as many
    bits behind the point as it needs, and is rounded once.

    Source: Vitis AI DPU, vart/cpu-runner/src/op/conv2d_fix.cpp and eltwise_fix.cpp (half up).

    >>> Shift("half_up")
    Shift('half_up')
    """

    rounding: str = field(validator=_rounding)
    accumulator: int | Accumulator = field(default=32, converter=canonical, validator=is_accumulator)


@readable
@frozen
class SumFma:
    """y = R(fma(a, r_a, fma(b, r_b, f))), r = float32(s/s_y), f = float32(z_y - fma(r_a, z_a, float32(r_b*z_b))).

    a and b are codes, zero points included.  Rounds after the zero point was added.  `fma=False`: each product and each sum is
    rounded, y = R((f + a*r_a) + b*r_b); where b is constant along the last axis, y = R((f + b*r_b) + a*r_a).

    Source: ONNX Runtime mlas/lib/qladd.cpp, x86 kernels (AVX2; SSE2 without fma).

    >>> SumFma()
    SumFma()
    """

    rounding: str = field(default="half_even", validator=_rounding)
    fma: bool = field(default=True, validator=instance_of(bool))


@readable
@frozen
class SumShifted:
    """Both inputs are shifted left by `left_shift`, rescaled to a common scale and added in int32; then `steps`.

    Whole runs of `lanes` entries in memory, of tensors of one shape or of rows that join rows, round each input once: the
    shift of its rescaling is taken from `left_shift`.  Their codes wrap in `bits` bits before they are clamped; so do those of
    whole runs of half as many entries that one number is added to.  None: no entries do.
    Scales whose sums might need more than 32 bits are refused.

    Source: TFLite reference_ops Add (2^20), optimized_integer_ops AddElementwise (16 lanes) and
    AddScalarBroadcast (8), measured; TOSA 1.0 add between rescales.

    >>> SumShifted(left_shift=20)
    SumShifted()
    """

    left_shift: int = field(default=20, validator=integer(0, 31))
    steps: tuple[str, ...] = field(default=("srdhm", "half_away"), converter=as_tuple, validator=_each_step)
    bits: int = field(default=32, validator=integer(9, 32))
    lanes: int | None = field(default=None, validator=integer(1, optional=True))


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

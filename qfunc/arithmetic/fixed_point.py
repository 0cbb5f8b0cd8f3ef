"""Requantization by integer multipliers and shifts."""

from __future__ import annotations

import torch
from attrs import field, frozen
from torch import Tensor

from qfunc.arithmetic.computation import Computation, Constant
from qfunc.arithmetic.float_multiplier import both_sides
from qfunc.arithmetic.integers import SUMS_OF_PRODUCTS, integers_of
from qfunc.arithmetic.products import products
from qfunc.arithmetic.sums import is_steps
from qfunc.arithmetic.unit import UnitSpec, axes_of_mean
from qfunc.numerics.kernels.activations import fixed_bits, mean_fixed, two_slopes
from qfunc.numerics.kernels.fixed_point import fixed_multiplier, reduced_multiplier
from qfunc.numerics.kernels.requantize import requantize_fixed, requantize_gemv, requantize_lanes
from qfunc.numerics.kernels.vector import product_lanes
from qfunc.specs._check import ROUNDINGS, as_tuple, instance_of, integer, number, one_of, refuse, tuple_of
from qfunc.specs._values import readable
from qfunc.specs.arithmetic.accumulator import Accumulator, canonical, is_accumulator


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

    steps: tuple[str, ...] = field(default=("srdhm", "half_away"), converter=as_tuple, validator=is_steps)
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

    def refuses(self, unit: UnitSpec) -> str:
        """Return "": another kind of op is an error of the target."""
        return ""

    def kernel(self, unit: UnitSpec) -> Computation:
        """Return the codes of sums of products, means, leaky_relus and prelus."""
        if unit.kind in SUMS_OF_PRODUCTS:
            return self._requantized(unit)
        if unit.kind in ("mean", "global_avg_pool"):
            (x, *_), (dims, keep) = unit.coded_inputs, axes_of_mean(unit)
            ratio = float(torch.tensor(x.coding.scale, dtype=torch.float64) / unit.coding.scale)
            return Computation(mean_fixed, (x, x.coding.zero_point, dims, keep, ratio, list(self.steps), *unit.code_range))
        if unit.kind in ("leaky_relu", "prelu"):
            return self._slopes(unit)
        raise unit.unfit(self, (*SUMS_OF_PRODUCTS, "mean", "global_avg_pool", "leaky_relu", "prelu"))

    def _requantized(self, unit: UnitSpec) -> Computation:
        # A sum times its multiplier is one integer of 64 bits if it is rounded once.
        sums = products(unit, self.accumulator, multiplier_bits=(self.reduced or self.bits) if len(self.steps) == 1 else None)
        scale = torch.tensor(unit.coding.scale, dtype=torch.float32)
        in_float = (sums.scale.float() / scale).double()
        ratio = in_float if self.float_ratio else _ratio(sums.scale, scale, self.float_product)
        pair = _multiplier(ratio, self.bits, self.reduced)
        return Computation(requantize_fixed, (sums.acc, *pair, list(self.steps), *unit.code_range))

    def _slopes(self, unit: UnitSpec) -> Computation:
        sides = both_sides(unit)
        s_x, s_y = torch.tensor(sides.scale), torch.tensor(unit.coding.scale)
        if not self.float_ratio:
            s_x, s_y = s_x.double(), s_y.double()
        pairs = [fixed_multiplier(m.double(), self.bits) for m in (s_x / s_y, s_x * sides.slope / s_y)]
        m, e = ([Constant(p[i], f"{name}_{k}") for k, p in enumerate(pairs)] for i, name in enumerate(("multiplier", "shift")))
        return Computation(two_slopes, (sides.above, sides.below, m, e, list(self.steps), *unit.code_range))


@readable
@frozen
class FixedPointLanes:
    """As FixedPoint: the first lanes * floor(C / lanes) channels by `steps`, those left over by `rest`.

    Source: TFLite optimized_ops Quantize, of depthwise convolutions (vectors of 8, then one by one).

    >>> FixedPointLanes()
    FixedPointLanes()
    """

    steps: tuple[str, ...] = field(default=("srdhm", "half_up"), converter=as_tuple, validator=tuple_of(str, at_least=1))
    rest: tuple[str, ...] = field(default=("srdhm", "half_away"), converter=as_tuple, validator=tuple_of(str, at_least=1))
    lanes: int = field(default=8, validator=integer(1))

    def refuses(self, unit: UnitSpec) -> str:
        """Return "": another kind of op is an error of the target."""
        return ""

    def kernel(self, unit: UnitSpec) -> Computation:
        """Return the codes of sums of products."""
        if unit.kind not in SUMS_OF_PRODUCTS:
            raise unit.unfit(self, SUMS_OF_PRODUCTS)
        sums, scale = products(unit), torch.tensor(unit.coding.scale, dtype=torch.float32)
        pair = _multiplier(sums.scale / scale.double(), 31)
        return Computation(requantize_lanes, (sums.acc, *pair, list(self.steps), list(self.rest), self.lanes, *unit.code_range))


@readable
@frozen
class FixedPointGemv:
    """As FixedPoint by `steps`; the product of a matrix and one vector by `vector`.

    That is one row of `columns` entries or more, and `rows` output channels or more; other sizes are left to `steps`.
    `float_product`: as of `FixedPoint`.

    Source: TFLite cpu_backend_gemm_custom_gemv.h (vqrdmulhq_s32, then vrshlq_s32; else ruy).

    >>> FixedPointGemv(("sqdmulh", "half_up"))
    FixedPointGemv(('sqdmulh', 'half_up'))
    """

    steps: tuple[str, ...] = field(converter=as_tuple, validator=tuple_of(str, at_least=1))
    vector: tuple[str, ...] = field(default=("srdhm", "half_up"), converter=as_tuple, validator=tuple_of(str, at_least=1))
    rows: int = field(default=4, validator=integer(1))
    columns: int = field(default=8, validator=integer(1))
    float_product: bool = field(default=False, kw_only=True, validator=instance_of(bool))

    def refuses(self, unit: UnitSpec) -> str:
        """Return "": another kind of op is an error of the target."""
        return ""

    def kernel(self, unit: UnitSpec) -> Computation:
        """Return the codes of convolutions, linear layers and matmuls."""
        kinds = ("conv", "linear", "matmul")
        if unit.kind not in kinds:
            raise unit.unfit(self, kinds)
        sums, scale = products(unit), torch.tensor(unit.coding.scale, dtype=torch.float32)
        pair, integers = _multiplier(_ratio(sums.scale, scale, self.float_product), 31), integers_of(unit)
        weight = None if integers is None else integers.weight
        large = weight is not None and len(weight) >= self.rows and weight[0].numel() >= self.columns
        steps = (list(self.steps), list(self.vector if large else self.steps))
        channels = 1 if weight is None else len(weight)
        return Computation(requantize_gemv, (sums.acc, *pair, *steps, channels, *unit.code_range))


@readable
@frozen
class ProductLanes:
    """A product of two tensors: p = H(a b m 2^-e) with M = m 2^-e as FixedPoint rounds twice, half away; then y = p + z.

    M is a float32, as with `float_ratio` of FixedPoint.
    Whole runs of `lanes` entries in memory clamp p to `bits` bits, in which p + z wraps.  Those left over have 32 bits.

    Source: TFLite optimized_integer_ops MulElementwise and MulSimpleBroadcast (vqmovn_s32, then vaddq_s16; 16 lanes); measured.

    >>> ProductLanes()
    ProductLanes()
    """

    bits: int = field(default=16, validator=integer(9, 32))
    lanes: int = field(default=16, validator=integer(1))

    def refuses(self, unit: UnitSpec) -> str:
        """Return "": another kind of op is an error of the target."""
        return ""

    def kernel(self, unit: UnitSpec) -> Computation:
        """Return the codes of a product of two tensors."""
        if unit.kind != "mul":
            raise unit.unfit(self, ("mul",))
        sums, scale = products(unit), torch.tensor(unit.coding.scale, dtype=torch.float32)
        pair = _multiplier((sums.scale.float() / scale).double(), 31)
        how = (*pair, self.bits, self.lanes, *unit.code_range, unit.channels_last)
        return Computation(product_lanes, (sums.acc, *unit.coded_inputs, *how))


@readable
@frozen
class FixedBits:
    """y = R(x * m * 2^-bits) + z, m = half_even(M * 2^bits), in float32; leaky_relu has an M for each side of 0.

    The number of fractional bits is fixed, in place of those of the multiplier as in FixedPoint.  With `least`, a unit with an
    |M| below `least`, or above 2^7, is computed as by FixedPoint(): LiteRT's delegate does not take such units.

    Source: XNNPACK microparams-init.c, xnn_init_qs8_lrelu_scalar_params (8 bits, half up); TFLite, xnnpack_delegate.cc.

    >>> FixedBits()
    FixedBits()
    """

    rounding: str = field(default="half_up", validator=one_of(ROUNDINGS))
    bits: int = field(default=8, validator=integer(1, 30))
    least: float | None = field(default=None, validator=number(positive=True, optional=True))

    def refuses(self, unit: UnitSpec) -> str:
        """Return "": another kind of op is an error of the target."""
        return ""

    def kernel(self, unit: UnitSpec) -> Computation:
        """Return the codes of a leaky_relu."""
        if unit.kind != "leaky_relu":
            raise unit.unfit(self, ("leaky_relu",))
        sides = both_sides(unit)
        scale = torch.tensor(sides.scale) / torch.tensor(unit.coding.scale)
        scales = (scale, scale * float(unit.arguments["negative_slope"]))
        if self.least is not None and not all(self.least <= abs(float(s)) <= _LARGEST_MULTIPLIER for s in scales):
            return FixedPoint(float_ratio=True).kernel(unit)
        m = [int(torch.round(s * float(1 << self.bits))) for s in scales]
        return Computation(fixed_bits, (sides.above, m, self.bits, self.rounding, *unit.code_range))


_LARGEST_MULTIPLIER = 2.0**7
"""The largest multiplier of a leaky_relu that LiteRT's delegate takes."""


def _ratio(product: Tensor, scale: Tensor, rounded: bool) -> Tensor:
    # s_x s_w / s_y in float64; one product of scales may be rounded to float32 first.
    return (product.float().double() if rounded and product.numel() == 1 else product) / scale.double()


def _multiplier(ratio: Tensor, bits: int, reduced: int | None = None) -> tuple[Constant, Constant]:
    m, e = fixed_multiplier(ratio, bits)
    if reduced is not None:
        m, e = reduced_multiplier(m, e, bits, reduced)
    return Constant(m, "multiplier"), Constant(e, "shift")

"""Products whose input is quantized at run time: linear layers of language models with weights of few bits."""

from __future__ import annotations

from typing import Any

import torch
from attrs import field, frozen

from qfunc.arithmetic.block_products import chunk_product, register_product
from qfunc.arithmetic.block_weights import stored, unfit_weight
from qfunc.arithmetic.computation import Computation, Constant, Real
from qfunc.arithmetic.minimum_sums import DTYPES, More, sums_with_minimums
from qfunc.arithmetic.unit import Operand, UnitSpec
from qfunc.numerics.scales import divisor
from qfunc.numerics.sums.dynamic import (
    block_sums,
    flushed,
    input_codes,
    input_scales,
    input_zero_points,
    multipliers,
    scaled_sums,
    weight_sums,
)
from qfunc.specs._check import instance_of, one_of, refuse
from qfunc.specs._values import readable
from qfunc.specs.arithmetic.dynamic import MinimumSums, WeightSums
from qfunc.specs.arithmetic.lanes import BrgemmChunks, LaneOffset, Lanes, RegisterLanes, TokenGroups, TokenTiles
from qfunc.specs.number_format import BFLOAT16, FLOAT16, FLOAT32, Int
from qfunc.specs.scheme import PerBlock, PerToken, Scheme


@readable
@frozen
class DynamicProduct:
    """y = v s_x + bias, with v the sum over blocks of K of acc_b s_w in float32; the codes q_x are computed at run time.

    `input` divides x into groups, tokens or blocks along K, each with an s_x, a multiplier r and a zero point z:
    q_x = clamp(R(x r) + z), z = R(clamp(qmin - l r)).  In float32, with l = min(x, 0), h = max(x, 0), the span e = h - l and
    n = qmax - qmin; of a symmetric input e = max |x|, n its divisor and z = 0.  `multiplier` states what is a quotient:

    * "first": r = n / e, s_x = 1 / r;
    * "last": s_x = e / n, r = 1 / s_x;
    * "both": s_x = e / n, r = n / e.

    r and s_x are 1 where e is 0.  s_x is then rounded to its format; r is not computed again.  With ZeroPoint(nudge="nearest"),
    z = R(clamp(qmax - h r)) unless (qmin + l r) + (qmax + h r) > 0.

    acc_b is the exact sum of (q_x - z) q_w over the entries that share s_x and s_w.  v starts at 0, v <- v + acc_b m_b for one
    block after the other, and m_b = s_w; the weight is symmetric, except with `RegisterLanes`, `BrgemmChunks` and
    `minimums`.  Where scales of the weight are s_w = c d, with integers c, acc_b is that of c q_w over the entries that share
    s_x and d, and m_b has d.

    Args:
        input: The scheme of the input, with a dynamic scale and without division.
        multiplier: As above.
        scales: "after": s_x multiplies the sum, as above; "inside": m_b = float32(s_x s_w), and y = v + bias.
        zero_point: How z enters; None: inside acc_b, as above.
        minimums: How the minimums of the weight enter; None: it has none.
        lanes: The partial sums.
        offset: Another sum of unsigned codes; None: acc_b is as above.
        groups: Another sum for whole groups of tokens; None: all tokens are added alike.
        tiles: Another sum for products of many tokens; None: the number of tokens changes nothing.
        sequences: "together": the tokens of all sequences [..., T, K] are those of one product; "apart": each sequence is a
            product of its own.  Groups and tiles count the tokens of a product.
        fma: v + acc_b m_b has one rounding.
        fused_bias: v s_x + bias has one rounding.
        denormals: False: operands and results below 2^-126 are 0.
        clamps: True: y = min(max(y, low), high), with the bounds of a fused activation or -inf and inf; low for NaN.
    Raises:
        SpecError: a scheme that is static, divides, has other codes than integers, or scales of other formats than float32,
            float16 and bfloat16; blocks whose scales come after the sum, or weight sums whose scales come inside;
            minimums, an offset, groups or tiles without fused sums in Lanes whose scales come inside; groups with tiles or
            with minimums inside; sequences that are apart without groups or tiles; RegisterLanes or
            BrgemmChunks with another input than symmetric blocks, or other sums than they state.

    Source: XNNPACK, src/xnnpack/quantization.h and qd8-f32-qb4w-gemm; measured on executorch 1.5.1.

    >>> from qfunc.specs.scheme import Scale, ZeroPoint
    >>> DynamicProduct(Scheme(Int(8), Scale(PerToken(), dynamic=True), ZeroPoint(), division=False)).multiplier
    'first'
    """

    input: Scheme = field(validator=instance_of(Scheme))
    multiplier: str = field(default="first", kw_only=True, validator=one_of(("first", "last", "both")))
    scales: str = field(default="after", kw_only=True, validator=one_of(("after", "inside")))
    zero_point: WeightSums | None = field(default=None, kw_only=True, validator=instance_of(WeightSums, optional=True))
    lanes: Lanes | RegisterLanes | BrgemmChunks = field(
        default=Lanes(), kw_only=True, validator=instance_of(Lanes, RegisterLanes, BrgemmChunks)
    )
    minimums: MinimumSums | None = field(default=None, kw_only=True, validator=instance_of(MinimumSums, optional=True))
    offset: LaneOffset | None = field(default=None, kw_only=True, validator=instance_of(LaneOffset, optional=True))
    groups: TokenGroups | None = field(default=None, kw_only=True, validator=instance_of(TokenGroups, optional=True))
    tiles: TokenTiles | None = field(default=None, kw_only=True, validator=instance_of(TokenTiles, optional=True))
    sequences: str = field(default="together", kw_only=True, validator=one_of(("together", "apart")))
    fma: bool = field(default=True, kw_only=True, validator=instance_of(bool))
    fused_bias: bool = field(default=False, kw_only=True, validator=instance_of(bool))
    denormals: bool = field(default=True, kw_only=True, validator=instance_of(bool))
    clamps: bool = field(default=False, kw_only=True, validator=instance_of(bool))

    def __attrs_post_init__(self) -> None:
        scale, zero = self.input.scale, self.input.zero_point
        last = isinstance(scale.shared, PerToken) or (isinstance(scale.shared, PerBlock) and scale.shared.axis == -1)
        plain = not (scale.power_of_two or scale.signed or scale.within or scale.minimum_range or scale.low or scale.high)
        computed = zero is None or (zero.value is None and zero.nudge != "outward" and zero.added == "after")
        stored = scale.format in (FLOAT32, FLOAT16, BFLOAT16)
        if not (isinstance(self.input.format, Int) and scale.dynamic and last and plain and computed and stored):
            wanted = "integers with dynamic scales of tokens or of blocks along the last axis, of 16 or 32 bits"
            raise refuse(self, "input", self.input, wanted, "Give Scheme(Int(8), Scale(PerToken(), dynamic=True), ...).")
        if self.input.division:
            raise refuse(self, "input", self.input, "no division", "Give the scheme division=False: codes are R(x r) + z.")
        if isinstance(scale.shared, PerBlock) and self.scales == "after":
            wanted = "scales of tokens, because the blocks of a sum have several scales"
            raise refuse(self, "input", self.input, wanted, 'Give scales="inside".')
        if self.zero_point is not None and self.scales == "inside":
            wanted = 'None with scales="inside", for WeightSums are in units of s_w'
            raise refuse(self, "zero_point", self.zero_point, wanted, 'Drop it, or give scales="after".')
        inside = self.scales == "inside" and self.fma and self.denormals and isinstance(self.lanes, Lanes)
        for name in ("minimums", "offset", "groups", "tiles"):
            if getattr(self, name) is not None and not inside:
                wanted = 'None, except for fused sums in Lanes, scales="inside" and denormals'
                raise refuse(self, name, getattr(self, name), wanted, 'Drop it, or give scales="inside".')
        if self.groups is not None and (self.tiles is not None or (self.minimums is not None and self.minimums.inside)):
            raise refuse(self, "groups", self.groups, "None with tiles, or with minimums inside", "Drop one of them.")
        if self.sequences == "apart" and self.groups is None and self.tiles is None:
            wanted = '"together", unless groups or tiles count tokens'
            raise refuse(self, "sequences", self.sequences, wanted, "Drop it, or give groups or tiles.")
        if not isinstance(self.lanes, Lanes):
            quotient = "both" if isinstance(self.lanes, RegisterLanes) else "last"
            blocks = isinstance(scale.shared, PerBlock) and zero is None and self.input.format == Int(8, low=-127)
            sums = self.multiplier == quotient and self.scales == "inside" and self.fma and self.denormals and not self.clamps
            if not blocks or not sums or scale.format != FLOAT32 or self.input.rounding != "half_even":
                wanted = f'Lanes, except for symmetric blocks of Int(8, low=-127), multiplier="{quotient}" and scales="inside"'
                raise refuse(self, "lanes", self.lanes, wanted, "Give Lanes, or those values and no others.")

    @property
    def run_time_input(self) -> Scheme:
        """The scheme of the input."""
        return self.input

    @property
    def float_bias(self) -> bool:
        """True: the bias is a real number."""
        return True

    def refuses(self, unit: UnitSpec) -> str:
        """Return the reason for an input that is not quantized at run time as here, and for weights in other forms."""
        inputs = [o for o in unit.operands if o.slot == "input" and o.run_time is not None]
        if len(inputs) != 1:
            return "its input is not quantized at run time"
        if inputs[0].run_time != self.input:
            return "its input is quantized at run time in another scheme than that of the kernel"
        weights = [o for o in unit.operands if o.slot == "weight"]
        if len(weights) != 1 or weights[0].coding is None:
            return "its weight carries no qparams"
        scheme = weights[0].coding.scheme
        if scheme.minimum != (self.minimums is not None):
            return f"its weight has {'' if scheme.minimum else 'no '}minimums"
        fused = self.fma and self.scales == "inside" and isinstance(self.lanes, Lanes)
        if scheme.scale.integers is not None and not fused:
            return "the scales of its weight have integers"
        return unfit_weight(scheme, weights[0].channel_axis, self.input, self.lanes)

    def kernel(self, unit: UnitSpec) -> Computation:
        """Return the real values of a product: its r, z, q_x, s_x and v are inner results."""
        if unit.kind not in ("linear", "matmul"):
            raise unit.unfit(self, ("linear", "matmul"))
        x, weight, bias = (unit.operand(slot) for slot in ("input", "weight", "bias"))
        assert x is not None
        assert weight is not None  # `refuses` has no reason
        real, shared = Real(x), self.input.scale.shared
        added = None if bias is None else Real(bias)
        if not isinstance(self.lanes, Lanes):
            assert isinstance(shared, PerBlock)  # as __attrs_post_init__ requires
            product = register_product if isinstance(self.lanes, RegisterLanes) else chunk_product
            return product(unit, real, weight, added, shared.size)
        return self._product(unit, real, weight, added)

    def _product(self, unit: UnitSpec, x: Real, weight: Operand, bias: Real | None) -> Computation:
        scheme, flushes = self.input, not self.denormals
        fmt, shared = scheme.format, scheme.scale.shared
        assert isinstance(fmt, Int)  # as __attrs_post_init__ requires
        size = shared.size if isinstance(shared, PerBlock) else None
        steps = divisor(scheme) if scheme.symmetric else float(fmt.qmax - fmt.qmin)
        span = (size, steps, scheme.symmetric, self.multiplier)
        r, z = Computation(multipliers, (x, *span, flushes), "multiplier"), None
        if scheme.zero_point is not None:
            ends = (fmt.qmin, fmt.qmax, scheme.zero_point.rounding, scheme.zero_point.nudge == "nearest")
            z = Computation(input_zero_points, (x, r, size, *ends, flushes), "zero_point")
        q = Computation(input_codes, (x, r, z, fmt.qmin, fmt.qmax, scheme.rounding, flushes), "input_codes")
        s_x = Computation(input_scales, (x, r, *span, DTYPES[scheme.scale.format], flushes), "input_scale")
        inside, held = (s_x if self.scales == "inside" else None), stored(weight)
        parts = (held.integers, self.minimums, self.offset, self.groups, self.tiles)
        if any(part is not None for part in parts):
            single = Computation(input_scales, (x, r, *span, "float32", flushes), "input_scale_float32")
            assert isinstance(self.lanes, Lanes)
            more = More(self.lanes, self.minimums, self.offset, self.groups, self.tiles, self.sequences)
            v = sums_with_minimums(more, held, q, s_x, single)
        else:
            v = self._sums(q, z, inside, (Constant(held.codes, of=weight), Constant(held.scale, "weight_scale")))
        after = s_x if inside is None else None
        return Computation(scaled_sums, (v, after, bias, unit.every_clamp, self.clamps, flushes, self.fused_bias))

    def _sums(self, q: Computation, z: Computation | None, s_x: Computation | None, weight: tuple[Constant, Constant]) -> Any:
        lanes, flushes, start = self.lanes, not self.denormals, None
        assert isinstance(lanes, Lanes)
        if self.zero_point is not None and z is not None:
            sums = weight_sums(weight[0].value, weight[1].value, self.zero_point.run)
            k = Constant(flushed(sums, flushes), "sums")
            if offset := self.zero_point.offset:
                q, z = (Computation(torch.add, (t, offset), f"{t.name}_unsigned") for t in (q, z))
            start, z = Computation(torch.mul, (k, z), "start"), None
        order = (lanes.count, lanes.run, self.fma, flushes, start, lanes.order, None, None, None, lanes.rest)
        return Computation(block_sums, (q, z, s_x, *weight, *order), "sums")

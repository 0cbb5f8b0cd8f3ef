"""Witnesses of requantization: one unit in one arithmetic."""

from __future__ import annotations

from typing import Any

import torch
from attrs import evolve
from torch import Tensor, nn

import qfunc
from qfunc import targets
from qfunc.estimators import MinMax
from qfunc.functions import Fixed, GgmlBlocks
from qfunc.numerics.libraries import WindowSum
from qfunc.specs import (
    FLOAT16, FLOAT32, KPU, Accumulator, Algorithm, AppendCodes, AverageCodes, AveragePool, Bilinear, BrgemmChunks,
    CachedAttention, Copy, DequantizeSum, DerivedQParams, DynamicProduct, ExpertSums, FixedBits, FixedPoint, FixedPointGemv,
    FixedPointLanes, FixedQParams, FloatKernel, FloatMatmul, FloatMultiplier, FloatRequantize, Fusion, FusionStep, GluTable,
    HardSwish16, Int, KeepFloat, Kernel, LaneOffset, Lanes, MinimumSums, NormFixed, Op, PerBlock, PerChannel, PerToken,
    ProductLanes, QuantizeInt32, QuantizeLanes, QuantizeRange, RegisterLanes, Rule, SameQParams, SaturatesAtEnd,
    SaturatesEachStep, SaturatesPairs, Scale, ScaleStage, Scheme, SegmentStage, Shift, SoftmaxFixed, SoftmaxFloat, SoftmaxTable,
    SoftmaxTable16, Stages, SumFma, SumScaled, SumShifted, Target, Tie, TokenGroups, TokenTiles, WeightSums, ZeroPoint,
)  # fmt: skip
from qfunc.targets.onnxruntime.dynamic_lstm import RUN_TIME, DynamicLstm
from qfunc.targets.runtimes import MatMulNBitsLowering
from tests.specs.witnesses.witness import BYTE, WEIGHT, Witness, chip, codes, drawn, seeded, witness

ANY = Op(
    ("conv", "conv_transpose", "linear", "matmul", "add", "mul", "avg_pool", "leaky_relu", "hardswish", "softmax", "resize",
     "max_pool", "relu", "sigmoid", "glu", "group_norm")
)  # fmt: skip
AFFINE = Scheme(BYTE, zero_point=ZeroPoint())
TWOS = Scheme(BYTE, Scale(power_of_two=True))


class Sum(nn.Module):
    """x plus y."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return x + y


class Product(nn.Module):
    """x times y."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return x * y


class Gram(nn.Module):
    """A linear layer times its transpose."""

    def __init__(self, width: int = 300) -> None:
        super().__init__()
        self.layer = nn.Linear(20, width)

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x)
        return y @ y.mT


class Upsampled(nn.Module):
    """A bilinear resize."""

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.interpolate(x, size=(7, 8), mode="bilinear")


CONV_NET, X = seeded(nn.Conv2d(3, 4, 3)), drawn(2, 3, 5, 5)
TURNED, FLAT = seeded(nn.ConvTranspose2d(3, 10, 2)), drawn(3, 20)


def chip_of(arithmetic: Any = Copy(), scheme: Any = AFFINE, bias: Any = DerivedQParams(), **changes: Any) -> Target:
    """A chip whose ops all have one arithmetic and one scheme."""
    weight = TWOS if scheme == TWOS else WEIGHT
    rules = Rule(ANY, input=scheme, weight=weight, bias=bias, output=scheme)
    return chip(*changes.pop("kernels", (Kernel(ANY, arithmetic),)), rules=rules, **changes)


def of(arithmetic: Any, net: nn.Module = CONV_NET, *inputs: Tensor, scheme: Any = AFFINE, **changes: Any) -> Witness:
    """A network in an arithmetic, and in the arithmetic with changes."""
    other = evolve(arithmetic, **changes)
    return witness(chip_of(arithmetic, scheme), arithmetic, other, net, *(inputs or (X,)))


def single(weight: float, bias: float = 0.0) -> nn.Module:
    """One weight and, if it is not 0, a bias."""
    net = nn.Conv2d(1, 1, 1, bias=bias != 0).eval()
    with torch.no_grad():
        for tensor, value in zip(net.parameters(), (weight, bias), strict=False):
            tensor.fill_(value)
    return net


def fixed(arithmetic: Any, x: float, y: float, zero: int = 0, weight: float = 1.0) -> Target:
    """A chip whose scales are given: x of the input, y of the output."""
    whole = Scheme(BYTE, zero_point=ZeroPoint())
    rules = Rule(ANY, input=FixedQParams(whole, x), weight=FixedQParams(Scheme(), weight), output=FixedQParams(whole, y, zero))
    return chip(Kernel(ANY, arithmetic), rules=rules)


MULTIPLES = torch.arange(-100, 101).float().reshape(1, 1, 3, 67)
HALVES = MULTIPLES + 0.5
PAIRS = torch.arange(-50, 206).float().reshape(1, 1, 4, 64)
MIDDLE = float(torch.tensor((0.5 - 2**-18) / 3))  # 3 * MIDDLE + 100 is halfway between two float32 only if it is rounded twice
PRODUCT = FloatKernel(rounding="floor", division=False, zero_point="before")
UP, REAL = FloatMultiplier("half_up", zero_point="before"), FloatRequantize("half_up")
FLOORED = FloatRequantize("floor")
EACH = Accumulator(10, SaturatesEachStep())
INVERSE = FloatRequantize("floor", reciprocals=True)
ROUNDED = float(torch.tensor(0.01) * torch.tensor(0.1))  # above the product of the two float32
GEMV, ROW = FixedPointGemv("half_up", "half_up", columns=2), drawn(1, 5)
LANES, TWO, RUNS = FixedPointLanes(), ProductLanes(), SumShifted(lanes=16)
HELD, ONES = FloatMultiplier(accumulator=Accumulator(32, SaturatesAtEnd())), nn.Conv2d(3, 4, 3)
nn.init.ones_(ONES.weight)
POOL = nn.AvgPool2d(3, 1)
BYTES = Scheme(Int(8, signed=False), zero_point=ZeroPoint())
DYNAMIC = DynamicProduct(Scheme(Int(8), Scale(PerToken(), dynamic=True), ZeroPoint(), division=False))
IN_LANES = evolve(DYNAMIC, lanes=Lanes(4, 2))
RAGGED = evolve(DYNAMIC, lanes=Lanes(4, 3))
BY_SUMS = evolve(DYNAMIC, zero_point=WeightSums(4))
LINEAR, TOKENS = nn.Linear(32, 20), drawn(50, 32) * 3 + 1
LINEAR.weight.data = drawn(20, 32) * 2.0 ** torch.arange(20)[:, None].sub(9) * 3.0 ** torch.arange(4).repeat_interleave(8)
BLOCKS = Scheme(Int(4), Scale(PerBlock(-1, 8)))
BARE = seeded(nn.Linear(32, 20, bias=False))
FAR = 3e38 * torch.tensor([[1.0, -1.0]]).repeat(1, 16)


IN_BLOCKS = Scheme(Int(8, low=-127), Scale(PerBlock(-1, 16), dynamic=True), division=False)
CHUNKS = DynamicProduct(IN_BLOCKS, multiplier="last", scales="inside", lanes=BrgemmChunks())
REGISTERS = DynamicProduct(IN_BLOCKS, multiplier="both", scales="inside", lanes=RegisterLanes())
INSIDE = evolve(REGISTERS, lanes=Lanes(4, 2))
OFFSET = evolve(INSIDE, offset=LaneOffset(8, run=4))
ONE_LANE = evolve(INSIDE, lanes=Lanes())
GROUPED = evolve(ONE_LANE, groups=TokenGroups(4, part=4))
WITH_MINIMUMS = Scheme(Int(4, signed=False), Scale(PerBlock(-1, 16), format=FLOAT16, rounded="after"), minimum=True)
BY_MINIMUMS = evolve(INSIDE, minimums=MinimumSums())
TILED = evolve(INSIDE, tiles=TokenTiles(8))
PAIR = TOKENS.reshape(2, 25, 32)


def dynamic(
    product: DynamicProduct, net: nn.Module = LINEAR, x: Tensor = TOKENS, weight: Scheme = BLOCKS, **changes: Any
) -> Witness:
    """A linear layer whose input is quantized at run time, and one whose arithmetic differs in one field."""
    formats = (("input", (FLOAT32,)), ("weight", (weight.format,)), ("output", (FLOAT32,)))
    rules = Rule(Op("linear"), input=product.input, weight=weight)
    algorithm = Algorithm(MinMax(), GgmlBlocks() if weight.searched else Fixed())
    other, kernel = evolve(product, **changes), Kernel(Op("linear"), product, formats=formats)
    return witness(chip(kernel, rules=rules, weight=algorithm), product, other, net, x)


IN_FLOAT = (("input", (FLOAT32,)), ("output", (FLOAT32,)))
MATMULS = chip(
    Kernel(Op("linear"), FloatMultiplier(), formats=(("input", (BYTE,)), ("output", (FLOAT32,)))),
    Kernel(Op("matmul"), FloatMatmul(), formats=IN_FLOAT),
    rules=Rule(Op("linear"), input=AFFINE, weight=WEIGHT, bias=DerivedQParams()),
)

LSTMS = chip(
    Kernel(Op("lstm"), DynamicLstm(), formats=(("input", (FLOAT32,)), ("weight", (WEIGHT.format,)), ("output", (FLOAT32,)))),
    rules=Rule(Op("lstm"), input=RUN_TIME, weight=WEIGHT),
)


class Steps(nn.Module):
    """The outputs of all steps of an LSTM."""

    def __init__(self, entries: int, size: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(entries, size)

    def forward(self, x: Tensor) -> Tensor:
        return self.lstm(x)[0]  # type: ignore[no-any-return]


CACHED = chip(
    Kernel(Op("index_put"), AppendCodes(), integer_if=SameQParams(), formats=(("input", (BYTE,)), ("output", (BYTE,)))),
    Kernel(Op("cached_attention"), CachedAttention(), formats=(("input", (BYTE, FLOAT32)), ("output", (FLOAT32,)))),
    rules=Rule(Op("index_put"), input=Scheme(BYTE), output=Scheme(BYTE)),
    ties=(Tie(Op("index_put"), ("input", "output"), "union"),),
)


class Cached(nn.Module):
    """Attention to a cache whose keys and values are those of the tokens."""

    def forward(self, input_ids: Tensor, position_ids: Tensor, past_key_values: Any, use_cache: bool) -> tuple[Tensor]:
        x = torch.sin(input_ids[:, None, :, None] * torch.arange(1.0, 17.0))
        keys, values = past_key_values.update(x, x, 0)
        seen = torch.arange(keys.shape[2]) <= position_ids[:, None, :, None]
        return (nn.functional.scaled_dot_product_attention(x, keys, values, attn_mask=seen)[:, 0],)


DECODER = qfunc.decoder(4)(Cached())
PROMPT = DECODER.inputs(torch.tensor([[3, 1, 2], [5, 7, 4]]))

EXPERTS = targets.onnxruntime_nbits(8, 32, stacked_experts=True)
ONE_THREAD = MatMulNBitsLowering(experts=ExpertSums(1))


class SumOfExperts(nn.Module):
    """Four experts, of which each token passes all."""

    def __init__(self) -> None:
        super().__init__()
        self.ups, self.downs = (nn.ModuleList(nn.Linear(32, n) for _ in range(4)) for n in (64, 32))

    def forward(self, x: Tensor) -> Tensor:
        """[T, 32] -> [T, 32]."""
        chosen = x[:, :4].argsort(-1)
        shares = (torch.nn.functional.one_hot(chosen, 4).float() * x[:, 4:8].softmax(-1)[..., None]).sum(-2)
        total = None
        for e, (up, down) in enumerate(zip(self.ups, self.downs, strict=True)):
            gate, factor = up(x).chunk(2, -1)
            part = down(torch.nn.functional.silu(gate) * factor) * shares[:, e : e + 1]
            total = part if total is None else total + part
        return total


COARSE = Stages(ScaleStage("floor", 22, shift=15), SegmentStage("floor", shift=0))
"""Two stages whose first rounds to codes."""
NARROWER = evolve(COARSE, first=evolve(COARSE.first, addend=6))


def held(accumulator: Any, other: Any, net: nn.Module = CONV_NET) -> Witness:
    """A convolution with one accumulator, and with another."""
    one = FloatMultiplier(accumulator=accumulator)
    return witness(chip_of(one), one, FloatMultiplier(accumulator=other), net, X)


def staged(before: Stages, **changes: Any) -> Witness:
    """A convolution in two stages, and the stages with changes."""
    weight = Scheme(Int(8, signed=False), Scale(PerChannel()), ZeroPoint(value=128))
    rules = Rule(Op("conv"), input=BYTES, weight=weight, bias=KeepFloat(), output=BYTES)
    return witness(chip(Kernel(Op("conv"), before), rules=rules), before, evolve(before, **changes), CONV_NET, X)


WITNESSES = {
    "Accumulator.bits": held(EACH, Accumulator(12, SaturatesEachStep())),
    "Accumulator.overflow": held(EACH, Accumulator(10, SaturatesAtEnd())),
    "Wraps": held(10, Accumulator(10, SaturatesAtEnd())),
    "SaturatesAtEnd": held(Accumulator(10, SaturatesAtEnd()), EACH),
    "SaturatesPairs": witness(
        chip_of(HELD, BYTES), HELD, FloatMultiplier(accumulator=Accumulator(32, SaturatesPairs())), ONES, X.abs()
    ),
    "SaturatesEachStep.order": held(EACH, Accumulator(10, SaturatesEachStep(("position", "channel")))),
    "SaturatesEachStep.bias": held(EACH, Accumulator(10, SaturatesEachStep(bias="last"))),
    "SaturatesEachStep.products": held(EACH, Accumulator(10, SaturatesEachStep(products=4))),
    "FloatMultiplier.rounding": of(FloatMultiplier(), rounding="floor"),
    "FloatMultiplier.zero_point": of(FloatMultiplier("trunc"), zero_point="before"),
    "FloatMultiplier.fma": witness(
        fixed(UP, MIDDLE, 1.0, zero=100), UP, evolve(UP, fma=True), single(1.0), torch.full((1, 1, 1, 1), 3 * MIDDLE)
    ),
    "FloatMultiplier.float_bias": witness(
        chip_of(FloatMultiplier("floor"), bias=KeepFloat()),
        FloatMultiplier("floor"),
        FloatMultiplier("floor", float_bias=True),
        CONV_NET,
        X,
    ),
    "FloatMultiplier.dtype": witness(
        # 0.3 / 0.1 is 3 in float32, and more in float64.
        fixed(FloatMultiplier("floor"), 0.3, 0.1),
        FloatMultiplier("floor"),
        FloatMultiplier("floor", dtype="float64"),
        single(1.0),
        MULTIPLES * 0.3,
    ),
    "FloatMultiplier.accumulator": of(FloatMultiplier(), accumulator=10),
    "FloatRequantize.rounding": of(FloatRequantize(), rounding="floor"),
    "FloatRequantize.fma": witness(
        fixed(REAL, MIDDLE, 1.0), REAL, evolve(REAL, fma=True), single(1.0, 100.0), torch.full((1, 1, 1, 1), 3 * MIDDLE)
    ),
    "FloatRequantize.division": witness(
        fixed(FLOORED, 0.3, 0.3), FLOORED, evolve(FLOORED, division=False), single(1.0), MULTIPLES * 0.3
    ),
    "FloatRequantize.accumulator": of(FloatRequantize(), accumulator=10),
    "FloatRequantize.reciprocals": witness(
        fixed(FLOORED, 0.03, 0.03 * 0.9, weight=0.9), FLOORED, evolve(FLOORED, reciprocals=True), single(0.9), MULTIPLES * 0.03
    ),
    "FloatRequantize.by_range": witness(
        fixed(FloatRequantize(), 0.3, 0.6), FloatRequantize(), FloatRequantize(by_range=True), single(1.0), MULTIPLES * 0.3
    ),
    "FloatRequantize.quotient": witness(
        fixed(INVERSE, 0.07, 0.07 * 0.9, weight=0.9), INVERSE, evolve(INVERSE, quotient=True), single(0.9), MULTIPLES * 0.07
    ),
    "FloatRequantize.merged": witness(
        evolve(fixed(FLOORED, 0.03, 0.03 * 0.9, weight=0.9), fusions=Fusion(Op("conv"), FusionStep(Op("relu")))),
        FLOORED,
        evolve(FLOORED, merged=True),
        nn.Sequential(single(0.9), nn.ReLU()),
        MULTIPLES * 0.03,
    ),
    "FixedPoint.steps": of(FixedPoint("half_up"), steps="floor"),
    "FixedPoint.float_ratio": witness(
        fixed(FixedPoint("floor"), 0.01, 0.01 * 0.1, weight=0.1),
        FixedPoint("floor"),
        FixedPoint("floor", float_ratio=True),
        single(0.1),
        MULTIPLES * 0.01,
    ),
    "FixedPoint.float_product": witness(
        fixed(FixedPoint("floor"), 0.01, ROUNDED, weight=0.1),
        FixedPoint("floor"),
        FixedPoint("floor", float_product=True),
        single(0.1),
        MULTIPLES * 0.01,
    ),
    "FixedPointGemv.float_product": witness(
        fixed(FixedPointGemv("floor", "floor"), 0.01, ROUNDED, weight=0.1),
        FixedPointGemv("floor", "floor"),
        FixedPointGemv("floor", "floor", float_product=True),
        single(0.1),
        MULTIPLES * 0.01,
    ),
    "FixedPointGemv.steps": of(GEMV, steps="floor"),
    "FixedPointGemv.vector": of(GEMV, seeded(nn.Linear(5, 9)), ROW, vector="floor"),
    "FixedPointGemv.rows": of(evolve(GEMV, vector="floor"), seeded(nn.Linear(5, 9)), ROW, rows=10),
    "FixedPointGemv.columns": of(evolve(GEMV, vector="floor"), seeded(nn.Linear(5, 9)), ROW, columns=6),
    "FixedPoint.bits": of(FixedPoint(), bits=7),
    "FixedPoint.accumulator": of(FixedPoint(), accumulator=10),
    "FixedPoint.reduced": of(FixedPoint("half_up"), reduced=7),
    "FixedPointLanes.steps": of(LANES, TURNED, X, steps="floor"),
    "FixedPointLanes.rest": of(LANES, TURNED, X, rest="floor"),
    "FixedPointLanes.lanes": of(evolve(LANES, rest="floor"), TURNED, X, lanes=3),
    "ProductLanes.bits": witness(fixed(TWO, 1.0, 0.125, 5), TWO, evolve(TWO, bits=20), Product(), MULTIPLES, MULTIPLES),
    "ProductLanes.lanes": witness(fixed(TWO, 1.0, 0.125, 5), TWO, evolve(TWO, lanes=3), Product(), MULTIPLES, MULTIPLES),
    "Shift.rounding": of(Shift("half_up"), scheme=TWOS, rounding="floor"),
    "Shift.accumulator": of(Shift("half_up"), scheme=TWOS, accumulator=10),
    "SumFma.rounding": of(SumFma(), Sum(), X, X.flip(0), rounding="floor"),
    "SumFma.fma": of(SumFma("floor"), Sum(), PAIRS, PAIRS.flip(3) * -0.4, fma=False),
    "SumShifted.left_shift": of(SumShifted(), Sum(), X, X.flip(0), left_shift=2),
    "SumShifted.steps": of(SumShifted(), Sum(), X, X.flip(0), steps="floor"),
    "SumShifted.bits": witness(fixed(RUNS, 1.0, 0.125, 5), RUNS, evolve(RUNS, bits=9), Sum(), MULTIPLES, MULTIPLES),
    "SumShifted.lanes": of(SumShifted(left_shift=2), Sum(), X, 1.5 * X.flip(0), lanes=4),
    "SumScaled.rounding": of(SumScaled(), Sum(), X, X.flip(0), rounding="floor"),
    "SumScaled.bits": of(SumScaled(), Sum(), X, X.flip(0), bits=7),
    "SumScaled.least": of(SumScaled(), Sum(), X, X * 2**-12, least=-14),
    "SumScaled.outside": of(SumScaled(), Sum(), X, X * 2**-12, outside=FloatKernel()),
    "AveragePool.rounding": of(AveragePool("half_up"), POOL, X, scheme=TWOS, rounding="floor"),
    "AveragePool.reciprocals": of(AveragePool("half_up"), POOL, X, scheme=TWOS, reciprocals=(((3, 3), 1, 3),)),
    "AveragePool.reciprocal_bits": of(AveragePool("half_up"), POOL, X, scheme=TWOS, reciprocal_bits=1),
    "AverageCodes.rounding": of(AverageCodes("half_up"), POOL, X, rounding="floor"),
    "AverageCodes.centred": of(AverageCodes("trunc"), POOL, X, centred=True),
    "FixedBits.rounding": of(FixedBits(), nn.LeakyReLU(0.3), X, rounding="floor"),
    "FixedBits.bits": of(FixedBits(), nn.LeakyReLU(0.3), X, bits=3),
    "FixedBits.least": of(FixedBits(bits=4), nn.LeakyReLU(0.3), X, least=0.5),
    "HardSwish16.lanes": witness(
        fixed(HardSwish16(), 1 / 32, 1 / 64), HardSwish16(), HardSwish16(lanes=8), nn.Hardswish(), MULTIPLES / 32
    ),
    "GluTable": witness(chip_of(GluTable()), GluTable(), FloatKernel(rounding="floor"), nn.GLU(1), drawn(2, 4, 5, 5)),
    "NormFixed": witness(chip_of(NormFixed()), NormFixed(), FloatKernel(rounding="floor"), nn.GroupNorm(1, 3, affine=False), X),
    "Bilinear.positions": of(Bilinear("integer", 10), Upsampled(), X, positions="float"),
    "Bilinear.bits": of(Bilinear("integer", 10), Upsampled(), X, bits=2),
    "SoftmaxFloat": witness(chip_of(SoftmaxFloat()), SoftmaxFloat(), SoftmaxTable("floor"), nn.Softmax(-1), X),
    "SoftmaxTable16": witness(chip_of(SoftmaxTable16()), SoftmaxTable16(), SoftmaxTable("floor"), nn.Softmax(-1), X),
    "SoftmaxFixed": witness(chip_of(SoftmaxFixed()), SoftmaxFixed(), SoftmaxFloat(), nn.Softmax(-1), X),
    "SoftmaxTable.rounding": of(SoftmaxTable(), nn.Softmax(-1), X, rounding="floor"),
    "SoftmaxTable.saturates": of(SoftmaxTable(), nn.Softmax(1), X[:, :1], saturates=True),
    "FloatKernel.dtype": of(FloatKernel(), nn.Sigmoid(), X, dtype="bfloat16"),
    "FloatKernel.rounding": of(FloatKernel(), nn.Sigmoid(), X, rounding="floor"),
    "FloatKernel.division": witness(
        fixed(FloatKernel(rounding="floor"), 0.3, 0.3),
        FloatKernel(rounding="floor"),
        FloatKernel(rounding="floor", division=False),
        nn.LeakyReLU(1.0),
        MULTIPLES * 0.3,
    ),
    "FloatKernel.wide": witness(
        fixed(FloatKernel("float64", "floor"), 0.3, 0.1),
        FloatKernel("float64", "floor"),
        FloatKernel("float64", "floor", wide=True),
        nn.LeakyReLU(1.0),
        MULTIPLES * 0.3,
    ),
    "FloatKernel.zero_point": of(FloatKernel(rounding="trunc"), nn.Sigmoid(), X, zero_point="before"),
    "FloatKernel.fma": witness(
        fixed(PRODUCT, 0.3, 0.3 / 7, 100), PRODUCT, evolve(PRODUCT, fma=True), nn.LeakyReLU(1.0), MULTIPLES * 0.3
    ),
    "FloatKernel.denormals": witness(
        fixed(FloatKernel(), 0.3, 2.0**-131),
        FloatKernel(),
        FloatKernel(denormals=False),
        nn.LeakyReLU(2.0**-127),
        MULTIPLES * 0.3,
    ),
    "FloatKernel.function": of(FloatKernel(), nn.Sigmoid(), X, function=WindowSum()),
    "Copy": witness(fixed(Copy(), 0.3, 0.3), Copy(), FloatKernel(rounding="floor"), nn.MaxPool2d(1), MULTIPLES * 0.3),
    "QuantizeInt32.saturates": witness(
        evolve(fixed(Copy(), 1e-10, 1e-10), kernels=(Kernel(Op("quantize"), QuantizeInt32()),)),
        QuantizeInt32(),
        QuantizeInt32(saturates=True),
        single(1.0),
        drawn(2, 1, 5, 5),
    ),
    "QuantizeLanes.saturates": witness(
        evolve(fixed(Copy(), 1e-10, 1e-10), kernels=(Kernel(Op("quantize"), QuantizeLanes()),)),
        QuantizeLanes(),
        QuantizeLanes(saturates=True),
        single(1.0),
        drawn(2, 1, 5, 5),
    ),
    "QuantizeLanes.rest": witness(
        chip_of(kernels=(Kernel(Op("quantize"), QuantizeLanes()),)), QuantizeLanes(), QuantizeLanes("floor"), CONV_NET, X
    ),
    "QuantizeLanes.lanes": witness(
        chip_of(kernels=(Kernel(Op("quantize"), QuantizeLanes("floor")),)),
        QuantizeLanes("floor"),
        QuantizeLanes("floor", lanes=7),
        CONV_NET,
        X,
    ),
    "QuantizeRange": witness(
        evolve(fixed(Copy(), 0.3, 0.3), kernels=(Kernel(Op("quantize"), QuantizeRange()),)),
        QuantizeRange(),
        FloatKernel(),
        single(1.0),
        HALVES * 0.3,
    ),
    "DequantizeSum.lanes": witness(
        chip_of(kernels=(Kernel(Op("dequantize"), DequantizeSum()),)), DequantizeSum(), DequantizeSum(1000), CONV_NET, X
    ),
    "DequantizeSum.fma": witness(
        chip_of(kernels=(Kernel(Op("dequantize"), DequantizeSum()),)), DequantizeSum(), DequantizeSum(fma=True), CONV_NET, X
    ),
    "DynamicProduct.input": dynamic(DYNAMIC, input=evolve(DYNAMIC.input, rounding="floor")),
    "DynamicProduct.multiplier": dynamic(DYNAMIC, multiplier="both"),
    "DynamicProduct.scales": dynamic(DYNAMIC, scales="inside"),
    "DynamicProduct.zero_point": dynamic(DYNAMIC, zero_point=WeightSums(4)),
    "DynamicProduct.minimums": dynamic(INSIDE, minimums=MinimumSums()),
    "DynamicProduct.offset": dynamic(INSIDE, offset=LaneOffset(8, run=4)),
    "DynamicProduct.groups": dynamic(ONE_LANE, groups=TokenGroups(4, part=4)),
    "MinimumSums.lanes": dynamic(BY_MINIMUMS, weight=WITH_MINIMUMS, minimums=MinimumSums(Lanes(2, 4))),
    "MinimumSums.rounded": dynamic(BY_MINIMUMS, weight=WITH_MINIMUMS, minimums=MinimumSums(rounded=FLOAT16)),
    "LaneOffset.offset": dynamic(OFFSET, offset=LaneOffset(9, run=4)),
    "LaneOffset.run": dynamic(OFFSET, offset=LaneOffset(8, run=1)),
    "DynamicProduct.tiles": dynamic(INSIDE, tiles=TokenTiles(8)),
    "DynamicProduct.sequences": dynamic(GROUPED, x=PAIR, sequences="apart"),
    "MinimumSums.inside": dynamic(BY_MINIMUMS, weight=WITH_MINIMUMS, minimums=MinimumSums(inside=True)),
    "TokenTiles.least": dynamic(TILED, tiles=TokenTiles(51)),
    "TokenGroups.tokens": dynamic(GROUPED, groups=TokenGroups(7, part=4)),
    "TokenGroups.part": dynamic(GROUPED, groups=TokenGroups(4, part=2)),
    "DynamicProduct.lanes": dynamic(DYNAMIC, lanes=Lanes(4, 2)),
    "DynamicLstm.overflow": witness(
        LSTMS, DynamicLstm(), DynamicLstm(SaturatesPairs()), seeded(Steps(8, 4)), torch.ones(3, 2, 8)
    ),
    "DynamicLstm.fma": witness(LSTMS, DynamicLstm(), DynamicLstm(fma=False), seeded(Steps(8, 4)), drawn(20, 9, 8)),
    "AppendCodes.unwritten": witness(CACHED, AppendCodes(), AppendCodes(-8), DECODER.program, *PROMPT),
    "CachedAttention": witness(CACHED, CachedAttention(), FloatKernel(), DECODER.program, *PROMPT),
    "FloatMatmul.depth": witness(MATMULS, FloatMatmul(), FloatMatmul(16), seeded(Gram()), FLAT),
    "ExpertSums.threads": Witness(
        EXPERTS, evolve(EXPERTS, lowering=ONE_THREAD), seeded(SumOfExperts()), (drawn(20, 32),), codes
    ),
    "FloatMatmul.threads": witness(MATMULS, FloatMatmul(), FloatMatmul(threads=3), seeded(Gram(2**14)), drawn(3, 20)),
    "DynamicProduct.fma": dynamic(DYNAMIC, fma=False),
    "DynamicProduct.fused_bias": dynamic(DYNAMIC, fused_bias=True),
    "DynamicProduct.denormals": dynamic(DYNAMIC, BARE, TOKENS * 2.0**-121, denormals=False),
    "DynamicProduct.clamps": dynamic(DYNAMIC, x=FAR, clamps=True),
    "Lanes.count": dynamic(IN_LANES, lanes=Lanes(2, 2)),
    "Lanes.order": dynamic(IN_LANES, lanes=Lanes(4, 2, "pairs")),
    "Lanes.rest": dynamic(RAGGED, lanes=Lanes(4, 3, rest="after")),
    "Lanes.run": dynamic(IN_LANES, lanes=Lanes(4, 1)),
    "BrgemmChunks": dynamic(CHUNKS, weight=Scheme(Int(4), Scale(PerBlock(-1, 16))), lanes=Lanes(8, 4)),
    "RegisterLanes": dynamic(REGISTERS, weight=Scheme(Int(4), Scale(PerBlock(-1, 16))), lanes=Lanes(8, 4)),
    "WeightSums.run": dynamic(BY_SUMS, zero_point=WeightSums(8)),
    "WeightSums.offset": dynamic(BY_SUMS, zero_point=WeightSums(4, offset=128)),
    "ScaleStage.rounding": staged(COARSE, first=evolve(COARSE.first, rounding="half_up")),
    "ScaleStage.bits": staged(COARSE, first=evolve(COARSE.first, bits=6)),
    "ScaleStage.shift": staged(COARSE, first=evolve(COARSE.first, shift=2)),
    "ScaleStage.addend": staged(KPU, first=evolve(KPU.first, addend=6)),
    "ScaleStage.value": staged(NARROWER, first=evolve(NARROWER.first, value=6)),
    "SegmentStage.rounding": staged(KPU, then=evolve(KPU.then, rounding="floor")),
    "SegmentStage.shift": staged(COARSE, then=evolve(COARSE.then, shift=9)),
    "Stages.first": staged(COARSE, first=evolve(COARSE.first, rounding="half_up")),
    "Stages.then": staged(KPU, then=evolve(KPU.then, rounding="floor")),
    "Stages.accumulator": staged(KPU, accumulator=12),
}

"""Generated specs: every value that the vocabulary can say, kept small."""

from hypothesis import strategies as st

from qfunc.estimators import Ema, MinMax
from qfunc.functions import Fixed as FixedFunction
from qfunc.numerics.libraries import WindowSum
from qfunc.specs import (
    Algorithm,
    AnyInput,
    ReadBy,
    AppendCodes,
    AtMost,
    Attr,
    AverageCodes,
    AveragePool,
    Bilinear,
    CachedAttention,
    Cases,
    ClampImplied,
    Constant,
    Copy,
    DequantizeSum,
    DerivedQParams,
    DynamicProduct,
    Everything,
    ExpertSums,
    First,
    FixedBits,
    FixedPoint,
    FixedPointGemv,
    FixedPointLanes,
    FixedQParams,
    Float,
    FloatKernel,
    FloatMatmul,
    FloatMultiplier,
    FloatRequantize,
    From,
    FusesOnly,
    Fusion,
    FusionStep,
    GluTable,
    GraphInput,
    GraphOutput,
    HardSwish16,
    InputRatios,
    Int,
    KeepFloat,
    Kernel,
    Lanes,
    Last,
    Levels,
    Limit,
    Log,
    ModuleType,
    Multiple,
    Name,
    NodeName,
    NonNegative,
    NormFixed,
    NoZeroPoint,
    Op,
    OpKind,
    OutputQParams,
    Override,
    PerBlock,
    PerChannel,
    PerTensor,
    PerToken,
    ProductLanes,
    ProductRatio,
    QuantizeInt32,
    QuantizeLanes,
    QuantizeRange,
    Refuse,
    Require,
    RequireSizes,
    RequireUnit,
    Rule,
    Runtime,
    SameQParams,
    SaturatesPairs,
    Scale,
    ScaleStage,
    Scheme,
    SegmentStage,
    Shift,
    SoftmaxFixed,
    SoftmaxFloat,
    SoftmaxTable,
    SoftmaxTable16,
    Span,
    Stages,
    SumFma,
    SumScaled,
    SumShifted,
    Target,
    Tie,
    Trait,
    Unknown,
    WeightSums,
    ZeroPoint,
)  # fmt: skip
from qfunc.specs._check import ROUNDINGS
from qfunc.specs.legality import never_an_op
from qfunc.targets.arithmetics import DynamicLstm, Xnnpack, XnnpackFloat

words = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), min_size=1, max_size=8)
roundings = st.sampled_from([r for r in ROUNDINGS if r != "stochastic"])
flags = st.booleans()
positive = st.floats(1e-6, 1e6)


@st.composite
def ints(draw):
    bits, signed = draw(st.integers(2, 16)), draw(flags)
    full = Int(bits, signed)
    low = draw(st.none() | st.integers(full.qmin, full.qmax - 1))
    high = draw(st.none() | st.integers(full.qmin + 1 if low is None else low + 1, full.qmax))
    return Int(bits, signed, low, high)


floats = st.sampled_from((Float(8, 23), Float(4, 3, max=448.0), Float(2, 1, max=6.0), Float(8, 0, signed=False)))
levels = st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=2, max_size=6, unique=True).map(sorted).map(Levels)
formats = st.one_of(ints(), floats, st.builds(Log, st.integers(1, 15), st.integers(1, 32)), levels)
granularities = st.one_of(
    st.just(PerTensor()),
    st.just(PerToken()),
    st.builds(PerChannel, st.just("channel") | st.integers(-4, 3)),
    st.builds(PerBlock, st.integers(-4, 3), st.integers(1, 128), partial=st.booleans()),
)


@st.composite
def schemes(draw):
    fmt = draw(formats)
    affine = isinstance(fmt, Int) and (draw(flags) or not fmt.qmin <= 0 <= fmt.qmax)
    divisors = ["qmax"] + (["half_range"] if isinstance(fmt, Int) and not affine else [])
    divisors += ["-qmin"] if len(divisors) == 2 and fmt.qmin < 0 else []
    if isinstance(fmt, Int) and not affine and fmt.qmax <= 0:
        divisors.remove("qmax")
    scale = Scale(
        draw(granularities),
        power_of_two=draw(flags),
        low=draw(st.none() | st.sampled_from((2.0**-12, 0.5))),
        high=draw(st.none() | st.sampled_from((1.0, 1024.0))),
        divisor=draw(st.sampled_from(divisors)),
        minimum_range=draw(st.sampled_from((0, 0.0, 1e-4))),
        dynamic=draw(flags),
        within=draw(st.none() | st.just(Scale(format=Float(4, 3, max=448.0)))),
    )
    codes = st.none() | st.integers(fmt.qmin, fmt.qmax) if affine else st.none()
    zero_point = ZeroPoint(draw(roundings), draw(codes)) if affine else None
    rounding = draw(roundings) if isinstance(fmt, Int) else "half_even"
    return Scheme(fmt, scale, zero_point, rounding=rounding, division=draw(flags))


fixed = st.builds(lambda f, s: FixedQParams(Scheme(f, zero_point=ZeroPoint()), s, f.qmin), ints(), positive)
deriveds = st.builds(DerivedQParams, ints(), st.just(("input", "weight")), roundings)
plain = st.one_of(schemes(), deriveds, fixed, st.just(KeepFloat()))

attributes = st.recursive(
    st.none() | flags | st.integers(-(10**18), 10**18) | st.floats(allow_nan=False) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3).map(tuple),
    max_leaves=4,
)
traits = st.sampled_from((*Trait, Trait.CLAMPS | Trait.KEEPS_SIGN))
leaves = st.one_of(
    st.lists(words | traits, min_size=1, max_size=3).map(lambda kinds: Op(tuple(kinds))),
    st.builds(Name, words),
    st.builds(NodeName, words),
    st.builds(ModuleType, words),
    st.builds(Attr, words, attributes),
    st.builds(Multiple, words, st.integers(1, 64)),
    st.builds(AtMost, words, st.integers(-1, 64)),
    st.sampled_from((Everything(), First(), Last(), NonNegative(), GraphInput(), GraphOutput(), Constant())),
)
selectors = st.recursive(
    leaves,
    lambda s: st.one_of(
        st.builds(From, s),
        st.builds(AnyInput, s),
        st.builds(ReadBy, s),
        s.map(lambda a: ~a),
        st.tuples(s, s).map(lambda p: p[0] & p[1]),
        st.tuples(s, s).map(lambda p: p[0] | p[1]),
    ),
    max_leaves=4,
)
slot_values = plain | st.builds(lambda s, a, b: Cases(((s, a),), default=b), selectors, plain, plain)
steps = st.sampled_from((("half_up",), ("srdhm", "half_away"), ("srdhm", "half_up"), ("sqdmulh", "half_up")))
arithmetics = st.one_of(
    st.builds(FloatMultiplier, roundings, st.sampled_from(("after", "before")), flags, flags, st.integers(16, 64)),
    st.builds(FloatMultiplier, roundings, float_bias=flags, dtype=st.just("float64")),
    st.builds(FloatKernel, st.just("float64"), roundings, division=flags, wide=flags),
    st.builds(FloatRequantize, roundings, flags, flags, by_range=flags),
    st.builds(FixedPoint, steps, st.integers(7, 31)),
    st.builds(Shift, roundings),
    st.builds(SumFma, roundings),
    st.builds(
        Stages,
        st.builds(ScaleStage, roundings, st.integers(2, 32), shift=st.integers(0, 47)),
        st.builds(SegmentStage, roundings, shift=st.integers(0, 43)),
    ),
    st.builds(SumShifted, st.integers(0, 31), steps, st.integers(9, 32), st.none() | st.integers(1, 64)),
    st.builds(SumScaled, roundings),
    st.builds(AveragePool, roundings, st.just(()) | st.just((((3, 3), 7, 6),))),
    st.builds(SoftmaxTable, roundings, flags),
    st.builds(AverageCodes, roundings),
    st.builds(FixedBits, roundings, st.integers(1, 30), st.sampled_from((None, 2**-8))),
    st.builds(FixedPointLanes, steps, steps, st.integers(1, 16)),
    st.builds(FixedPointGemv, steps, steps, st.integers(1, 16), st.integers(1, 16)),
    st.builds(ProductLanes, st.integers(9, 32), st.integers(1, 16)),
    st.builds(QuantizeLanes, roundings, st.integers(1, 16)),
    st.builds(Bilinear, st.sampled_from(("integer", "float")), st.integers(1, 14)),
    st.builds(HardSwish16, st.none() | st.integers(1, 16)),
    st.builds(QuantizeInt32, flags),
    st.builds(
        DynamicProduct,
        st.builds(
            lambda bits, zero, rounding: Scheme(
                Int(bits), Scale(PerToken(), dynamic=True), zero, rounding=rounding, division=False
            ),
            st.integers(4, 16),
            st.none() | st.just(ZeroPoint(nudge="nearest")),
            roundings,
        ),
        multiplier=st.sampled_from(("first", "last", "both")),
        zero_point=st.none() | st.builds(WeightSums, st.integers(1, 32), offset=st.integers(0, 128)),
        lanes=st.builds(Lanes, st.sampled_from((1, 2, 8)), st.integers(1, 8)),
        fma=flags,
        denormals=flags,
    ),
    st.sampled_from(
        (GluTable(), SoftmaxTable16(), NormFixed(), SoftmaxFixed(), SoftmaxFloat(), DequantizeSum(), QuantizeRange())
    ),
    st.builds(
        FloatKernel,
        st.sampled_from(("float16", "float32")),
        roundings,
        function=st.none() | st.sampled_from((WindowSum(), Xnnpack())),
    ),
    st.builds(FloatKernel, function=st.builds(XnnpackFloat, avx2=flags), denormals=flags),
    st.builds(FloatMatmul, st.integers(16, 512), st.integers(1, 64)),
    st.builds(AppendCodes, st.integers(-8, 8)),
    st.just(CachedAttention()),
    st.builds(DynamicLstm, st.none() | st.just(SaturatesPairs()), fma=flags),
    st.builds(ExpertSums, st.integers(1, 64)),
    st.just(Copy()),
    st.builds(Unknown, words, st.none() | words),
)
every_condition = (
    ClampImplied(),
    SameQParams(),
    NoZeroPoint(1),
    InputRatios(0.5, 2),
    ProductRatio(0, 9),
    OutputQParams(0.5, 3),
    FusesOnly(("relu", "clip")),
)
conditions = st.lists(st.sampled_from(every_condition), max_size=2).map(tuple)
kernels = st.builds(
    lambda u, a, f, i: Kernel(u, a, formats=f, integer_if=i),
    selectors,
    arithmetics,
    st.lists(
        st.tuples(st.sampled_from(("input", "weight", "output")), st.lists(formats, min_size=1, max_size=2).map(tuple)),
        max_size=2,
        unique_by=lambda e: e[0],
    ).map(tuple),
    conditions,
)
rules = st.builds(
    lambda s, i, w, o, e: Rule(s, input=i, weight=w, output=o, edges=e),
    selectors,
    schemes() | fixed,
    st.none() | schemes(),
    st.none() | schemes(),
    st.none() | selectors,
)
fusions = st.builds(
    lambda r, t, w, i: Fusion(r, t, when=w, integer_if=i),
    selectors,
    st.lists(st.builds(FusionStep, selectors, flags), min_size=1, max_size=2),
    st.none() | selectors,
    conditions,
)
algorithms = st.builds(Algorithm, st.sampled_from((MinMax(), Ema(MinMax(), decay=0.5))), st.just(FixedFunction()))
overrides = st.builds(lambda s, b: Override(s, "weight", bits=b, estimator=MinMax()), selectors, st.none() | st.integers(2, 16))
of_ops = selectors.filter(lambda s: not never_an_op(s))
legalities = st.builds(
    lambda s, f, p, g, b: Require(s, ("input", "weight"), formats=f, power_of_two=p, shared=(g,), because=b),
    of_ops,
    st.lists(formats, max_size=2).map(tuple),
    flags,
    granularities,
    words,
) | st.builds(Refuse, of_ops, because=words, do=words)
spans = st.builds(
    lambda low, more: Span(low, None if more is None else low + more), st.integers(0, 9), st.none() | st.integers(0, 9)
)
legalities |= st.builds(
    lambda s, r, a, b: RequireSizes(s, ("input",), rank=r, elements=Span(1, 16), axes=((a, r or Span()),), because=b, do=b),
    of_ops,
    st.none() | spans,
    st.integers(-4, 4),
    words,
)
legalities |= st.builds(
    RequireUnit, st.sampled_from((CachedAttention(), ExpertSums(3), Op("embedding"))), because=words, do=words
)
targets = st.builds(
    Target,
    name=words,
    rules=st.lists(rules, min_size=1, max_size=2),
    fusions=st.lists(fusions, max_size=2),
    ties=st.lists(st.builds(Tie, selectors, st.just(("input", "output")), st.sampled_from(("input", "union"))), max_size=1),
    limits=st.lists(
        st.builds(
            Limit,
            selectors,
            st.just((("weight", 1), ("input.max", -2))),
            st.integers(-9, 0),
            st.integers(0, 9),
            st.just("weight"),
        ),
        max_size=1,
    ),
    kernels=st.lists(kernels, max_size=2),
    commuting=st.none() | selectors | st.lists(words, max_size=2),
    legality=st.lists(legalities, max_size=2),
    ops=st.lists(st.builds(OpKind, words, words, behaves_like=st.none() | words), max_size=1),
    runtime=st.builds(Runtime, words, words),
    source=words,
    weight=algorithms,
    activation=algorithms,
    bias=st.none() | algorithms,
    overrides=st.lists(overrides, max_size=2),
)
specs = st.one_of(formats, schemes(), slot_values, selectors, arithmetics, kernels, rules, fusions, legalities, targets)

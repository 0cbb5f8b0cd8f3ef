"""What can change is refused in every field of every spec: deep immutability."""

import dataclasses
import math
import types

import attrs
import numpy as np
import pytest
import torch

from qfunc.errors import SpecError
from qfunc.estimators import Ema
from qfunc.functions import Fixed as FixedFunction
from qfunc.specs import (
    Algorithm,
    AllOf,
    Attr,
    AveragePool,
    Cases,
    DerivedQParams,
    FixedPoint,
    FixedQParams,
    Float,
    FloatKernel,
    FloatMultiplier,
    Fusion,
    FusionStep,
    Int,
    KeepFloat,
    Kernel,
    Levels,
    Limit,
    Log,
    Name,
    Not,
    Op,
    OpKind,
    Override,
    PerBlock,
    PerChannel,
    Rule,
    Runtime,
    SameQParams,
    Scale,
    Scheme,
    SoftmaxTable,
    SumFma,
    SumShifted,
    Tie,
    Unknown,
    Where,
    ZeroPoint,
    edit,
    from_json,
    to_json,
)  # fmt: skip
from tests.specs.a_target import CONV, U8, target


class Mutable:
    """Hashes by identity: its fields can be assigned."""

    def __call__(self, op):
        return True


@attrs.define(unsafe_hash=True)
class Assignable(Mutable):
    x: int = 1


@attrs.frozen(eq=False)
class ByIdentity(Mutable):
    x: int = 1


@attrs.frozen
class Holder:
    x: object

    def __call__(self, op):
        return True


@dataclasses.dataclass(frozen=True)
class FrozenData:
    x: object = 1

    def __call__(self, op):
        return True


def is_deep(op):
    return op.path.count(".") > 2


JUNK = [
    {},
    {"a": 1},
    [1],
    {1},
    torch.zeros(1),
    np.zeros(2),
    np.float64(1.0),
    math.nan,
    object(),
    Mutable(),
    Assignable(),
    ByIdentity(),
    bytearray(b"x"),
    types.SimpleNamespace(a=1),
    torch.nn.ReLU(),
    lambda op: True,
    Holder,
]


@pytest.mark.parametrize("junk", JUNK, ids=lambda j: type(j).__name__)
def test_what_can_change_is_refused_everywhere(junk):
    builders = [
        Int,
        lambda j: Int(8, j),
        lambda j: Int(8, low=j),
        lambda j: Float(j, 3),
        lambda j: Float(4, 3, bias=j),
        Log,
        Levels,
        lambda j: Levels((0.0, j)),
        PerChannel,
        lambda j: PerBlock(0, j),
        Scale,
        lambda j: Scale(low=j),
        lambda j: Scale(within=j),
        lambda j: Scale(divisor=j),
        lambda j: Scale(minimum_range=j),
        ZeroPoint,
        lambda j: ZeroPoint(value=j),
        Scheme,
        lambda j: Scheme(rounding=j),
        lambda j: Scheme(division=j),
        DerivedQParams,
        lambda j: DerivedQParams(of=("input", j)),
        lambda j: FixedQParams(Scheme(), j),
        lambda j: FixedQParams(j, 1.0),
        lambda j: Cases(((CONV, j),), KeepFloat()),
        lambda j: Cases((j,), KeepFloat()),
        lambda j: Cases(((CONV, KeepFloat()),), j),
        Op,
        lambda j: Op(("conv", j)),
        Name,
        Not,
        lambda j: AllOf((CONV, j)),
        lambda j: CONV & j,
        lambda j: j | CONV,
        lambda j: Attr(j, 1),
        lambda j: Attr("a", j),
        lambda j: Attr("a", (1, (j,))),
        lambda j: Where(Holder(j)),
        lambda j: Where(FrozenData(j)),
        lambda j: Rule(CONV, input=j),
        lambda j: Rule(CONV, input=KeepFloat(), edges=j),
        lambda j: FusionStep(CONV, j),
        lambda j: Fusion(CONV, j),
        lambda j: Fusion(CONV, FusionStep(CONV), when=j),
        lambda j: Fusion(CONV, FusionStep(CONV), integer_if=j),
        SameQParams,
        lambda j: Tie(CONV, j, "union"),
        lambda j: Tie(CONV, "input", j),
        lambda j: Limit(CONV, (("input", j),), 0, 1, "input"),
        lambda j: Limit(CONV, ((j, 1),), 0, 1, "input"),
        lambda j: Limit(CONV, (("input", 1),), j, 1, "input"),
        lambda j: Limit(CONV, (("input", 1),), 0, 1, j),
        FloatMultiplier,
        lambda j: FloatMultiplier(fma=j),
        FixedPoint,
        lambda j: FixedPoint(("srdhm", j)),
        SumShifted,
        lambda j: SumShifted(lanes=j),
        lambda j: AveragePool("half_up", j),
        lambda j: AveragePool("half_up", (((3, j), 7, 6),)),
        FloatKernel,
        lambda j: FloatKernel(function=j),
        SoftmaxTable,
        Unknown,
        lambda j: Unknown("a", j),
        lambda j: Kernel(CONV, j),
        lambda j: Kernel(CONV, SumFma(), formats=j),
        lambda j: Kernel(CONV, SumFma(), formats=((j, (U8,)),)),
        lambda j: Kernel(CONV, SumFma(), formats=(("input", (j,)),)),
        lambda j: OpKind("a", j),
        lambda j: Runtime("a", j),
        lambda j: Runtime("a", runner=j),
        lambda j: Override(CONV, "weight", bits=j),
        lambda j: Override(CONV, "weight", estimator=j),
        lambda j: Algorithm(Ema(j), FixedFunction()),
        lambda j: target(name=j),
        lambda j: target(rules=j),
        lambda j: target(ops=j),
        lambda j: target(lowering=j),
        lambda j: target(source=j),
        lambda j: target(weight=j),
        lambda j: target(bias=j),
        lambda j: target(overrides=j),
        edit.skip,
        edit.name,
        edit.module,
        edit.op,
        lambda j: edit.weights(estimator=j),
        lambda j: edit.weights(rounding=j),
        lambda j: edit.activations(symmetric=j),
        lambda j: edit.activations(granularity=j),
        lambda j: edit.add(CONV, input=j),
        lambda j: edit.inputs(CONV, j),
        edit.fuse,
        edit.deploy,
        lambda j: to_json((1, j)),
        lambda j: edit.override(j, weights={"bits": 8}),
        lambda j: edit.override(CONV, weights={"bits": j}),
        lambda j: from_json("{}", classes=(j,)),
    ]
    for i, build in enumerate(builders):
        try:
            built = build(junk)
        except SpecError:
            continue
        pytest.fail(f"builder {i} accepts {junk!r}: {built!r}")


@pytest.mark.parametrize("predicate", [lambda op: True, Holder, Mutable(), len, "".startswith, is_deep.__get__(1), Holder([1])])
def test_where_refuses_what_has_no_name(predicate):
    with pytest.raises(SpecError):
        edit.where(predicate)


def test_where_takes_functions_and_frozen_values():
    def local(op):
        return True

    for good in (is_deep, Holder(3), FrozenData((1, "a"))):
        assert from_json(to_json(edit.where(good)), classes=(is_deep, Holder, FrozenData)) == edit.where(good)
    with pytest.raises(SpecError, match="local"):
        edit.where(local)


def test_unknown_keywords_are_type_errors():
    with pytest.raises(TypeError):
        Scheme(zeropoint=None)  # type: ignore[call-arg]

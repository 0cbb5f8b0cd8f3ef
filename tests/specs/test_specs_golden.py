"""A target that a user composed and saved loads in every release from the first on."""

import json
from pathlib import Path

from qfunc.estimators import Ema, MinMax
from qfunc.functions import Fixed as FixedFunction
from qfunc.specs import (
    Algorithm,
    Attr,
    Cases,
    ClampImplied,
    Copy,
    DerivedQParams,
    FixedPoint,
    Float,
    FloatMultiplier,
    Fusion,
    FusionStep,
    Int,
    KeepFloat,
    Kernel,
    Limit,
    NonNegative,
    Op,
    OpKind,
    PerBlock,
    PerChannel,
    Rule,
    Runtime,
    SameQParams,
    Scale,
    Scheme,
    Target,
    Tie,
    Unknown,
    ZeroPoint,
    cpus,
    edit,
    from_json,
    to_json,
)  # fmt: skip
from tests.specs.users import Clipped, is_deep

PATH = Path(__file__).parent.parent / "golden" / "target_v1.json"
U8 = Scheme(Int(8, signed=False), zero_point=ZeroPoint())
CONV = Op("conv")
BASE = Target(
    name="mine",
    rules=(
        Rule(CONV, input=U8, weight=Scheme(Int(8, low=-127), Scale(PerChannel())), bias=DerivedQParams(), output=U8),
        Rule(Op(("add", "mul")), input=Cases(((NonNegative(), U8),), default=Scheme(rounding="half_away", division=False))),
        Rule(
            Op("linear"),
            weight=Scheme(Float(2, 1, max=6.0), Scale(PerBlock(-1, 16), format=Float(4, 3, max=448.0), within=Scale())),
        ),
    ),
    fusions=Fusion(CONV, FusionStep(Op("relu")), when=~Attr("groups", 1), integer_if=ClampImplied()),
    ties=Tie(Op("concat"), ("input", "output"), "union"),
    limits=Limit(CONV, (("weight", 1), ("output", -1)), 0, 16, "weight"),
    kernels=(
        Kernel(CONV, FixedPoint(("srdhm", "half_up")), formats=(("input", (Int(8), Int(8, signed=False))),)),
        Kernel(Op("mul"), FloatMultiplier("half_away", float_bias=True)),
        Kernel(Op("gelu"), Unknown("not public", nearest="onnxruntime")),
        Kernel(Op("max_pool"), Copy(), integer_if=SameQParams()),
    ),
    commuting="max_pool",
    ops=OpKind("fast_gelu", "mine.fast_gelu", behaves_like="gelu"),
    runtime=Runtime("mine", "1.0"),
    source="my datasheet",
    weight=Algorithm(Clipped(MinMax()), FixedFunction()),
    activation=Algorithm(Ema(MinMax(), decay=0.9), FixedFunction()),
)
TARGET = edit.pipe(
    BASE,
    edit.weights(bits=4),
    edit.override(edit.name("layer4.*") & edit.where(is_deep), weights={"bits": 8}, activations={"estimator": MinMax()}),
    edit.skip(edit.module("Head") | edit.op("softmax")),
    edit.outputs(edit.op("gelu"), KeepFloat()),
)


def test_the_golden_file_loads_to_an_equal_value():
    assert from_json(PATH.read_text(), classes=(Clipped, is_deep)) == TARGET


def test_today_writes_the_golden_file_or_more():
    """Fields may be added; every field of schema 1 is still written with the same value."""

    def covers(new, old):
        if isinstance(old, dict):
            return old.keys() <= new.keys() and all(covers(new[k], v) for k, v in old.items())
        if isinstance(old, list) and isinstance(new, dict):
            return new == {"is": "Op", "kinds": old}  # Target.commuting was a tuple of kinds
        if isinstance(old, list):
            return len(new) == len(old) and all(map(covers, new, old))
        if (old, new) == ("", None):
            return True  # Runtime.cpu was a text
        return type(new) is type(old) and new == old

    assert covers(json.loads(to_json(TARGET)), json.loads(PATH.read_text()))


def test_defaults_are_written_down():
    """So that a default that changes later changes no saved target."""
    text = json.loads(to_json(Scheme()))["spec"]
    assert text["rounding"] == "half_even"
    assert text["format"] == {"is": "Int", "bits": 8, "signed": True, "low": None, "high": None}


def test_the_text_of_a_processor_is_its_value():
    for text, cpu in (("x86-64 VNNI", cpus.x86_64_vnni), ("Hexagon DSP", cpus.Cpu("Hexagon DSP")), ("", None)):
        old = f'{{"schema": 1, "spec": {{"is": "Runtime", "name": "a", "cpu": "{text}"}}}}'
        assert from_json(old) == Runtime("a", cpu=cpu)
        assert from_json(to_json(from_json(old))) == from_json(old)


def test_a_field_that_an_old_file_lacks_has_its_default():
    assert from_json('{"schema": 1, "spec": {"is": "Int", "bits": 4}}') == Int(4)

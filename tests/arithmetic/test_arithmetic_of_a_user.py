"""Arithmetics of a user's own, outside of the library, against a chip that computes in fractions."""

import math
import pickle
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from attrs import evolve, field, frozen
from hypothesis import strategies as st
from torch import Tensor, nn

import qfunc
from qfunc.arithmetic import Computation, Constant, UnitSpec, bounded, products
from qfunc.errors import EmulationError, SpecError
from qfunc.estimators import MinMax
from qfunc.functions import Fixed
from qfunc.graph.view import QuantizedModel
from qfunc.lowering import CodesRunner, QdqLowering
from qfunc.placement.partition import Partition
from qfunc.specs import (
    FLOAT32, Algorithm, Bounds, DerivedQParams, Fusion, FusionStep, Int, KeepFloat, Kernel, Op, Rule, Runtime, Scale, Scheme,
    Target, ZeroPoint, from_json, to_json,
)  # fmt: skip
from qfunc.testing import Block, SmallNet, check_target


def rounded_twice(
    a: Tensor, zero_a: int, m_a: int, b: Tensor, zero_b: int, m_b: int, bits: int, zero: int, low: int, high: int
) -> Tensor:
    terms = [((x.long() - z) * m + (1 << 11)) >> 12 for x, z, m in ((a, zero_a, m_a), (b, zero_b, m_b))]
    return (((terms[0] + terms[1] + (1 << (bits - 1))) >> bits) + zero).clamp(low, high).float()


@frozen
class TwoRoundings:
    """y = (h(a m_a 2^-12) + h(b m_b 2^-12)) 2^-bits, rounded half up, with m = round(s / s_y 2^(12 + bits)), h half up."""

    bits: int = 4

    def refuses(self, unit: UnitSpec) -> str:
        return "" if unit.kind == "add" and unit.output is not None and len(unit.inputs) == 2 else "it adds codes only"

    def kernel(self, unit: UnitSpec) -> Computation:
        arguments: list[Any] = []
        for x in unit.inputs:
            ratio = Fraction(x.coding.scale) / Fraction(unit.coding.scale)
            if ratio >= 2**16:
                raise unit.error(f"an input of {float(ratio):.4g} times the scale of the sum", "less than 2^16 times")
            arguments += [x, x.coding.zero_point, round(ratio * 2 ** (12 + self.bits))]
        return Computation(rounded_twice, (*arguments, self.bits, *unit.code_range))


def multiply_and_shift(acc: Tensor, m: Tensor, shift: Tensor, zero: int, low: int, high: int) -> Tensor:
    return (((acc.long() * m + (1 << (shift - 1))) >> shift) + zero).clamp(low, high).float()


@frozen
class Multiplier:
    """y = (acc m 2^-e + z), rounded half up, with an m of 20 bits for each channel; acc has the bias, in 32 bits."""

    accumulator: int = 32
    rounding: str = field(default="half_up", init=False)

    def refuses(self, unit: UnitSpec) -> str:
        if unit.kind not in ("conv", "linear") or unit.output is None:
            return "it computes convolutions and linear layers of codes"
        bias = unit.operand("bias")
        if bias is not None and (bias.coding is None or not bias.coding.derived):
            return "its bias has another scale"
        return "its channels are in groups" if unit.arguments.get("groups", 1) > 1 else ""

    def kernel(self, unit: UnitSpec) -> Computation:
        sums = products(unit, self.accumulator)
        ratios = [Fraction(float(s)) / Fraction(unit.coding.scale) for s in sums.scale.flatten()]
        shifts = [20 - math.frexp(r)[1] for r in ratios]
        m = [round(r * Fraction(2) ** e) for r, e in zip(ratios, shifts, strict=True)]
        pair = [Constant(torch.tensor(v).reshape(sums.scale.shape), n) for v, n in ((m, "multiplier"), (shifts, "shift"))]
        return Computation(multiply_and_shift, (sums.acc, *pair, *unit.code_range))


def scaled(acc: Tensor, scale: Tensor) -> Tensor:
    return acc.to(torch.float32) * scale


@frozen
class RealSums:
    """y = float32(acc) float32(s_x s_w), a real number; acc has the bias."""

    def refuses(self, unit: UnitSpec) -> str:
        return "its output has codes" if unit.output is not None else "" if unit.kind == "linear" else "it is no linear layer"

    def kernel(self, unit: UnitSpec) -> Computation:
        sums = products(unit)
        return bounded(unit, Computation(scaled, (sums.acc, Constant(sums.scale.float(), "scale")), "value"))


CODES = Scheme(Int(8), Scale(), ZeroPoint(), rounding="half_up")
WEIGHTS = Scheme(Int(8), Scale())
CONV, LINEAR = Op("conv"), Op("linear")
CHIP = Target(
    name="chip_of_a_user",
    rules=(
        Rule(CONV, input=CODES, weight=WEIGHTS, bias=DerivedQParams(), output=CODES),
        Rule(LINEAR, input=CODES, weight=WEIGHTS, bias=DerivedQParams(), output=KeepFloat()),
        Rule(Op("add"), input=CODES, output=CODES),
    ),
    fusions=(Fusion(CONV, FusionStep(Op("relu"))), Fusion(Op("add"), FusionStep(Op("relu")))),
    kernels=(
        Kernel(CONV, Multiplier()),
        Kernel(Op("add"), TwoRoundings(), bounds=Bounds("half_up")),
        Kernel(LINEAR, RealSums(), formats=(("input", (Int(8),)), ("output", (FLOAT32,)))),
    ),
    runtime=Runtime("fractions", "1.0"),
    lowering=QdqLowering(),
    source="this file",
    weight=Algorithm(MinMax(), Fixed()),
    activation=Algorithm(MinMax(), Fixed()),
)


def half_up(value: Fraction) -> int:
    return math.floor(value + Fraction(1, 2))


def exact_add(op: Any) -> np.ndarray:
    ratios = [round(Fraction(x.scale) / Fraction(op.scale) * 2**16) for x in op.inputs]

    def one(*pair: int) -> int:
        offsets = (int(q) - x.zero_point for q, x in zip(pair, op.inputs, strict=True))
        terms = [half_up(Fraction(q * m, 2**12)) for q, m in zip(offsets, ratios, strict=True)]
        return min(max(half_up(Fraction(sum(terms), 16)) + op.zero_point, op.low), op.high)

    return np.vectorize(one, otypes=[np.int64])(*(x.codes for x in op.inputs))


def exact_conv(op: Any) -> np.ndarray:
    x, w, *rest = op.inputs
    attributes = op.attributes["strides"], op.attributes["pads"][:2], op.attributes["dilations"], op.attributes["group"]
    codes = [torch.from_numpy(np.asarray(c, np.float64)) for c in (x.codes.astype(int) - x.zero_point, w.codes)]
    bias = torch.from_numpy(np.asarray(rest[0].codes, np.float64)) if rest and rest[0] is not None else None
    acc = F.conv2d(*codes, bias, *attributes).numpy()
    ratio = Fraction(x.scale) * Fraction(float(w.scale)) / Fraction(op.scale)
    shift = 20 - math.frexp(ratio)[1]
    m = round(ratio * Fraction(2) ** shift)

    def one(sum_: float) -> int:
        return min(max(half_up(Fraction(int(sum_)) * m / Fraction(2) ** shift) + op.zero_point, op.low), op.high)

    return np.vectorize(one, otypes=[np.int64])(acc)


def exact_linear(op: Any) -> np.ndarray:
    x, w, *rest = op.inputs
    assert op.scale is None
    acc = (np.asarray(x.codes, object) - x.zero_point) @ np.asarray(w.codes, object).T
    acc = acc + (np.asarray(rest[0].codes, object) if rest and rest[0] is not None else 0)
    step = Fraction(float(np.float32(x.scale * float(w.scale))))
    return np.vectorize(lambda a: np.float32(float(Fraction(int(a)) * step)), otypes=[np.float32])(acc)


RUNNER = CodesRunner({"Conv": exact_conv, "Add": exact_add, "Gemm": exact_linear}, bounds=Bounds("half_up"))


class Net(nn.Module):
    def __init__(self, groups: int = 1) -> None:
        super().__init__()
        self.stem, self.grouped = nn.Conv2d(2, 4, 3, padding=1), nn.Conv2d(4, 4, 1, groups=groups)
        self.head = nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.stem(x))
        return self.head(torch.relu(self.grouped(y) + y).mean((2, 3)).repeat(1, 4))


def network(groups: int = 1, seed: int = 0) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(seed)
    return Net(groups).eval(), torch.randn(2, 2, 6, 6, generator=torch.Generator().manual_seed(seed))


def calibrated(groups: int = 1, target: Target = CHIP) -> tuple[Any, Tensor]:
    model, x = network(groups)
    return qfunc.calibrate([x], progress=False)(qfunc.quantize(target)(model)), x


@st.composite
def networks(draw: Any) -> tuple[nn.Module, Tensor]:
    channels, blocks = 2, []
    for _ in range(draw(st.integers(1, 2))):
        out = draw(st.integers(1, 3))
        blocks.append(Block(draw(st.sampled_from(("conv", "residual"))), channels, out, 3))
        channels = out
    net = SmallNet(tuple(blocks), draw(st.integers(0, 99)))
    return net, torch.randn((2, 2, 5, 5), generator=torch.Generator().manual_seed(net.seed))


def test_check_target_compares_them_with_the_chip() -> None:
    check_target(CHIP, run=RUNNER, models=[network()])
    check_target(CHIP, run=RUNNER, models=networks(), examples=4)


def test_the_emulation_computes_each_unit_by_one_function() -> None:
    model, _ = calibrated()
    emulated = qfunc.emulate(CHIP)(model)
    targets = {n.name: n.target for n in emulated.graph.nodes if n.op == "call_function"}
    assert targets["relu"] is multiply_and_shift
    assert targets["relu_1"] is rounded_twice
    assert targets["head_value"] is scaled
    assert targets["relu_acc"].__name__ == "conv_codes"
    assert {"integers.stem.multiplier", "integers.head.scale"} <= {name for name, _ in emulated.named_buffers()}


def test_verify_compares_each_tensor() -> None:
    target = evolve(CHIP, runtime=evolve(CHIP.runtime, runner=RUNNER))
    model, x = calibrated(target=target)
    report = qfunc.verify(target)(model, [x])
    assert report.verdict.startswith("bit-exact: 0 of ")


def test_a_wrong_chip_is_found() -> None:
    def floors(op: Any) -> np.ndarray:
        return exact_add(op) - (np.arange(op.inputs[0].codes.size).reshape(op.inputs[0].codes.shape) == 7)

    runner = evolve(RUNNER, functions={**dict(RUNNER.functions), "Add": floors})
    with pytest.raises(AssertionError, match="law 'emulation_matches_the_runtime'"):
        check_target(CHIP, run=runner, models=[network()])


def test_units_that_it_refuses_stay_in_float() -> None:
    model, _ = calibrated(groups=2)
    assert ("grouped", "its channels are in groups") in [(row.op, row.why) for row in qfunc.explain(model).floats]
    check_target(CHIP, run=RUNNER, models=[network(groups=2)])


def test_it_survives_files(tmp_path: Any) -> None:
    text = to_json(CHIP)
    classes = (TwoRoundings, Multiplier, RealSums)
    assert from_json(text, classes=classes) == CHIP
    assert pickle.loads(pickle.dumps(CHIP)) == CHIP
    with pytest.raises(SpecError, match=r"Pass them: from_json\(text, classes=\(.*Multiplier.*\)\)"):
        from_json(text)
    model, x = calibrated()
    qfunc.save(tmp_path / "saved")(model)
    loaded = qfunc.load(tmp_path / "saved", classes=classes)(network()[0])
    assert torch.equal(qfunc.emulate(CHIP)(loaded)(x), qfunc.emulate(CHIP)(model)(x))


@frozen
class Declares:
    """An arithmetic that refuses nothing, with what it declares of biases and fused ops."""

    float_bias: bool = False
    fuses: tuple[str, ...] = ()

    def refuses(self, unit: UnitSpec) -> str:
        return ""

    def kernel(self, unit: UnitSpec) -> Computation:
        raise AssertionError


class Added(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x) + x


NOT_COMPUTED = "its integer kernel does not compute add, which is fused with it"


@pytest.mark.parametrize(
    ("declared", "bias", "fused", "reason"),
    [
        (Declares(), KeepFloat(), (), "its bias carries no qparams"),
        (Declares(float_bias=True), KeepFloat(), (), ""),
        (Declares(), DerivedQParams(), (FusionStep(Op("add")),), NOT_COMPUTED),
        (Declares(fuses=("add",)), DerivedQParams(), (FusionStep(Op("add")),), ""),
    ],
)
def test_real_biases_and_fused_ops_need_a_declaration(declared: Any, bias: Any, fused: Any, reason: str) -> None:
    rules = (Rule(CONV, input=CODES, weight=WEIGHTS, bias=bias, output=CODES),)
    fusions = (Fusion(CONV, fused),) if fused else ()
    target = evolve(CHIP, rules=rules, fusions=fusions, kernels=(Kernel(CONV, declared),))
    model = qfunc.calibrate([torch.randn(1, 2, 4, 4)], progress=False)(qfunc.quantize(target)(Added().eval()))
    units = {unit.path: unit for unit in Partition(QuantizedModel(model), target).units}
    assert (units["conv"].reason, units["conv"].integer) == (reason, not reason)


def test_refuses_sees_neither_scales_nor_constants() -> None:
    seen = []

    @frozen
    class Curious:
        def refuses(self, unit: UnitSpec) -> str:
            seen.append(unit)
            return "it is curious"

        def kernel(self, unit: UnitSpec) -> Computation:
            raise AssertionError

    target = evolve(CHIP, kernels=(Kernel(CONV, Curious()), *CHIP.kernels))
    qfunc.emulate(target)(calibrated(target=target)[0])
    assert len(seen) > 4
    for unit in seen:
        assert [(o.slot, o.shape) for o in unit.operands][1:] == [("weight", unit.operands[1].shape), ("bias", (4,))]
        assert all(o.coding is not None and o.coding.qparams is None for o in unit.operands)
        assert unit.coding.format == Int(8)
        with pytest.raises(AssertionError):
            _ = unit.operands[1].constant


def test_scales_that_it_does_not_take_are_an_error() -> None:
    target = evolve(CHIP, kernels=(*CHIP.kernels[:1], Kernel(Op("add"), Picky()), *CHIP.kernels[2:]))
    model, _ = calibrated(target=target)
    with pytest.raises(EmulationError) as error:
        qfunc.emulate(target)(model)
    assert (
        str(error.value) == "unit 'add': found its scales, wanted no scales. Bind another arithmetic in the target's kernels."
    )


@frozen
class Picky:
    def refuses(self, unit: UnitSpec) -> str:
        return ""

    def kernel(self, unit: UnitSpec) -> Computation:
        raise unit.error("its scales", "no scales")


@frozen
class Wrong:
    answer: str | int = 0

    def refuses(self, unit: UnitSpec) -> Any:
        return self.answer

    def kernel(self, unit: UnitSpec) -> Any:
        return rounded_twice


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("half_up", "found 'half_up', wanted a frozen value with the methods refuses, kernel. Add refuses, kernel."),
        (TwoRoundings, "wanted a frozen value with the methods refuses, kernel. Call it: TwoRoundings()."),
        (Int(8), "wanted a frozen value with the methods refuses, kernel. Add refuses, kernel."),
    ],
)
def test_other_values_are_no_arithmetics(value: Any, message: str) -> None:
    with pytest.raises(SpecError, match=r"Kernel\.arithmetic") as error:
        Kernel(Op("add"), value)
    assert str(error.value).endswith(message)


def test_answers_of_other_types_are_errors() -> None:
    target = evolve(CHIP, kernels=(Kernel(Op("add"), Wrong()),))
    with pytest.raises(SpecError) as refusal:
        calibrated(target=target)
    assert str(refusal.value) == (
        "unit 'add', Wrong.refuses: found a result of type int, wanted a reason, or \"\". Return a text."
    )
    target = evolve(CHIP, kernels=(Kernel(Op("add"), Wrong("")),))
    model, _ = calibrated(target=target)
    with pytest.raises(EmulationError) as result:
        qfunc.emulate(target)(model)
    assert str(result.value) == (
        "unit 'add', Wrong.kernel: found a result of type function, wanted a Computation. "
        "Return qfunc.arithmetic.Computation(function, arguments)."
    )

"""Other hardware's arithmetic on a small network: every code of every unit against exact rational numbers."""

from __future__ import annotations

from fractions import Fraction

import pytest
import torch
import torch.nn.functional as F
from attrs import evolve
from torch import Tensor, nn

import qfunc
from qfunc.errors import EmulationError
from qfunc.graph.interpreter import ObservingInterpreter
from qfunc.graph.view import QuantizedModel
from qfunc.numerics.kernels.addition import add_shifted
from qfunc.numerics.kernels.fixed_point import fixed_multiplier
from qfunc.placement.partition import Partition
from qfunc.specs import (
    FixedPoint, FloatKernel, FloatMultiplier, FloatRequantize, Int, Kernel, Op, PerTensor, Rule, Scale, Scheme, Shift, SumFma,
    SumScaled, SumShifted, Unknown, ZeroPoint,
)  # fmt: skip
from qfunc.testing import integer_oracle as oracle
from qfunc.testing.oracle import clamp, float32, rounded
from tests.conformance.running import batches_of, calibrated
from tests.onnxruntime_target import ONNXRUNTIME

BASE = ONNXRUNTIME
PRODUCTS = Op(("conv", "linear"))


class Net(nn.Module):
    """A convolution with a ReLU, a residual, and a linear layer over the last axis."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.fc = nn.Conv2d(3, 3, 3, padding=1), nn.Conv2d(3, 3, 1), nn.Linear(5, 4)

    def forward(self, x: Tensor) -> Tensor:
        """[N, 3, H, 5] -> [N, 3, H, 4]."""
        y = F.relu(self.a(x))
        return self.fc(y + self.b(y))


def _with(products, add=None, **changes):
    kernels = (Kernel(PRODUCTS, products), Kernel(Op("add"), add or SumFma()))
    fusions = tuple(evolve(f, integer_if=()) for f in BASE.fusions)
    return evolve(BASE, kernels=kernels, fusions=fusions, runtime=evolve(BASE.runtime, runner=None), **changes)


def _scaled(scheme):
    # The same placement with another scheme for every activation.
    rules = tuple(evolve(r, input=scheme, output=scheme) if r.bias is not None or r.weight is None else r for r in BASE.rules)
    return rules


class Traced:
    """The network's emulation, its codes by name, and the units' qparams."""

    def __init__(self, target) -> None:
        torch.manual_seed(1)
        (x,) = batches_of(2, 3, 4, 5, count=1)
        self.model = calibrated(Net(), x, target=target)
        self.partition = Partition(QuantizedModel(self.model), target)
        self.codes: dict[str, Tensor] = {}
        ObservingInterpreter(qfunc.emulate(target)(self.model), self.codes.__setitem__).run(x, enable_io_processing=False)

    def products(self):
        """(accumulators in int64, scales of input, weight and output, output's zero point, lowest code, codes)."""
        for unit in self.partition.units:
            if unit.kind not in ("conv", "linear"):
                continue
            root, out = unit.group.root, self.partition.output_encoding(unit.group.output)
            x, w = (self.partition.encoding(n, root) for n in root.args[:2])
            name = root.args[0].name
            q = self.codes[name if name in self.integer() else f"{name}_codes"].long() - x.zero_point
            weight, bias = (self.model.get_parameter(n.target).detach() for n in root.args[1:3])
            scale = w.qparams.scale.flatten().expand(len(weight))
            k = torch.round(weight / scale.reshape(-1, *[1] * (weight.ndim - 1))).long()
            b = torch.round(bias.double() / (x.qparams.scale * scale)).long()
            if unit.kind == "conv":
                acc = F.conv2d(q.double(), k.double(), b.double(), root.args[3], root.args[4]).long().movedim(1, -1)
                found = self.codes[unit.group.output.name].movedim(1, -1)
            else:
                acc, found = (q.double() @ k.double().T + b.double()).long(), self.codes[unit.group.output.name]
            low = out.zero_point if len(unit.group.nodes) > 1 else out.format.qmin
            yield acc, x.scale, scale.tolist(), out, low, found

    def integer(self):
        """Names of the results of integer units."""
        return {u.group.output.name for u in self.partition.units if u.integer}

    def sums(self):
        """(codes a, encoding a, codes b, encoding b, output's encoding, codes)."""
        for unit in self.partition.units:
            if unit.kind == "add":
                root = unit.group.root
                given = [(self.codes[n.name], self.partition.encoding(n, root)) for n in root.args]
                yield (
                    *given[0],
                    *given[1],
                    self.partition.output_encoding(unit.group.output),
                    self.codes[unit.group.output.name],
                )


def _expect_products(target, formula):
    traced = Traced(target)
    assert all(u.integer for u in traced.partition.units), [u.reason for u in traced.partition.units]
    compared = 0
    for acc, s_x, s_w, out, low, found in traced.products():
        for channel, s in enumerate(s_w):
            for a, y in zip(acc[..., channel].flatten().tolist(), found[..., channel].flatten().tolist(), strict=True):
                assert int(y) == max(
                    formula(a, Fraction(s_x), Fraction(s), Fraction(out.scale), out.zero_point, out.format), low
                )
                compared += 1
    assert compared > 200
    return traced


@pytest.mark.parametrize("rounding", ["half_even", "half_away"])
@pytest.mark.parametrize("place", ["after", "before"])
def test_float_multiplier(rounding, place):
    def formula(acc, s_x, s_w, s_y, z, fmt):
        return oracle.requantize(acc, oracle.multiplier(s_x, s_w, s_y), z, fmt.qmin, fmt.qmax, rounding, place)

    _expect_products(_with(FloatMultiplier(rounding, place)), formula)


@pytest.mark.parametrize("steps", [("srdhm", "half_away"), ("half_up",), ("half_away",)])
@pytest.mark.parametrize("bits", [31, 15])
def test_fixed_point(steps, bits):
    if bits != 31 and steps[0] == "srdhm":
        pytest.skip("the doubling high multiply takes 31 bits")

    def formula(acc, s_x, s_w, s_y, z, fmt):
        real = float(s_x) * float(s_w) / float(s_y)
        return clamp(oracle.scale_fixed(acc, *oracle.fixed_multiplier(real, bits), steps) + z, fmt.qmin, fmt.qmax)

    _expect_products(_with(FixedPoint(steps, bits)), formula)


@pytest.mark.parametrize("fma", [False, True])
@pytest.mark.parametrize("division", [False, True])
@pytest.mark.parametrize("rounding", ["half_even", "half_away"])
def test_through_real(fma, division, rounding):
    # With a Derived bias the accumulator holds it, so that product and fma are one.
    def formula(acc, s_x, s_w, s_y, z, fmt):
        value = float32(float32(acc) * float32(s_x * s_w))
        quotient = float32(value / s_y) if division else float32(value * float32(1 / s_y))
        return clamp(rounded(quotient, rounding) + z, fmt.qmin, fmt.qmax)

    _expect_products(_with(FloatRequantize(rounding, fma, division)), formula)


@pytest.mark.parametrize("rounding", ["half_up", "floor", "half_even"])
def test_shift(rounding):
    scheme = Scheme(Int(8, signed=False), Scale(power_of_two=True), zero_point=ZeroPoint())
    weight = Scheme(Int(8, low=-127), Scale(PerTensor(), power_of_two=True))
    rules = (Rule(PRODUCTS, weight=weight), *_scaled(scheme))

    def formula(acc, s_x, s_w, s_y, z, fmt):
        return clamp(rounded(acc * s_x * s_w / s_y, rounding) + z, fmt.qmin, fmt.qmax)

    _expect_products(_with(Shift(rounding), rules=rules), formula)


def test_shift_refuses_scales_that_are_no_powers_of_two():
    with pytest.raises(EmulationError, match="powers of two"):
        Traced(_with(Shift("half_up")))


def _expect_sums(add, formula):
    compared = 0
    for a, ca, b, cb, out, found in Traced(_with(FloatMultiplier(), add)).sums():
        for u, v, y in zip(a.flatten().tolist(), b.flatten().tolist(), found.flatten().tolist(), strict=True):
            assert int(y) == clamp(formula(int(u), ca, int(v), cb, out), out.format.qmin, out.format.qmax)
            compared += 1
    assert compared > 100


@pytest.mark.parametrize("rounding", ["half_even", "half_away"])
def test_sum_fma(rounding):
    def formula(u, ca, v, cb, out):
        limits = out.format.qmin, out.format.qmax
        return oracle.sum_fma(
            u, ca.scale, ca.zero_point, v, cb.scale, cb.zero_point, out.scale, out.zero_point, *limits, rounding
        )

    _expect_sums(SumFma(rounding), formula)


def test_sum_of_rounded_products():
    def formula(u, ca, v, cb, out):
        ratios = [float32(float32(c.scale) / float32(out.scale)) for c in (ca, cb)]
        fixed_part = float32(ratios[0] * ca.zero_point) + float32(ratios[1] * cb.zero_point)
        total = float32(out.zero_point - float32(fixed_part)) + float32(u * ratios[0])
        return rounded(float32(float32(total) + float32(v * ratios[1])), "half_even")

    _expect_sums(SumFma(fma=False), formula)


class Pair(nn.Module):
    """The sum of two inputs."""

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        """[N, C], [N, C] -> [N, C]."""
        return a + b


def test_sums_outside_of_the_multipliers_are_computed_in_float():
    a, b = torch.linspace(-1, 1, 64).reshape(1, 64), torch.linspace(-1, 1, 64).reshape(1, 64).flip(1) * 2**-11
    target = _with(FloatMultiplier(), SumScaled("half_away", 22, outside=FloatKernel(zero_point="before")))
    model = qfunc.calibrate([(a, b)], progress=False)(qfunc.quantize(target)(Pair()))
    in_float = evolve(target, kernels=tuple(evolve(k, arithmetic=FloatKernel(zero_point="before")) for k in target.kernels))
    other = qfunc.calibrate([(a, b)], progress=False)(qfunc.quantize(in_float)(Pair()))
    assert torch.equal(qfunc.emulate(target)(model)(a, b), qfunc.emulate(in_float)(other)(a, b))
    narrow = evolve(target, kernels=tuple(evolve(k, arithmetic=SumScaled()) for k in target.kernels))
    refused = qfunc.calibrate([(a, b)], progress=False)(qfunc.quantize(narrow)(Pair()))
    with pytest.raises(EmulationError, match=r"wanted ratios in \[2\^-10, 2\^8\)"):
        qfunc.emulate(narrow)(refused)


@pytest.mark.parametrize("shift", [20, 15])
def test_sum_shifted(shift):
    steps = ("srdhm", "half_away")

    def scaled(value, real):
        return oracle.scale_fixed(value, *oracle.fixed_multiplier(real), steps)

    def formula(u, ca, v, cb, out):
        twice = 2 * max(ca.scale, cb.scale)
        terms = [scaled((q - c.zero_point) << shift, c.scale / twice) for q, c in ((u, ca), (v, cb))]
        return scaled(sum(terms), twice / (2.0**shift * out.scale)) + out.zero_point

    _expect_sums(SumShifted(shift, steps), formula)


@pytest.mark.parametrize("rounding", ["half_up", "half_away"])
@pytest.mark.parametrize("bits", [21, 7])
def test_sum_scaled(rounding, bits):
    def formula(u, ca, v, cb, out):
        ratios = [Fraction(ca.scale) / Fraction(out.scale), Fraction(cb.scale) / Fraction(out.scale)]
        k = 0
        while max(ratios) * Fraction(2) ** k < 2 ** (bits - 1):
            k += 1
        m = [rounded(r * 2**k, "half_even") for r in ratios]
        return rounded(Fraction((u - ca.zero_point) * m[0] + (v - cb.zero_point) * m[1], 2**k), rounding) + out.zero_point

    _expect_sums(SumScaled(rounding, bits), formula)


def test_an_arithmetic_that_an_op_cannot_have_is_an_error():
    with pytest.raises(EmulationError, match=r"found SumFma for an op of kind 'conv', wanted an op of kind 'add'\. "):
        Traced(_with(SumFma()))


def test_no_public_arithmetic_names_the_nearest_target():
    with pytest.raises(EmulationError, match=r"targets\.onnxruntime"):
        Traced(_with(Unknown("a secret", nearest="onnxruntime")))


def test_runs_of_a_sum_lie_as_the_runtime_lays_images_out():
    # Inputs of the scales 1 and 0.865, in float32: rounded twice, the second one makes the sum fall beside a half.
    scales = (1 / 2, 0.865 / 2, 2 / (2.0**20 * 1.394))
    pairs = [tuple(map(int, fixed_multiplier(torch.tensor(s).double()))) for s in scales]
    codes = torch.full((1, 3, 3, 2), -186.0), torch.full((1, 3, 3, 2), 211.0)
    given = (*codes, (0, 0), pairs, 20, ["srdhm", "half_away"], 0, -128, 127, 1)
    rest = {last: (add_shifted(*given, 16, last) == add_shifted(*given)).nonzero().tolist() for last in (False, True)}
    assert rest == {False: [[0, 2, 2, 0], [0, 2, 2, 1]], True: [[0, 1, 2, 1], [0, 2, 2, 1]]}

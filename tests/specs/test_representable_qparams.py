"""Specs refuse qparams that float32 does not hold, codes without 0, roundings with noise, and ties without a common zero."""

import math
import struct

import pytest
import torch
from attrs import evolve
from torch import nn

import qfunc
from qfunc import targets
from qfunc.errors import SpecError
from qfunc.placement.legality.stored_schemes import refusal
from qfunc.specs import DerivedQParams, FixedQParams, Int, Op, OutputQParams, Scale, Scheme, Tie, ZeroPoint, edit
from qfunc.targets.runtimes import PplCudaLowering, PplDspLowering, SnpeEncodings

U8 = Int(8, signed=False)
FIELDS = {
    "Scale.low": lambda s: Scale(low=s),
    "Scale.high": lambda s: Scale(high=s),
    "FixedQParams.scale": lambda s: FixedQParams(Scheme(), s),
    "OutputQParams.scale": lambda s: OutputQParams(s, 0),
}


def is_held(value):
    # IEEE's binary32, by its bits: neither those of 0 nor those of infinity, and not rounded up from below the least.
    try:
        (bits,) = struct.unpack("<I", struct.pack("<f", value))
    except OverflowError:
        return False
    return 0 < bits < 255 << 23 and value >= 2.0**-149


@pytest.mark.parametrize("field", FIELDS)
def test_float32_holds_scales(field):
    ends = [2.0**-149, math.nextafter(2.0**-149, 0), 2.0**128 - 2.0**104, 2.0**128]
    for scale in [*ends, *(10.0**k for k in range(-320, 308, 7) if 10.0**k)]:
        if is_held(scale):
            FIELDS[field](scale)
            continue
        with pytest.raises(SpecError) as error:
            FIELDS[field](scale)
        wanted = "a number in [2^-149, 2^128), as float32 holds scales"
        assert str(error.value) == f"{field}: found {scale!r}, wanted {wanted}. Give such a number."


@pytest.mark.parametrize("signed", [True, False])
def test_symmetric_codes_have_0(signed):
    full = Int(5, signed)
    for low in range(full.qmin, full.qmax):
        for high in range(low + 1, full.qmax + 1):
            fmt = Int(5, signed, low, high)
            if low <= 0 < high:
                Scheme(fmt)
            if not low <= 0 <= high:
                Scheme(fmt, zero_point=ZeroPoint())
                with pytest.raises(SpecError) as error:
                    Scheme(fmt)
                assert str(error.value) == (
                    f"Scheme.format: found {fmt!r}, wanted codes with 0, which is the code of 0 without a zero point. "
                    "Give a zero_point, or other bounds."
                )


@pytest.mark.parametrize(
    "make",
    [lambda r: Scheme(rounding=r), lambda r: ZeroPoint(r), lambda r: DerivedQParams(rounding=r)],
    ids=["Scheme", "ZeroPoint", "DerivedQParams"],
)
def test_hardware_does_not_round_by_noise(make):
    name = type(make("floor")).__name__
    with pytest.raises(SpecError) as error:
        make("stochastic")
    assert str(error.value) == (
        f"{name}.rounding: found 'stochastic', wanted a rounding without noise. Round weights stochastically by "
        "edit.weights(function=Stochastic())."
    )


class Halves(nn.Module):
    def forward(self, x):
        return torch.cat([torch.relu(x) * 4, -torch.relu(-x)], 1)


def test_the_largest_scale_needs_a_common_zero():
    rule = evolve(targets.tensorrt.rules[1], select=Op(("concat", "mul", "neg")))
    for scheme, allowed in ((Scheme(U8, zero_point=ZeroPoint()), False), (Scheme(U8, zero_point=ZeroPoint(value=128)), True)):
        rules = (evolve(rule, input=scheme, output=scheme),)
        ties = (Tie(Op("concat"), ("input", "output"), "max_scale"),)
        target = evolve(targets.tensorrt, name="tied", rules=rules, ties=ties, legality=())
        if allowed:
            x = torch.linspace(-1, 1, 64).reshape(2, 32)
            done = qfunc.calibrate([x], progress=False)(qfunc.quantize(target)(Halves()))
            step = float(done.get_submodule("quantizers.cat.output").scale)
            assert (
                float((done(x) - Halves()(x)).abs().max()) <= step
            )  # half a step at the input of the product, times 4 at most
            continue
        with pytest.raises(SpecError) as error:
            qfunc.quantize(target)(Halves())
        assert str(error.value) == (
            "target 'tied', op 'cat': found tensors tied by the largest scale, of which 'mul' has a zero point of its own, "
            'wanted symmetric schemes, or one fixed zero point. Write Tie(..., leader="union").'
        )


NET = nn.Sequential(nn.Conv2d(3, 4, 3)).eval()


@pytest.mark.parametrize("change", [edit.weights(bits=4), edit.override(edit.name("0"), weights={"bits": 5})])
def test_narrow_weights_around_a_fixed_zero_point(change):
    with pytest.raises(SpecError) as error:
        qfunc.quantize(change(targets.k210))(NET)
    bits = 4 if change == edit.weights(bits=4) else 5
    assert str(error.value) == (
        f"target 'k210', op '0': found weights of {bits} bits, without the code 128, which the hardware takes for 0, wanted "
        "the codes of Int(8, signed=False). Leave the weights of the op at their width, or the op in float by edit.skip."
    )


@pytest.mark.parametrize("opset", range(11, 22))
@pytest.mark.parametrize("lowering", [PplDspLowering, SnpeEncodings, PplCudaLowering])
def test_codes_that_an_opset_lacks(lowering, opset):
    # ONNX's operators: QuantizeLinear-21 is the first with 16 bits; models before opset 13 are converted from opset 21.
    wanted = "" if opset < 13 or opset >= 21 else lowering.__name__ + "(opset=21): QuantizeLinear has 16-bit integers from "
    found = refusal(lowering(opset=opset), Scheme(Int(16, signed=False)), constant=False)
    assert found == (wanted and wanted + "opset 21 on (ONNX operators)")
    assert refusal(lowering(opset=opset), Scheme(U8), constant=False) == ""


@pytest.mark.parametrize("opset", [11, 12, 13, 16, 21])
def test_every_opset_deploys_or_is_refused_by_quantize(opset):
    x, target = torch.randn(2, 3, 8, 8), edit.deploy(PplDspLowering(opset=opset))(targets.ppl_w8a16)
    if 13 <= opset < 21:
        with pytest.raises(SpecError, match=r"wanted PplDspLowering\(opset=21\): QuantizeLinear has 16-bit integers"):
            qfunc.quantize(target)(NET)
    else:
        qfunc.deploy(target)(qfunc.calibrate([x], progress=False)(qfunc.quantize(target)(NET)))

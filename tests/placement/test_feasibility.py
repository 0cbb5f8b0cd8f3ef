"""What no file can hold is refused when a model is quantized, not when it is deployed."""

import pytest
from attrs import evolve

import qfunc
from qfunc import targets
from qfunc.errors import SpecError
from qfunc.lowering import QdqLowering
from qfunc.placement.legality import stored_schemes
from qfunc.specs import DerivedQParams, Int, PerBlock, PerChannel, Scale, Scheme, edit
from qfunc.specs.formats import E4M3FN
from qfunc.targets.runtimes import TfliteLowering
from tests.placement.refusals import Net, refusal


@pytest.mark.parametrize(
    ("opset", "scheme", "constant", "needs"),
    [
        (13, Scheme(Int(4)), False, "QdqLowering(opset=21): QuantizeLinear has 4-bit integers"),
        (12, Scheme(Int(8), Scale(PerChannel(0))), True, "QdqLowering(opset=13): QuantizeLinear has scales per channel"),
        (11, Scheme(Int(8)), True, ""),
        (20, Scheme(Int(16, signed=False)), False, "QdqLowering(opset=21): QuantizeLinear has 16-bit integers"),
        (13, Scheme(Int(16)), True, "QdqLowering(opset=21): QuantizeLinear has 16-bit integers"),
        (13, Scheme(Int(12)), True, "QdqLowering(opset=21): QuantizeLinear has 16-bit integers"),
        (18, Scheme(E4M3FN), False, "QdqLowering(opset=19): QuantizeLinear has 8-bit floats"),
        (13, Scheme(qfunc.specs.formats.E5M2), True, "QdqLowering(opset=19): QuantizeLinear has 8-bit floats"),
        (19, Scheme(Int(8), Scale(PerBlock(-1, 4))), True, "QdqLowering(opset=21): QuantizeLinear has scales per block"),
        (
            13,
            Scheme(E4M3FN, Scale(PerBlock(-1, 4))),
            True,
            "QdqLowering(opset=21): QuantizeLinear has scales per block",
        ),
        (21, Scheme(Int(4), Scale(PerBlock(-1, 4))), False, ""),
        (19, Scheme(E4M3FN), False, ""),
        (13, Scheme(Int(4)), True, ""),
        (13, Scheme(Int(8), Scale(PerChannel(0))), True, ""),
        (13, Scheme(Int(32), Scale(PerChannel(0))), True, ""),
    ],
)
def test_what_an_opset_has(opset, scheme, constant, needs):
    """Source: the changelog of ONNX's operators, QuantizeLinear-13, -19 and -21."""
    found = stored_schemes.refusal(QdqLowering(opset=opset), scheme, constant)
    assert found == (f"{needs} from opset {needs.split('=')[1][:2]} on (ONNX operators)" if needs else "")


FP8, BLOCKS = Scheme(E4M3FN), Scheme(Int(4), Scale(PerBlock(-1, 3)))
DYNAMIC = Scheme(Int(8), Scale(dynamic=True))


@pytest.mark.parametrize(
    ("slot", "scheme", "words"),
    [
        ("input", FP8, "Float(4, mantissa=3, max=448.0) with scales PerTensor()"),
        ("weight", BLOCKS, "Int(4) with scales PerBlock(-1, size=3)"),
        ("input", DYNAMIC, "Int(8) with dynamic scales"),
    ],
)
def test_what_a_chip_holds_and_no_file_is_written_with(slot, scheme, words):
    """Refused when the model is quantized, not when it has been trained; simulated without a file."""
    own = targets.tensorrt
    rules = tuple(evolve(r, **{slot: scheme}) if getattr(r, slot) is not None else r for r in own.rules)
    target = evolve(own, rules=rules, legality=())
    places = {
        "weight": "op 'conv', weight 'conv.weight'; op 'fc', weight 'fc.weight'",
        "input": "op 'conv', input 'x'; op 'mean', input 'act'; op 'fc', input 'mean'",
    }[slot]
    assert refusal(target) == (
        f"target 'tensorrt', {places}: found {words}, wanted a scheme that files store: integers with one static scale "
        f"per tensor or channel, or logarithms per tensor. "
        "Edit the scheme, or simulate it without a file: attrs.evolve(target, lowering=None)."
    )
    qfunc.quantize(evolve(target, lowering=None))(Net())


def test_an_opset_too_low_for_four_bits():
    target = edit.pipe(targets.qdq, edit.activations(bits=4), edit.deploy(QdqLowering(opset=13)))
    assert refusal(target) == (
        "target 'qdq', op 'conv', input 'x'; op 'mean', input 'act'; op 'fc', input 'mean': found Int(4) for "
        "QdqLowering(opset=13), "
        "wanted QdqLowering(opset=21): QuantizeLinear has 4-bit integers from opset 21 on (ONNX operators). "
        "Set it with edit.deploy(...), or edit the scheme."
    )
    qfunc.quantize(edit.pipe(target, edit.deploy(QdqLowering(opset=21))))(Net())


def wide_biases(bits, target=targets.litert):
    rules = tuple(evolve(r, bias=DerivedQParams(Int(bits))) if r.bias is not None else r for r in target.rules)
    return evolve(target, rules=rules)


@pytest.mark.parametrize("bits", [33, 64])
@pytest.mark.parametrize("name", ["litert_reference", "tosa", "executorch_xnnpack", "qnn_htp"])
def test_biases_wider_than_every_file(name, bits):
    """Refused when the model is quantized, and simulated without a file.  Source: DequantizeLinear-21, at most int32."""
    target = evolve(wide_biases(bits, getattr(targets, name)), legality=())
    assert refusal(target) == (
        f"target '{name}', op 'conv', bias 'conv.bias'; op 'fc', bias 'fc.bias': found Int({bits}), "
        "wanted at most 32 bits: DequantizeLinear has no wider codes (ONNX operators). "
        "Edit the rule, or simulate it without a file: attrs.evolve(target, lowering=None)."
    )
    qfunc.quantize(evolve(target, lowering=None))(Net())


def test_biases_of_64_bits_in_files_that_hold_them():
    """Q/DQ ONNX dequantizes them by a function of the model, TFLite's 16x8 operators take them."""
    qfunc.quantize(evolve(wide_biases(64), legality=(), lowering=QdqLowering()))(Net())
    assert refusal(evolve(wide_biases(64), legality=(), lowering=TfliteLowering())).startswith(
        "target 'litert', op 'conv', bias"
    )


def test_biases_of_32_bits():
    qfunc.quantize(wide_biases(32))(Net())


@pytest.mark.parametrize("opset", [10, 22, 13.0, True])
def test_opsets_that_cannot_be_written(opset):
    with pytest.raises(SpecError) as e:
        QdqLowering(opset=opset)
    do = "Give such a number."
    assert str(e.value) == f"QdqLowering.opset: found {opset!r}, wanted an int in [11, 21]. {do}"

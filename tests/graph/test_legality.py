"""What the hardware refuses is said by quantize: which op and tensor, by which rule, and the cure."""

import pytest
import torch
import torch.nn.functional as F
from attrs import evolve
from torch import nn

import qfunc
from qfunc import targets
from qfunc.errors import SpecError
from qfunc.graph.capture import capture
from qfunc.graph.legality import breaches
from qfunc.graph.plan import plan
from qfunc.lowering import Qdq
from qfunc.specs import (
    Everything,
    Fixed,
    From,
    Int,
    Keep,
    Op,
    PerBlock,
    PerChannel,
    PerTensor,
    Refuse,
    Require,
    Rule,
    Scale,
    Scheme,
    Step,
    ZeroPoint,
    edit,
)  # fmt: skip
from qfunc.specs.placement import Fusion

U8 = Scheme(Int(8, signed=False), zero_point=ZeroPoint())
HERE = {"because": "guide, 2"}
FLOAT = "or leave the op in float by edit.skip."


class Net(nn.Module):
    """conv-relu, pool, linear: one tensor of each role."""

    def __init__(self, act=nn.ReLU) -> None:
        super().__init__()
        self.conv, self.act, self.fc = nn.Conv2d(2, 3, 3), act(), nn.Linear(3, 4)

    def forward(self, x):
        """Scores."""
        return self.fc(self.act(self.conv(x)).mean((2, 3)))


def chip(*legality, rules=None, **changes):
    """A chip with uint8 affine tensors, and what it refuses."""
    default = Rule(Op(("conv", "linear")), input=U8, weight=Scheme(Int(8, low=-127)), output=U8)
    made = {"name": "chip", "rules": rules or default, "fusions": (), "ties": (), "kernels": (), **changes}
    return evolve(targets.tensorrt, **made, legality=legality)


def refusal(target, net=None):
    """The message of quantize."""
    with pytest.raises(SpecError) as e:
        qfunc.quantize(target)(net or Net())
    return str(e.value)


TENSORRT = "TensorRT 11, Working with Quantized Types: "


def test_a_zero_point_on_tensorrt():
    target = edit.pipe(targets.tensorrt, edit.activations(symmetric=False))
    assert refusal(target) == (
        "target 'tensorrt', op 'conv', input 'x'; op 'mean', input 'act'; op 'fc', input 'mean': found a zero point, "
        f"wanted none: {TENSORRT}'TensorRT uses a symmetric quantization scheme'. "
        f"Use edit.activations(symmetric=True), {FLOAT}"
    )


def test_four_bit_activations_on_tensorrt():
    target = edit.pipe(targets.tensorrt, edit.activations(bits=4), edit.skip(edit.op("mean")))
    assert refusal(target) == (
        "target 'tensorrt', op 'conv', input 'x'; op 'mean', input 'act'; op 'fc', input 'mean': found Int(4), "
        "wanted Int(8) or Int(8, low=-127) or Float(4, mantissa=3, max=448.0) or Float(2, mantissa=1, max=6.0): "
        f"{TENSORRT}INT8, FP8E4M3, FP4E2M1 and, for weights only, INT4, all signed. Use edit.activations(bits=8), {FLOAT}"
    )


def test_tensorrt_takes_its_own_narrower_weights_and_mqbench_activations():
    changes = (edit.weights(bits=4), edit.inputs(edit.op("conv"), Scheme(Int(8, low=-127))))
    qfunc.quantize(edit.pipe(targets.tensorrt, *changes))(Net())


@pytest.mark.parametrize(
    ("name", "formats", "because"),
    [
        (
            "snpe",
            "Int(8, signed=False) or Int(16, signed=False) or Int(8) or Int(16)",
            "QAIRT documentation, quantization: activations have 8 or 16 bits, weights 4, 8 or 16",
        ),
        (
            "vitis",
            "Int(8)",
            "MQBench user guide, hardware/vitis: '8bit per-tensor symmetric linear quantization with power of two scales'",
        ),
    ],
)
def test_four_bit_activations_on_chips_of_bytes(name, formats, because):
    target = edit.pipe(getattr(targets, name), edit.activations(bits=4))
    four = "Int(4)" if name == "vitis" else "Int(4, signed=False)"
    assert refusal(target) == (
        f"target {name!r}, op 'conv', input 'x'; op 'conv', output 'act'; op 'mean', output 'mean'; op 'fc', output 'fc': "
        f"found {four}, wanted {formats}: {because}. Use edit.activations(bits=8), {FLOAT}"
    )
    qfunc.quantize(edit.pipe(getattr(targets, name), edit.weights(bits=4)))(Net())


def test_per_channel_weights_on_snpe():
    assert refusal(edit.pipe(targets.snpe, edit.weights(granularity=PerChannel()))) == (
        "target 'snpe', op 'conv', weight 'conv.weight'; op 'fc', weight 'fc.weight': found scales PerChannel(0), wanted "
        "PerTensor(): MQBench user guide, hardware/snpe: '8/16 bit per-layer asymmetric linear quantization'. "
        f"Use edit.weights(granularity=PerTensor()), {FLOAT}"
    )


class Larger(nn.Module):
    """conv, then a resize."""

    def __init__(self, **how) -> None:
        super().__init__()
        self.conv, self.up = nn.Conv2d(2, 3, 3), nn.Upsample(**how)

    def forward(self, x):
        """Larger features."""
        return self.up(self.conv(x))


@pytest.mark.parametrize(
    ("net", "op", "kind", "because", "do"),
    [
        (
            Larger(scale_factor=3),
            "up",
            "resize",
            "MQBench user guide, hardware/nnie: 'Only support 2x nearest neighbor upsample'",
            "Resize by mode='nearest', scale_factor=2, or leave it to the CPU by edit.skip.",
        ),
        (
            Larger(size=(8, 10)),  # which may be twofold, but the chip's layer has a factor
            "up",
            "resize",
            "MQBench user guide, hardware/nnie: 'Only support 2x nearest neighbor upsample'",
            "Resize by mode='nearest', scale_factor=2, or leave it to the CPU by edit.skip.",
        ),
        (
            Net(nn.GELU),
            "act",
            "gelu",
            "HiSVP development guide, 3.1: the mapper takes Caffe's layers and some extensions, the rest runs on the CPU",
            "Replace it by ops that Caffe has, or leave it to the CPU by edit.skip.",
        ),
    ],
    ids=["resize", "size", "gelu"],
)
def test_an_op_that_nnie_cannot_run(net, op, kind, because, do):
    assert refusal(targets.nnie, net) == (
        f"target 'nnie', op {op!r}: found the kind {kind!r}, wanted an op that it runs: {because}. {do}"
    )
    qfunc.quantize(edit.pipe(targets.nnie, edit.skip(edit.name(op))))(net)


@pytest.mark.parametrize("how", [{"scale_factor": 2}, {"scale_factor": (2.0, 2.0)}], ids=repr)
def test_nnie_runs_twofold_resizing(how):
    qfunc.quantize(targets.nnie)(Larger(**how))
    with pytest.raises(SpecError, match="nearest neighbor"):
        qfunc.quantize(targets.nnie)(Larger(**how, mode="bilinear"))


class Kinds(nn.Module):
    """One op behind a convolution."""

    def __init__(self, op) -> None:
        super().__init__()
        self.conv, self.op = nn.Conv2d(2, 4, 3), op

    def forward(self, x):
        """Its result."""
        return self.op(self.conv(x))


def of_sizes(x):
    """A channel shuffle: arithmetic of sizes, which the chip is not asked for."""
    n, c, h, w = x.shape
    return x.view(n, 2, c // 2, h, w).transpose(1, 2).contiguous().view(x.size(0), -1, h, w)


CAFFE = [
    *(torch.relu, torch.sigmoid, torch.tanh, torch.abs, torch.exp, F.elu, F.softplus, F.leaky_relu, F.relu6, of_sizes),
    *(lambda x: F.softmax(x, 1), lambda x: torch.cat(x.chunk(2, 1), 1), lambda x: torch.maximum(x, 2 * x) - x.pow(2)),
    *(lambda x: F.max_pool2d(x, 2).flatten(1), lambda x: x.mean((2, 3)), lambda x: x.permute(0, 2, 3, 1)),
]


@pytest.mark.parametrize("op", CAFFE)
def test_nnie_runs_what_caffe_has(op):
    qfunc.quantize(targets.nnie)(Kinds(op))


NO_LAYER = [
    (F.gelu, "op 'gelu': found the kind 'gelu'"),
    (F.hardswish, "op 'hardswish': found the kind 'hardswish'"),
    (lambda x: F.pad(x, (1, 1, 1, 1)), "op 'pad': found the kind 'pad'"),
    (lambda x: x @ x.transpose(2, 3), "op 'matmul': found the kind 'matmul'"),
    (lambda x: torch.cumsum(x, 1), "op 'cumsum': found the kind 'cumsum'"),
    (lambda x: torch.lgamma(x), "op 'lgamma': found lgamma, an op of no known kind"),
]


@pytest.mark.parametrize(("op", "words"), NO_LAYER, ids=[w.split("'")[1] for _, w in NO_LAYER])
def test_nnie_refuses_every_other_op(op, words):
    wanted = "HiSVP development guide, 3.1: the mapper takes Caffe's layers and some extensions, the rest runs on the CPU"
    do = "Replace it by ops that Caffe has, or leave it to the CPU by edit.skip."
    assert refusal(targets.nnie, Kinds(op)) == f"target 'nnie', {words}, wanted an op that it runs: {wanted}. {do}"
    qfunc.quantize(edit.pipe(targets.nnie, edit.skip(edit.name(words.split("'")[1]))))(Kinds(op))


OTHERS = [
    (targets.vitis, edit.weights(power_of_two=False), "found scales of any size, wanted powers of two: MQBench user guide"),
    (targets.vitis, edit.weights(granularity=PerChannel()), "found scales PerChannel(0), wanted PerTensor(): MQBench"),
    (targets.vitis, edit.activations(symmetric=False), "found a zero point, wanted none: MQBench user guide"),
    (targets.nnie, edit.inputs(edit.op("conv"), Scheme(Int(8))), "found Int(8), wanted Log(): MQBench user guide"),
    (targets.ppl_cuda, edit.inputs(edit.op("conv"), U8), "found a zero point, wanted none: MQBench, deploy_linear.py"),
    (targets.tengine_u8, edit.weights(granularity=PerChannel()), "found scales PerChannel(0), wanted PerTensor(): MQBench"),
    (targets.tengine_u8, edit.activations(bits=16), "found Int(16, signed=False), wanted Int(8, signed=False): MQBench"),
    (targets.tengine_u8, edit.weights(bits=4), "found Int(4, signed=False), wanted Int(8, signed=False): OAID Tengine, tools"),
    (targets.ppl_cuda, edit.activations(bits=4), "found Int(4), wanted Int(8): PPQ, quantizer/PPLQuantizer.py, PPL_CUDA_INT8"),
    (targets.ppl_cuda, edit.weights(bits=4), "found Int(4), wanted Int(8): PPQ, quantizer/PPLQuantizer.py, PPL_CUDA_INT8"),
    (targets.ppl_cuda, edit.activations(granularity=PerChannel(1)), "found scales PerChannel(1), wanted PerTensor(): MQBen"),
    (targets.stpu, edit.activations(bits=4), "found Int(4, low=-7), wanted Int(8, low=-127): MQBench, deploy/deploy_stpu.py"),
    (targets.stpu, edit.weights(bits=4), "found Int(4, low=-7), wanted Int(8, low=-127): MQBench, deploy/deploy_stpu.py"),
    (targets.stpu, edit.activations(symmetric=False), "found a zero point, wanted none: MQBench, deploy/deploy_stpu.py"),
    (targets.stpu, edit.weights(granularity=PerChannel()), "found scales PerChannel(0), wanted PerTensor(): MQBench, deplo"),
    (targets.openvino, edit.activations(bits=4), "found Int(4), wanted Int(8) or Int(8, signed=False) or Int(8, low=-127)"),
    (targets.openvino, edit.activations(bits=16), "found Int(16), wanted Int(8) or Int(8, signed=False) or Int(8, low=-127)"),
    (targets.ppl_w8a16, edit.weights(bits=4), "found Int(4, signed=False), wanted Int(8, signed=False) or Int(8): MQBench"),
    (targets.ppl_w8a16, edit.activations(bits=8), "found Int(8, signed=False), wanted Int(16, signed=False) or Int(16): MQ"),
    (targets.onnx_qnn, edit.weights(signed=True), "found Int(8), wanted Int(8, signed=False): MQBench, deploy_onnx_qnn.py"),
    (targets.tensorrt, edit.activations(granularity=PerChannel(1)), "found scales PerChannel(1), wanted PerTensor() or PerB"),
    (targets.tensorrt, edit.weights(symmetric=False), "found a zero point, wanted none: TensorRT 11"),
    (targets.tensorrt_nlp, edit.activations(bits=16), "found Int(16), wanted Int(8) or Int(8, low=-127) or Float"),
]


@pytest.mark.parametrize(("target", "change", "words"), OTHERS, ids=[f"{t.name}-{i}" for i, (t, *_) in enumerate(OTHERS)])
def test_what_else_is_documented(target, change, words):
    qfunc.quantize(target)(Net())
    assert words in refusal(edit.pipe(target, change))


def test_weights_narrowed_by_an_edit_are_widened_by_one():
    target = edit.pipe(targets.stpu, edit.weights(bits=4))
    message = refusal(target, nn.Linear(3, 4))
    assert message == (
        "target 'stpu', op 'linear', weight 'weight': found Int(4, low=-7), wanted Int(8, low=-127): "
        "MQBench, deploy/deploy_stpu.py: one range a tensor, [-127 s, 127 s]. Use edit.weights(bits=8), "
        f"{FLOAT}"
    )
    qfunc.quantize(edit.pipe(target, edit.weights(bits=8)))(nn.Linear(3, 4))
    own = evolve(target, overrides=(), rules=Rule(Op("linear"), weight=Scheme(Int(4))))
    assert refusal(own, nn.Linear(3, 4)).endswith("Edit the rule that quantizes it, or leave the op in float by edit.skip.")


def test_weights_without_integers_have_no_fewer_bits():
    with pytest.raises(SpecError) as e:
        qfunc.quantize(edit.pipe(targets.nnie, edit.weights(bits=4)))(nn.Linear(3, 4))
    assert str(e.value) == (
        "Override.bits: found 4, wanted None, for the hardware's weights are Log(), whose codes have one width. "
        "Drop bits, or choose other hardware."
    )


def test_narrower_codes_may_be_refused_of_constants_too():
    eight = Require(Op("linear"), "weight", formats=Int(8), narrower=False, **HERE)
    target = chip(eight, rules=Rule(Op("linear"), weight=Scheme(Int(8))))
    assert found(target) == []
    assert found(edit.pipe(target, edit.weights(bits=7))) == [("fc", "weight", "fc.weight")]
    assert found(evolve(target, legality=evolve(eight, narrower=True), overrides=edit.weights(bits=7)(target).overrides)) == []


def test_an_op_that_the_chip_cannot_run():
    target = chip(Refuse(Op("gelu"), because="no such layer (guide, 3.1)", do="Use relu, or edit.skip for the CPU."))
    assert refusal(target, Net(nn.GELU)) == (
        "target 'chip', op 'act': found the kind 'gelu', wanted an op that it runs: no such layer (guide, 3.1). "
        "Use relu, or edit.skip for the CPU."
    )
    qfunc.quantize(target)(Net())
    qfunc.quantize(edit.pipe(target, edit.skip(edit.op("gelu"))))(Net(nn.GELU))
    qfunc.quantize(edit.pipe(target, edit.skip(edit.name("act"))))(Net(nn.GELU))


def test_keeping_only_the_input_in_float_does_not_move_the_op():
    target = chip(Refuse(Op("gelu"), because="guide, 3", do="Use relu."))
    target = edit.pipe(target, edit.inputs(edit.op("gelu"), Keep()))
    assert refusal(target, Net(nn.GELU)).startswith("target 'chip', op 'act': found the kind 'gelu'")


@pytest.mark.parametrize(
    ("opset", "scheme", "constant", "needs"),
    [
        (13, Scheme(Int(4)), False, "Qdq(opset=21), for QuantizeLinear has 4-bit integers"),
        (20, Scheme(Int(16, signed=False)), False, "Qdq(opset=21), for QuantizeLinear has 16-bit integers"),
        (13, Scheme(Int(16)), True, "Qdq(opset=21), for QuantizeLinear has 16-bit integers"),
        (13, Scheme(Int(12)), True, "Qdq(opset=21), for QuantizeLinear has 16-bit integers"),
        (18, Scheme(qfunc.specs.E4M3FN), False, "Qdq(opset=19), for QuantizeLinear has 8-bit floats"),
        (13, Scheme(qfunc.specs.E5M2), True, "Qdq(opset=19), for QuantizeLinear has 8-bit floats"),
        (19, Scheme(Int(8), Scale(PerBlock(-1, 4))), True, "Qdq(opset=21), for QuantizeLinear has scales per block"),
        (
            13,
            Scheme(qfunc.specs.E4M3FN, Scale(PerBlock(-1, 4))),
            True,
            "Qdq(opset=21), for QuantizeLinear has scales per block",
        ),
        (21, Scheme(Int(4), Scale(PerBlock(-1, 4))), False, ""),
        (19, Scheme(qfunc.specs.E4M3FN), False, ""),
        (13, Scheme(Int(4)), True, ""),
        (13, Scheme(Int(8), Scale(PerChannel(0))), True, ""),
        (13, Scheme(Int(32), Scale(PerChannel(0))), True, ""),
    ],
)
def test_what_an_opset_has(opset, scheme, constant, needs):
    """Source: the changelog of ONNX's operators, QuantizeLinear-13, -19 and -21."""
    found = Qdq(opset=opset).refuses(scheme, constant)
    assert found == (f"{needs} from opset {needs[10:12]} on (ONNX operators)" if needs else "")


def test_what_tensorrt_can_hold_and_no_file_is_written_with():
    """FP8, and int4 by blocks: refused when the model is quantized, not when it has been trained; simulated without a file."""
    fp8, blocks = Scheme(qfunc.specs.E4M3FN), Scheme(Int(4), Scale(PerBlock(-1, 3)))
    own = targets.tensorrt
    for rules, fmt in (
        (tuple(evolve(r, input=fp8) if r.input is not None else r for r in own.rules), "Float(4, mantissa=3, max=448.0)"),
        (tuple(evolve(r, weight=blocks) if r.weight is not None else r for r in own.rules), "Int(4)"),
    ):
        target = evolve(own, rules=rules, legality=own.legality[:1])
        text = refusal(target)
        assert f"found {fmt} for Together((ExplicitQdq(), ClipRanges())), wanted integers with one static scale" in text
        assert "attrs.evolve(target, lowering=None) simulates them" in text
        qfunc.quantize(evolve(target, lowering=None))(Net())


def test_an_opset_too_low_for_four_bits():
    target = edit.pipe(targets.qdq, edit.activations(bits=4), edit.deploy(Qdq(opset=13)))
    assert refusal(target) == (
        "target 'qdq', op 'conv', input 'x'; op 'mean', input 'act'; op 'fc', input 'mean': found Int(4) for Qdq(opset=13), "
        "wanted Qdq(opset=21), for QuantizeLinear has 4-bit integers from opset 21 on (ONNX operators). "
        "Give edit.deploy(...) that, or edit the scheme."
    )
    qfunc.quantize(edit.pipe(target, edit.deploy(Qdq(opset=21))))(Net())


@pytest.mark.parametrize("opset", [12, 22, 13.0, True])
def test_opsets_that_cannot_be_written(opset):
    with pytest.raises(SpecError) as e:
        Qdq(opset=opset)
    do = "Give such a number."
    assert str(e.value) == f"Qdq.opset: found {opset!r}, wanted an int in [13, 21]. {do}"


def test_several_reasons_stand_in_one_message():
    target = edit.pipe(
        chip(
            Require(Everything(), ("input", "output"), formats=Int(8, signed=False), **HERE),
            Require(Everything(), "weight", shared=PerTensor(), zero_point=False, power_of_two=True, because="guide, 4"),
        ),
        edit.activations(bits=4),
        edit.weights(granularity=PerChannel(), symmetric=False),
    )
    weights = "op 'conv', weight 'conv.weight'; op 'fc', weight 'fc.weight'"
    assert refusal(target) == (
        "target 'chip': found 10 things that it refuses, for 4 reasons, wanted none. Cure each:\n"
        "  op 'conv', input 'x'; op 'conv', output 'conv'; op 'fc', input 'mean'; op 'fc', output 'fc': found "
        f"Int(4, signed=False), wanted Int(8, signed=False): guide, 2. Use edit.activations(bits=8), {FLOAT}\n"
        f"  {weights}: found a zero point, wanted none: guide, 4. Use edit.weights(symmetric=True), {FLOAT}\n"
        f"  {weights}: found scales of any size, wanted powers of two: guide, 4. Use edit.weights(power_of_two=True), {FLOAT}\n"
        f"  {weights}: found scales PerChannel(0), wanted PerTensor(): guide, 4. "
        f"Use edit.weights(granularity=PerTensor()), {FLOAT}"
    )


def test_a_handful_of_places_then_a_count():
    net = nn.Sequential(*(nn.Linear(3, 3) for _ in range(9)))
    target = edit.pipe(chip(Require(Everything(), "weight", zero_point=False, **HERE)), edit.weights(symmetric=False))
    assert refusal(target, net) == (
        "target 'chip', op '0', weight '0.weight'; op '1', weight '1.weight'; op '2', weight '2.weight'; "
        "op '3', weight '3.weight'; op '4', weight '4.weight'; and 4 more: found a zero point, wanted none: guide, 2. "
        f"Use edit.weights(symmetric=True), {FLOAT}"
    )


def test_a_handful_of_reasons_then_a_count():
    rules = [
        Refuse(Op(kind), because="guide, 3", do=f"Drop {kind}.")
        for kind in ("relu", "tanh", "gelu", "silu", "mish", "elu", "exp")
    ]
    net = nn.Sequential(nn.ReLU(), nn.Tanh(), nn.GELU(), nn.SiLU(), nn.Mish(), nn.ELU(), nn.Linear(3, 3))
    lines = refusal(chip(*rules), net).splitlines()
    assert lines[0] == "target 'chip': found 6 things that it refuses, for 6 reasons, wanted none. Cure each:"
    assert lines[1] == "  op '0': found the kind 'relu', wanted an op that it runs: guide, 3. Drop relu."
    assert lines[-1] == "  and 1 more"
    assert len(lines) == 7


def found(target, net=None):
    """(op, slot, tensor) of every breach."""
    model = capture()(net or Net())
    return [(b.op, b.slot, b.tensor) for b in breaches(plan(model, target), target)]


def test_a_tensor_is_told_once_and_a_reader_behind_moves_counts():
    class Moved(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(3, 4), nn.Linear(4, 5)

        def forward(self, x):
            return self.b(self.a(x).reshape(-1, 4))

    wide = Require(Op("linear"), "input", formats=Int(16), **HERE)
    assert found(chip(wide), Moved()) == [("a", "input", "x"), ("b", "input", "a")]
    both = Require(Everything(), ("input", "output"), formats=Int(16), **HERE)
    assert [t for *_, t in found(chip(both), Moved())] == ["x", "a", "b"]


def test_the_output_of_a_fused_group_is_each_of_its_ops():
    target = chip(Require(Op("relu"), "output", formats=Int(16), **HERE), fusions=Fusion(Op("conv"), Step(Op("relu"))))
    assert found(target) == [("conv", "output", "act")]
    assert found(evolve(target, legality=Require(Op("relu"), "input", formats=Int(16), **HERE))) == []


def test_an_op_left_in_float_is_not_asked_though_its_input_has_codes():
    target = chip(Require(Op("linear"), ("input", "weight"), formats=Int(4), **HERE))
    rule = Rule(Op("conv"), input=U8, weight=U8, output=U8)
    target = evolve(target, rules=(Rule(Op("global_avg_pool"), output=U8), rule, *target.rules))
    assert [s for _, s, _ in found(target)] == ["input", "weight"]
    assert found(edit.pipe(target, edit.skip(edit.op("linear")))) == []


def test_a_rule_for_some_edges_keeps_no_op_in_float():
    target = chip(Require(Op("linear"), "input", formats=Int(16), **HERE))
    some = Rule(Op("linear"), input=Keep(), edges=From(Op("softmax")))
    assert found(evolve(target, rules=(some, *target.rules))) == [("fc", "input", "mean")]


def test_constants_may_use_fewer_codes_and_activations_may_not():
    target = chip(Require(Op("linear"), ("input", "weight"), formats=(Int(8), Int(8, signed=False)), **HERE))
    assert found(target) == []
    narrow = Rule(Op("linear"), input=Scheme(Int(8, low=-127)), weight=Scheme(Int(5)))
    assert found(evolve(target, rules=narrow)) == [("fc", "input", "mean")]
    signed = evolve(target, legality=Require(Op("linear"), "weight", formats=Int(8), **HERE))
    assert found(evolve(signed, rules=Rule(Op("linear"), weight=Scheme(Int(7, signed=False))))) == [
        ("fc", "weight", "fc.weight")
    ]
    for weight in (Int(9), Int(16, low=-129, high=100), Int(16, low=-100, high=128), Int(9, signed=False)):
        wide = Rule(Op("linear"), weight=Scheme(weight))
        assert found(evolve(target, rules=wide)) == [("fc", "weight", "fc.weight")]


@pytest.mark.parametrize("zero_point", [None, ZeroPoint(value=0)])
def test_a_zero_point_that_is_always_0_is_none(zero_point):
    target = chip(Require(Op("linear"), ("input", "weight"), zero_point=False, **HERE))
    fixed = Fixed(Scheme(Int(8), zero_point=ZeroPoint()), 0.5, 0)
    assert found(evolve(target, rules=Rule(Op("linear"), input=fixed, weight=Scheme(Int(8), zero_point=zero_point)))) == []
    moved = Fixed(Scheme(Int(8), zero_point=ZeroPoint()), 0.5, 1)
    assert found(evolve(target, rules=Rule(Op("linear"), input=moved))) == [("fc", "input", "mean")]


def test_a_fixed_value_is_cured_in_its_rule():
    moved = Fixed(Scheme(Int(8), zero_point=ZeroPoint()), 0.5, 1)
    target = chip(Require(Op("linear"), "input", zero_point=False, **HERE), rules=Rule(Op("linear"), input=moved))
    assert refusal(target).endswith("Edit the rule that quantizes it, or leave the op in float by edit.skip.")


def test_a_zero_point_may_be_required():
    target = chip(Require(Op("linear"), ("input", "weight"), zero_point=True, **HERE))
    assert found(target) == [("fc", "weight", "fc.weight")]
    assert refusal(target).endswith(f"found no zero point, wanted one: guide, 2. Use edit.weights(symmetric=False), {FLOAT}")


def test_scales_per_channel_are_those_of_the_output_channels():
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(3, 4), nn.ConvTranspose1d(4, 5, 1)

        def forward(self, x):
            return self.b(self.a(x).transpose(1, 2))

    def of(shared):
        rules = Rule(Op(("linear", "conv_transpose")), weight=Scheme(Int(8), Scale(shared)))
        return chip(Require(Everything(), "weight", shared=PerChannel(), **HERE), rules=rules)

    a, b = ("a", "weight", "a.weight"), ("b", "weight", "b.weight")
    assert found(of(PerChannel()), Two()) == []
    assert found(of(PerChannel(0)), Two()) == [b]
    assert found(of(PerChannel(1)), Two()) == [a]
    assert found(of(PerChannel(-2)), Two()) == []  # axis 0 of [O, I] and axis 1 of [I, O, K]
    assert found(of(PerTensor()), Two()) == [a, b]


def test_blocks_have_an_axis_and_a_size():
    def of(shared):
        rules = Rule(Op("linear"), weight=Scheme(Int(4), Scale(shared)))
        return evolve(chip(Require(Everything(), "weight", shared=PerBlock(1, 3), **HERE), rules=rules), lowering=None)

    assert found(of(PerBlock(1, 3))) == found(of(PerBlock(-1, 3))) == []
    assert len(found(of(PerBlock(-1, 1)))) == len(found(of(PerBlock(0, 2)))) == 1


def test_names_that_match_nothing_are_refused_as_in_rules():
    target = chip(Refuse(edit.name("cnv"), because="guide, 3", do="Drop it."))
    assert refusal(target) == (
        "target 'chip', legality: found Name('cnv'), which matches nothing in the model, "
        "wanted a selector that matches an op or a tensor. Near names: conv, fc."
    )


def test_quantize_refuses_before_it_looks_at_the_weights():
    net = Net()
    net.conv.weight.data.fill_(torch.nan)
    assert "found a zero point" in refusal(edit.pipe(targets.tensorrt, edit.activations(symmetric=False)), net)

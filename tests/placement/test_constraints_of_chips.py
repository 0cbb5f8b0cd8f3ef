"""What the vendors document that their hardware refuses: quantize says it, with the rule, its source and the cure."""

import pytest
import torch
import torch.nn.functional as F
from attrs import evolve
from torch import nn

import qfunc
from qfunc import targets
from qfunc.errors import SpecError
from qfunc.specs import Int, Op, PerChannel, Rule, Scheme, edit
from tests.placement.refusals import FLOAT, U8, Net, refusal

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
            "'resize' with mode='nearest', scale_factor=3.0",
            "MQBench user guide, hardware/nnie: 'Only support 2x nearest neighbor upsample'",
            "Resize by mode='nearest', scale_factor=2, or leave it to the CPU by edit.skip.",
        ),
        (
            Larger(size=(8, 10)),  # which may be twofold, but the chip's layer has a factor
            "up",
            "'resize' with mode='nearest', scale_factor=None",
            "MQBench user guide, hardware/nnie: 'Only support 2x nearest neighbor upsample'",
            "Resize by mode='nearest', scale_factor=2, or leave it to the CPU by edit.skip.",
        ),
        (
            Net(nn.GELU),
            "act",
            "'gelu'",
            "HiSVP development guide, 3.1: the mapper takes Caffe's layers and some extensions, the rest runs on the CPU",
            "Replace it by ops that Caffe has, or leave it to the CPU by edit.skip.",
        ),
    ],
    ids=["resize", "size", "gelu"],
)
def test_an_op_that_nnie_cannot_run(net, op, kind, because, do):
    assert refusal(targets.nnie, net) == (
        f"target 'nnie', op {op!r}: found the kind {kind}, wanted an op that it runs: {because}. {do}"
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
    *(lambda x: F.max_pool2d(x, 2, ceil_mode=True).flatten(1), lambda x: x.mean((2, 3)), lambda x: x.permute(0, 2, 3, 1)),
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
    (lambda x: torch.lgamma(x), "op 'lgamma': found lgamma, an op of unknown kind"),
]


@pytest.mark.parametrize(("op", "words"), NO_LAYER, ids=[w.split("'")[1] for _, w in NO_LAYER])
def test_nnie_refuses_every_other_op(op, words):
    wanted = "HiSVP development guide, 3.1: the mapper takes Caffe's layers and some extensions, the rest runs on the CPU"
    do = "Replace it by ops that Caffe has, or leave it to the CPU by edit.skip."
    assert refusal(targets.nnie, Kinds(op)) == f"target 'nnie', {words}, wanted an op that it runs: {wanted}. {do}"
    left = edit.pipe(targets.nnie, edit.skip(edit.name(words.split("'")[1])))
    qfunc.quantize(evolve(left, lowering=None) if "unknown" in words else left)(Kinds(op))  # no file holds an unknown op


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
        "MQBench, deploy/deploy_stpu.py: one range per tensor, [-127 s, 127 s]. Use edit.weights(bits=8), "
        f"{FLOAT}"
    )
    qfunc.quantize(edit.pipe(target, edit.weights(bits=8)))(nn.Linear(3, 4))
    own = evolve(target, overrides=(), rules=Rule(Op("linear"), weight=Scheme(Int(4))))
    assert refusal(own, nn.Linear(3, 4)).endswith("Edit the rule that quantizes it, or leave the op in float by edit.skip.")


def test_weights_without_integers_have_no_fewer_bits():
    with pytest.raises(SpecError) as e:
        qfunc.quantize(edit.pipe(targets.nnie, edit.weights(bits=4)))(nn.Linear(3, 4))
    assert str(e.value) == (
        "Override.bits: found 4, wanted None, because the hardware's weights are Log(), with codes of one width. "
        "Drop bits, or choose other hardware."
    )

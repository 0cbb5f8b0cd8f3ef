"""Every target with every granularity of scales: what the chip takes is deployed, the rest is refused by quantize."""

import pytest
import torch
from attrs import evolve
from torch import nn

import qfunc
from qfunc import targets
from qfunc.graph.view import QuantizedModel
from qfunc.placement.partition import Partition
from qfunc.specs import Cases, FixedQParams, PerBlock, PerChannel, PerTensor, PerToken, Scheme, Target, edit
from tests.placement.refusals import FLOAT, refusal

A, W = ("input", "output"), ("weight",)
COLUMNS = {
    "A channel": (A, {"shared": PerChannel(1)}),
    "A token": (A, {"shared": PerToken()}),
    "A block": (A, {"shared": PerBlock(-1, 2)}),
    "A run time": (A, {"dynamic": True}),
    "W tensor": (W, {"shared": PerTensor()}),
    "W channel": (W, {"shared": PerChannel()}),
    "W input": (W, {"shared": PerChannel(1)}),
    "W token": (W, {"shared": PerToken()}),
    "W block": (W, {"shared": PerBlock(0, 2)}),
}
# What each takes, and where the vendor says that it takes no other: of activations, of weights.  Where no vendor speaks,
# it is that no file can hold such scales.  Blocks that TensorRT takes are of other sizes.
TENSOR = ("W tensor",)
EACH = ("W tensor", "W channel")
ANY = ("A channel", *EACH, "W input")
TAKEN = {
    "academic": (ANY, "", ""),
    "academic_nlp": (ANY, "", ""),
    "cmsis_nn": (EACH, "8-bit quantization specification", "8-bit quantization specification"),
    "cmsis_nn_16x8": (TENSOR, "TensorFlow Lite 16x8", "supported for per channel quantization"),
    "edge_tpu": (EACH, "8-bit quantization specification", "8-bit quantization specification"),
    "executorch_xnnpack": (EACH, "XNNPACK, xnnpack.h", "XNNPACK, xnnpack.h"),
    "k210": (EACH, "kpu_conv2d.cpp", "kpu_conv2d.cpp"),
    "litert": (EACH, "8-bit quantization specification", "8-bit quantization specification"),
    "litert_optimised": (EACH, "8-bit quantization specification", "8-bit quantization specification"),
    "litert_reference": (EACH, "8-bit quantization specification", "8-bit quantization specification"),
    "ncnn": (EACH, "ncnn, quantized int8 inference", "ncnn, quantized int8 inference"),
    "nnie": (TENSOR, "hardware/nnie", "hardware/nnie"),
    "onnx_qnn": (EACH, "get_scalar", "QLinearConv-10"),
    "onnxruntime": (("A channel", *EACH), "", "filter scale shape invalid"),
    "openvino": (ANY, "", ""),
    "ppl_cuda": (EACH, "one number per tensor", "PPL_CUDA_INT8"),
    "ppl_cuda_affine": (ANY, "", ""),
    "ppl_w8a16": (EACH, "PPL_DSP_INT8", "for weights one per output channel"),
    "qdq": (ANY, "", ""),
    "qnn_htp": (EACH, "QNN execution provider", "quantsim_config of the HTP"),
    "snpe": (TENSOR, "hardware/snpe", "hardware/snpe"),
    "stpu": (TENSOR, "one range per tensor", "one range per tensor"),
    "tengine_u8": (TENSOR, "one line", "one line"),
    "tensorrt": (EACH, "TensorRT 11, quantization schemes", "TensorRT 11, quantization schemes"),
    "tensorrt_nlp": (EACH, "TensorRT 11, quantization schemes", "TensorRT 11, quantization schemes"),
    "tosa": (EACH, "CONV2D and RESCALE", "CONV2D and RESCALE"),
    "vitis": (TENSOR, "hardware/vitis", "hardware/vitis"),
}
OF_BLOCKS = {"compressed_tensors", "executorch_8da4w", "gguf", "onnxruntime_nbits", "openvino_blocks"}
"""Linear layers in blocks, whose inputs are quantized at run time in one scheme."""
NOWHERE = "a scheme that files store"
UNKNOWN = "because their number is only known at run time"


class Net(nn.Module):
    """A convolution and a linear layer, both of even sizes."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.fc = nn.Conv2d(2, 4, 1), nn.Linear(4, 6)

    def forward(self, x):
        """Scores."""
        return self.fc(self.conv(x).mean((2, 3)))


def scaled(value, scale):
    """A slot value with another scale."""
    match value:
        case Scheme():
            return evolve(value, scale=evolve(value.scale, **scale))
        case Cases():
            cases = tuple((selector, scaled(v, scale)) for selector, v in value.cases)
            return evolve(value, cases=cases, default=scaled(value.default, scale))
        case FixedQParams():
            return value
    return value


def given(target, slots, scale):
    """The target with these scales in every rule."""
    return evolve(target, rules=tuple(evolve(r, **{s: scaled(getattr(r, s), scale) for s in slots}) for r in target.rules))


def test_the_table_has_every_target():
    assert TAKEN.keys() == set(targets.__all__) - OF_BLOCKS


@pytest.mark.thorough
@pytest.mark.parametrize("name", TAKEN)
def test_what_a_chip_takes_is_deployed_and_the_rest_refused(name):
    found, (taken, activations, weights) = getattr(targets, name), TAKEN[name]
    target = found if isinstance(found, Target) else found(8, 8)
    x = torch.randn(3, 2, 4, 4)
    for column, (slots, scale) in COLUMNS.items():
        other = given(target, slots, scale)
        if column in taken:
            done = qfunc.calibrate([x], progress=False)(qfunc.quantize(other)(Net()))
            known = {"model.onnx", "model.ncnn.bin", "model.pte", "model.tflite", "model.tosa"}
            assert known & qfunc.deploy(other)(done).files.keys(), column
            continue
        static, text = "dynamic" not in scale, refusal(other, Net())
        general = UNKNOWN if slots is A and static else NOWHERE
        assert (((activations if slots is A else weights) if static else "") or general) in text, f"{column}: {text}"
        assert "Use edit." in text or "Edit the scheme" in text, column


def test_activations_a_channel_on_tvm():
    target = edit.activations(granularity=PerChannel(1))(targets.onnx_qnn)
    assert refusal(target, Net()) == (
        "target 'onnx_qnn', op 'conv', input 'x'; op 'conv', output 'conv'; op 'mean', output 'mean'; op 'fc', output 'fc': "
        "found scales PerChannel(1), wanted PerTensor(): Apache TVM, relay/frontend/onnx.py, get_scalar: 'scale and "
        f"zero_point input must be scalars'. Use edit.activations(granularity=PerTensor()), {FLOAT}"
    )


def test_activations_a_channel_on_ppl():
    target = edit.activations(granularity=PerChannel(1))(targets.ppl_w8a16)
    assert refusal(target, Net()) == (
        "target 'ppl_w8a16', op 'conv', input 'x'; op 'conv', output 'conv'; op 'mean', output 'mean'; op 'fc', output 'fc': "
        "found scales PerChannel(1), wanted PerTensor(): MQBench, prepare_by_platform.py, backend PPLW8A16, and PPQ, "
        "PPL_DSP_INT8: activations have one scale per tensor. "
        f"Use edit.activations(granularity=PerTensor()), {FLOAT}"
    )


def test_weights_an_input_channel_on_onnx_runtime():
    target = edit.weights(granularity=PerChannel(1))(targets.onnxruntime)
    assert refusal(target, Net()) == (
        "target 'onnxruntime', op 'conv', weight 'conv.weight'; op 'fc', weight 'fc.weight': found scales PerChannel(1), "
        "wanted PerTensor() or PerChannel(): onnxruntime 1.31, QLinearConv: 'filter scale shape invalid' except for one scale, "
        f"or one per output channel. Use edit.weights(granularity=PerTensor()), {FLOAT}"
    )


def test_static_scales_of_what_has_no_fixed_number_of_them():
    places = "op 'conv', input 'x'; op 'conv', output 'conv'; op 'mean', output 'mean'; op 'fc', output 'fc'"
    for shared in (PerToken(), PerBlock(-1, 2)):
        target = edit.activations(granularity=shared)(targets.onnxruntime)
        for one in (target, evolve(target, lowering=None)):  # with a file or without
            assert refusal(one, Net()) == (
                f"target 'onnxruntime', {places}: found static scales {shared!r}, wanted dynamic scales, Scale(..., "
                f"dynamic=True), because their number is only known at run time. "
                "Use edit.activations(granularity=PerTensor()), or edit the rule."
            )
    target = edit.activations(granularity=PerChannel())(targets.onnxruntime)
    assert refusal(target, Net()) == (
        f"target 'onnxruntime', {places}: found scales PerChannel() of an activation, wanted an axis, as in PerChannel(1), "
        "because only weights have output channels. Name the axis."
    )


def test_blocks_that_do_not_divide_a_weight():
    bare = evolve(targets.qdq, lowering=None)
    assert refusal(edit.weights(granularity=PerBlock(1, 4))(bare), Net()) == (
        "target 'qdq', op 'conv', weight 'conv.weight': found PerBlock(1, size=4) on shape (4, 2, 1, 1), wanted an axis of "
        "the tensor that the block size divides. Use an axis of the tensor and a size that divides it, "
        "or leave the op in float by edit.skip."
    )
    qfunc.quantize(edit.weights(granularity=PerBlock(1, 2))(bare))(Net())


@pytest.mark.parametrize("target", [targets.qdq, targets.openvino], ids=lambda t: t.name)
def test_weights_with_scales_along_the_inputs_are_summed_in_float(target):
    """A sum of products whose scales differ has no integer accumulator: not even where there are as many of either kind."""
    torch.manual_seed(0)
    x, net = torch.randn(3, 4, 5, 2), nn.Sequential(nn.Conv2d(4, 4, 1), nn.ReLU(), nn.Conv2d(4, 4, 1), nn.Conv2d(4, 2, 1))
    other = edit.weights(bits=7, granularity=PerChannel(1))(target)
    done = qfunc.calibrate([x], progress=False)(qfunc.quantize(other)(net))
    reasons = {unit.path: unit.reason for unit in Partition(QuantizedModel(done), other).float_units}
    assert target.name == "qdq" or reasons["0"] == "its weight has a scale an input channel, which no integer kernel takes"
    assert torch.equal(qfunc.emulate(other)(done)(x), done(x).detach())


def test_biases_stay_float_behind_scales_that_are_found_at_run_time():
    """s_x s_w is known to nobody before the model runs; simulated, for no file holds such a target."""
    target = evolve(given(targets.onnxruntime, A, {"dynamic": True, "shared": PerToken()}), lowering=None)
    done = qfunc.calibrate([torch.randn(3, 4)], progress=False)(qfunc.quantize(target)(nn.Linear(4, 6)))
    assert not any("bias" in name for name, _ in done.named_modules())

"""What slides over an image: windows of other than two dimensions, and pools whose last window does not fit."""

import itertools

import pytest
import torch
from torch import nn

import qfunc
from qfunc import targets
from qfunc.specs import Target, edit
from tests.conformance.modules import FLOAT
from tests.placement.refusals import refusal

POOLING = "MQBench user guide, hardware/nnie: 'Pooling: ceil_mode = True'"


def behind(layer):
    """A layer behind a convolution."""
    return nn.Sequential(nn.Conv2d(2, 4, 3), layer)


@pytest.mark.parametrize("pool", [nn.MaxPool2d, nn.AvgPool2d])
def test_pools_of_nnie_round_sizes_up(pool):
    kind = "max_pool" if pool is nn.MaxPool2d else "avg_pool"
    assert refusal(targets.nnie, behind(pool(3, 2))) == (
        f"target 'nnie', op '1': found the kind {kind!r} with ceil_mode=False, stride=2, wanted an op that it runs: "
        f"{POOLING}. Pool with ceil_mode=True, the same where windows fit exactly, or leave it to the CPU by edit.skip."
    )
    for fine in (pool(3, 2, ceil_mode=True), pool(3, 1), pool(3, (1, 1))):
        qfunc.quantize(targets.nnie)(behind(fine))
    qfunc.quantize(edit.pipe(targets.nnie, edit.skip(edit.op(kind))))(behind(pool(3, 2)))


BLOBS = "HiSVP API reference, SVP_BLOB_S: a blob has a number, channels, a height and a width"
CONV2D = "Apache TVM, src/relay/qnn/op/convolution.cc: the only convolution on codes is qnn.conv2d"
KERNELS = "OAID Tengine, tools/convert_tool/onnx/onnx2tengine.cpp: a kernel has a height and a width"
PLANES = {  # what slides along other than 2 dimensions, and the rule; a target that is not here has none
    "nnie": (
        {"conv": [3], "conv_transpose": [3], "max_pool": [3]},
        BLOBS,
        "Slide along 2 dimensions, or leave it to the CPU by",
    ),
    "onnx_qnn": ({"conv": [1, 3]}, CONV2D, "Use nn.Conv2d, or leave it in float by"),
    "tengine_u8": ({"conv": [1, 3], "conv_transpose": [1, 3], "max_pool": [1, 3]}, KERNELS, "Slide along 2 dimensions"),
}
FOUR_AXES = "TensorFlow Lite operators: convolutions and pools take tensors of four axes"
VOLUMES = ({"conv": [3], "conv_transpose": [3], "max_pool": [3]}, FOUR_AXES, "Slide along one or two axes")
LITERTS = ("cmsis_nn", "cmsis_nn_16x8", "edge_tpu", "litert", "litert_optimised", "litert_reference")
PLANES |= dict.fromkeys(LITERTS, VOLUMES)
PLANES["executorch_xnnpack"] = (
    VOLUMES[0], "XNNPACK, xnnpack.h: convolutions and pools take tensors of four axes, channels last", VOLUMES[2],
)  # fmt: skip
PRO_INT = "TOSA 1.0, profile PRO-INT, has no such operator on integers, or not with these attributes"
PLANES["tosa"] = (VOLUMES[0], PRO_INT, VOLUMES[2])
NO_BYTES = "ncnn, src/layer/convolution3d.cpp, deconvolution3d.cpp and pooling3d.cpp: no int8"
PLANES["ncnn"] = (VOLUMES[0], NO_BYTES, VOLUMES[2])
SLIDING = {"conv": "Conv{}d", "conv_transpose": "ConvTranspose{}d", "max_pool": "MaxPool{}d"}


OF_LAYERS = ("compressed_tensors", "executorch_8da4w", "gguf", "onnxruntime_nbits", "openvino_blocks")


@pytest.mark.thorough
@pytest.mark.parametrize("name", [n for n in targets.__all__ if n not in OF_LAYERS])
def test_convolutions_and_pools_of_other_than_two_dimensions(name):
    """A DPU of Versal convolves volumes (AMD PG389, DPUCVDX8G), so that Vitis has no such rule.

    Those left out quantize linear layers alone.
    """
    found = getattr(targets, name)
    target = found if isinstance(found, Target) else found(8, 8)
    refused, because, do = PLANES.get(name, ({}, "", ""))
    for kind, spatial in itertools.product(SLIDING, (1, 2, 3)):
        layer = getattr(nn, SLIDING[kind].format(spatial))
        net = layer(2, 2, 1) if "conv" in kind else nn.Sequential(nn.Linear(3, 3), layer(1), nn.Linear(3, 3))
        if spatial in refused.get(kind, ()):
            text = refusal(target, net)
            assert f"found the kind {kind!r} with spatial={spatial}, wanted an op that it runs: {because}. {do}" in text
        elif name in ("cmsis_nn_16x8", "ncnn", "onnx_qnn", "onnxruntime") and kind == "conv_transpose":
            continue  # which they leave in float, or no file of theirs has
        else:
            qfunc.quantize(target)(net)


def test_a_volume_on_nnie():
    assert refusal(targets.nnie, nn.Conv3d(2, 3, 1)) == (
        f"target 'nnie', op 'conv3d': found the kind 'conv' with spatial=3, wanted an op that it runs: {BLOBS}. "
        "Slide along 2 dimensions, or leave it to the CPU by edit.skip."
    )


def test_ops_that_no_function_names_slide_along_nothing():
    """Attention is dissolved into such ops; a rule about dimensions is asked of them too."""
    make, shape = FLOAT["sdpa"]
    qfunc.calibrate([torch.randn(shape)], progress=False)(qfunc.quantize(targets.litert)(make()))

"""Vitis, whose DPU applies ReLU and ReLU6 inside convolutions and additions."""

from parity.table import Backend, Explained

from qfunc import targets

NONLINEAR = "Vitis AI, vart/cpu-runner/src/op/conv2d_fix.cpp and eltwise_fix.cpp: RELU and RELU6 are part of the instruction"
BEFORE_CLIP = "features_*_conv_?_0 features_*_conv_0_0 features_0_0 features_18_0"
CLIPPED = "features_*_conv_?_2 features_0_2 features_18_2"

VITIS = (
    Backend(
        "Vitis",
        targets.vitis,
        (
            Explained("b", "activation", f"add add_? {BEFORE_CLIP}", "-128..127", "float",
                      {"resnet18": 8, "mobilenet_v2": 35}, NONLINEAR),
            Explained("b", "activation", CLIPPED, "float", "-128..127", {"mobilenet_v2": 35}, NONLINEAR),
            Explained(
                "c", "activation", "x", "float", "-128..127", {"resnet18": 1, "mobilenet_v2": 1, "squeezenet1_0": 1},
                "MQBench's VitisQuantizer knows the type 'input' and places no quantizer of it; the DPU reads int8",
            ),
        ),
    ),
)  # fmt: skip

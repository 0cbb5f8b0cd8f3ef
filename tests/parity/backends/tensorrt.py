"""Tensorrt and QDQ, whose placement MQBench shares, and Tensorrt_NLP."""

from parity.table import Backend, Explained

from qfunc import targets

RANGE = Explained(
    "b", "activation", "*", "-127..127", "-128..127",
    {"resnet18": 22, "mobilenet_v2": 54, "squeezenet1_0": 19},
    "TensorRT, quantization schemes: q = roundTiesToEven(clip(x/s, -128, 127)); MQBench's own user guide says so too",
)  # fmt: skip

TENSORRT = (
    Backend(
        "Tensorrt",
        targets.tensorrt,
        (
            RANGE,
            Explained(
                "b", "activation", "maxpool features_2 features_6 features_11", "-127..127", "float",
                {"resnet18": 1, "squeezenet1_0": 3},
                "TensorRT, explicit quantization: MaxPool commutes with Q, so the quantizer before it serves its reader",
            ),
            Explained(
                "b", "activation", "layer?_?_conv2 layer?_0_downsample_0 features_*_conv_2", "-127..127", "float",
                {"resnet18": 8, "mobilenet_v2": 10},
                "TensorRT developer guide, Q/DQ placement: the convolution's branch of an add is left to the fusion conv + add",
            ),
            Explained(
                "b", "activation", "features_*_expand?x?_activation", "float", "-128..127",
                {"squeezenet1_0": 16},
                "TensorRT developer guide, Q/DQ placement: equal scales on the inputs of a concat let Q move through it",
            ),
        ),
    ),
)  # fmt: skip

"""Tengine_u8, whose ops in place have one scale on both sides."""

from parity.table import Backend, Explained

from qfunc import targets

IN_PLACE = "Tengine, tools/quantize/quant_save_graph.cpp: ops in place (relu, max pool) have the scale of their output"
FUSED = "Tengine's converter joins ReLU6 with the convolution before it: the convolution has the scale of its activation"

TENGINE = (
    Backend(
        "Tengine_u8",
        targets.tengine_u8,
        (
            Explained(
                "b", "activation", "maxpool features_2 features_6 features_11 add add_?", "0..255", "float",
                {"resnet18": 9, "squeezenet1_0": 3}, IN_PLACE,
            ),
            Explained(
                "b", "activation", "features_*_0", "0..255", "float", {"mobilenet_v2": 35}, FUSED,
            ),
            Explained(
                "a", "activation", "adaptive_avg_pool2d cat_7", "0..255 0..255", "0..255",
                {"mobilenet_v2": 1, "squeezenet1_0": 1},
                "MQBench does not look through Dropout: two quantizers in series on the classifier's input",
            ),
        ),
    ),
)  # fmt: skip

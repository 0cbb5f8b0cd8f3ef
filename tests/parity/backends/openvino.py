"""OPENVINO, which MQBench prepares for CPUs without VNNI."""

from parity.table import Backend, Explained

from qfunc import targets

UNSIGNED = "NNCF, quantization of CPU targets: unsigned where no value is negative; MQBench looks for ReLU, not for ReLU6"

OPENVINO = (
    Backend(
        "OPENVINO",
        targets.openvino,
        (
            Explained(
                "b", "weight", "*", "-64..63 axis 0", "-127..127 axis 0",
                {"resnet18": 21, "mobilenet_v2": 53, "squeezenet1_0": 26},
                "NNCF: narrow weights of 255 levels; half the range is the overflow fix for CPUs without VNNI, an edit here",
            ),
            Explained(
                "b", "activation", "features_*", "-128..127", "0..255", {"mobilenet_v2": 35}, UNSIGNED,
            ),
            Explained(
                "b", "activation", "layer?_?_conv2 layer?_0_downsample_0 features_*_conv_2", "-128..127", "float",
                {"resnet18": 8, "mobilenet_v2": 10},
                "OpenVINO, intel_cpu/docs/internal_cpu_plugin_optimization.md, Fusing Convolution and Sum Layers: "
                "what rounds between the convolution and the addition is left out",
            ),
            Explained(
                "b", "activation", "cat_7", "-128..127", "0..255", {"squeezenet1_0": 1},
                "NNCF, quantization of CPU targets: unsigned where no value is negative, which a concat and Dropout preserve",
            ),
            Explained(
                "a", "activation", "adaptive_avg_pool2d", "-128..127 -128..127", "0..255", {"mobilenet_v2": 1},
                "MQBench does not look through Dropout: two quantizers in series on the classifier's input",
            ),
            Explained(
                "b", "activation", "classifier_3", "0..255", "float", {"squeezenet1_0": 1},
                "NNCF, pass-through ops: Reshape has no quantizer of its own, and nothing behind it runs on integers",
            ),
            Explained(
                "b", "activation", "features_*_expand?x?_activation", "float", "0..255", {"squeezenet1_0": 16},
                "NNCF, unified scales: the inputs of a concat are quantized with one scale",
            ),
            Explained(
                "c", "activation", "cat cat_?", "float", "0..255", {"squeezenet1_0": 7},
                "MQBench's OPENVINOQuantizer looks through cat and quantizes neither side: convolutions behind it are float",
            ),
        ),
    ),
)  # fmt: skip

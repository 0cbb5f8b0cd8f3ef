"""Tensorrt and QDQ, whose placement MQBench shares, and Tensorrt_NLP."""

from parity.table import Backend, Explained

from qfunc import targets


def saturation(because: str, **counts: int) -> Explained:
    """Activations that may use the code -128, which MQBench leaves out."""
    return Explained("b", "activation", "*", "-127..127", "-128..127", counts, because)


CLIP = "TensorRT, quantization schemes: q = roundTiesToEven(clip(x/s, -128, 127)); MQBench's own user guide says so too"
QDQ = "ONNX operator specification, QuantizeLinear-13: it saturates to [-128, 127] for int8"

TENSORRT = (
    Backend(
        "Tensorrt",
        targets.tensorrt,
        (
            saturation(CLIP, resnet18=22, mobilenet_v2=54, squeezenet1_0=19),
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
    Backend("Tensorrt", targets.qdq, (saturation(QDQ, resnet18=31, mobilenet_v2=64, squeezenet1_0=22),)),
    Backend("Tensorrt_NLP", targets.tensorrt_nlp, (saturation(CLIP, resnet18=17, mobilenet_v2=21),)),
)  # fmt: skip

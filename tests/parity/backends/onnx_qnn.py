"""ONNX_QNN, which MQBench deploys with linear layers in float."""

from parity.table import Backend, Explained

from qfunc import targets

MOVES = "ONNX operator specification, MaxPool-12: it takes uint8; the quantizer before it serves its reader"
LINEAR = "MQBench leaves Gemm in float for want of a quantized op; QLinearMatMul, and QGemm of com.microsoft, are such ops"

ONNX_QNN = (
    Backend(
        "ONNX_QNN",
        targets.onnx_qnn,
        (
            Explained(
                "b", "activation", "maxpool features_2 features_6 features_11", "0..255", "float",
                {"resnet18": 1, "squeezenet1_0": 3}, MOVES,
            ),
            Explained("b", "activation", "cat_2 cat_6", "float", "0..255", {"squeezenet1_0": 2}, MOVES),
            Explained("c", "weight", "fc classifier.1", "float", "0..255", {"resnet18": 1, "mobilenet_v2": 1}, LINEAR),
            Explained("c", "activation", "fc classifier_1", "float", "0..255", {"resnet18": 1, "mobilenet_v2": 1}, LINEAR),
        ),
    ),
)  # fmt: skip

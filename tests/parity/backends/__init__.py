"""The back-ends of MQBench, each with the table of its differences."""

from parity.backends.academic import ACADEMIC
from parity.backends.nnie import NNIE
from parity.backends.onnx_qnn import ONNX_QNN
from parity.backends.openvino import OPENVINO
from parity.backends.tengine import TENGINE
from parity.backends.tensorrt import TENSORRT
from parity.backends.total_int import TOTAL_INT
from parity.backends.vitis import VITIS
from parity.table import Backend

BACKENDS: tuple[Backend, ...] = (
    *TENSORRT,
    *TOTAL_INT,
    *NNIE,
    *ACADEMIC,
    *VITIS,
    *OPENVINO,
    *TENGINE,
    *ONNX_QNN,
)

__all__ = ["BACKENDS"]

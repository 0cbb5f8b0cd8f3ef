"""Lowering: from a calibrated model to the artifact that a vendor's toolchain loads."""

from qfunc.lowering.combined import Together
from qfunc.lowering.ncnn.lowering import NcnnFiles
from qfunc.lowering.ncnn.runner import Ncnn
from qfunc.lowering.onnx.int4 import Packed
from qfunc.lowering.onnx.lowering import ExplicitQdq, Qdq
from qfunc.lowering.onnxruntime.runner import OnnxRuntime
from qfunc.lowering.openvino.lowering import FakeQuantizeOnnx
from qfunc.lowering.openvino.runner import OpenVino
from qfunc.lowering.qlinear.lowering import QLinear
from qfunc.lowering.qnn.lowering import HtpQdq
from qfunc.lowering.qnn.runner import QnnHtp
from qfunc.lowering.tflite.lowering import Tflite
from qfunc.lowering.tflite.runner import LiteRt
from qfunc.lowering.tosa.lowering import TosaFile
from qfunc.lowering.tosa.runner import Tosa
from qfunc.lowering.vendor.nnie import Gfpq
from qfunc.lowering.vendor.ppl_cuda import PplCuda
from qfunc.lowering.vendor.ppl_dsp import PplJson
from qfunc.lowering.vendor.snpe import Encodings
from qfunc.lowering.vendor.stpu import StpuFiles
from qfunc.lowering.vendor.tengine import TengineScale
from qfunc.lowering.vendor.tensorrt import ClipRanges
from qfunc.lowering.vendor.vitis import VitisFiles
from qfunc.lowering.xnnpack.lowering import Pte
from qfunc.lowering.xnnpack.runner import ExecuTorch

__all__ = [
    "ClipRanges",
    "Encodings",
    "ExecuTorch",
    "ExplicitQdq",
    "FakeQuantizeOnnx",
    "Gfpq",
    "HtpQdq",
    "LiteRt",
    "Ncnn",
    "NcnnFiles",
    "OnnxRuntime",
    "OpenVino",
    "Packed",
    "PplCuda",
    "PplJson",
    "Pte",
    "QLinear",
    "Qdq",
    "QnnHtp",
    "StpuFiles",
    "TengineScale",
    "Tflite",
    "Together",
    "Tosa",
    "TosaFile",
    "VitisFiles",
]

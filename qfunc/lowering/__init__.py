"""Lowering: from a calibrated model to the artifact that a vendor's toolchain loads."""

from qfunc.lowering.clip_ranges import ClipRanges
from qfunc.lowering.encodings import Encodings
from qfunc.lowering.executorch import ExecuTorch
from qfunc.lowering.fake_quantize_onnx import FakeQuantizeOnnx
from qfunc.lowering.gfpq import Gfpq
from qfunc.lowering.htp_qdq import HtpQdq
from qfunc.lowering.litert import LiteRt
from qfunc.lowering.ncnn import Ncnn
from qfunc.lowering.ncnn_files import NcnnFiles
from qfunc.lowering.onnxruntime import OnnxRuntime
from qfunc.lowering.openvino_cpu import OpenVino
from qfunc.lowering.packed import Packed
from qfunc.lowering.ppl_cuda import PplCuda
from qfunc.lowering.ppl_json import PplJson
from qfunc.lowering.qdq import ExplicitQdq, Qdq
from qfunc.lowering.qlinear import QLinear
from qfunc.lowering.qnn_htp import QnnHtp
from qfunc.lowering.stpu_files import StpuFiles
from qfunc.lowering.tengine_scale import TengineScale
from qfunc.lowering.tflite import Tflite
from qfunc.lowering.together import Together
from qfunc.lowering.tosa import Tosa
from qfunc.lowering.tosa_file import TosaFile
from qfunc.lowering.vitis_files import VitisFiles
from qfunc.lowering.xnnpack import Pte

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


def __dir__() -> list[str]:
    return sorted(__all__)

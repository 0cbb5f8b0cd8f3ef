"""Lowering: from a calibrated model to the artifact that a vendor's toolchain loads."""

from qfunc.lowering.code_functions.operands import Coded, CodeOp
from qfunc.lowering.code_functions.runner import CodesRunner
from qfunc.lowering.combination import Combined
from qfunc.lowering.compressed_tensors.lowering import CompressedTensorsLowering
from qfunc.lowering.compressed_tensors.runner import TransformersRunner
from qfunc.lowering.gguf.lowering import GgufLowering
from qfunc.lowering.gguf.runner import GgmlRunner
from qfunc.lowering.llama_cpp.config import decoder_config
from qfunc.lowering.llama_cpp.lowering import LlamaCppLowering
from qfunc.lowering.llama_cpp.runner import LlamaCppRunner
from qfunc.lowering.llama_cpp.tokenizer import with_tokenizer
from qfunc.lowering.machines.processors import Browser, Node, Qemu
from qfunc.lowering.ncnn.lowering import NcnnLowering
from qfunc.lowering.ncnn.runner import NcnnRunner
from qfunc.lowering.onnx.int4 import PackInt4
from qfunc.lowering.onnx.lowering import ExplicitQdqLowering, QdqLowering
from qfunc.lowering.onnxruntime.lowering import MatMulNBitsLowering
from qfunc.lowering.onnxruntime.runner import OnnxRuntimeRunner
from qfunc.lowering.openvino.lowering import OpenVinoLowering
from qfunc.lowering.openvino.runner import OpenVinoRunner
from qfunc.lowering.openvino_blocks.lowering import OpenVinoBlocksLowering
from qfunc.lowering.openvino_blocks.runner import OpenVinoBlocksRunner
from qfunc.lowering.program import Program, ProgramUnit
from qfunc.lowering.qlinear.lowering import QLinearLowering
from qfunc.lowering.qnn.lowering import QnnHtpLowering
from qfunc.lowering.qnn.runner import QnnHtpRunner
from qfunc.lowering.tflite.lowering import TfliteLowering
from qfunc.lowering.tflite.runner import LiteRtRunner, TfliteMicroRunner
from qfunc.lowering.toolchains.k210 import K210Lowering
from qfunc.lowering.toolchains.nnie import NnieLowering
from qfunc.lowering.toolchains.ppl_cuda import PplCudaLowering
from qfunc.lowering.toolchains.ppl_dsp import PplDspLowering
from qfunc.lowering.toolchains.snpe import SnpeEncodings
from qfunc.lowering.toolchains.stpu import StpuLowering
from qfunc.lowering.toolchains.tengine import TengineLowering
from qfunc.lowering.toolchains.tensorrt import TensorRtRanges
from qfunc.lowering.toolchains.vitis import VitisLowering
from qfunc.lowering.tosa.lowering import TosaLowering
from qfunc.lowering.tosa.runner import TosaRunner
from qfunc.lowering.xnnpack.lowering import XnnpackLowering
from qfunc.lowering.xnnpack.runner import ExecuTorchRunner

__all__ = [
    "CodeOp",
    "Coded",
    "CodesRunner",
    "TensorRtRanges",
    "SnpeEncodings",
    "CompressedTensorsLowering",
    "TransformersRunner",
    "ExecuTorchRunner",
    "ExplicitQdqLowering",
    "OpenVinoBlocksLowering",
    "OpenVinoBlocksRunner",
    "OpenVinoLowering",
    "GgmlRunner",
    "GgufLowering",
    "LlamaCppLowering",
    "LlamaCppRunner",
    "decoder_config",
    "with_tokenizer",
    "K210Lowering",
    "NnieLowering",
    "QnnHtpLowering",
    "LiteRtRunner",
    "NcnnRunner",
    "Browser",
    "Node",
    "Qemu",
    "MatMulNBitsLowering",
    "NcnnLowering",
    "OnnxRuntimeRunner",
    "OpenVinoRunner",
    "PackInt4",
    "PplCudaLowering",
    "PplDspLowering",
    "Program",
    "ProgramUnit",
    "XnnpackLowering",
    "QLinearLowering",
    "QdqLowering",
    "QnnHtpRunner",
    "StpuLowering",
    "TengineLowering",
    "TfliteLowering",
    "TfliteMicroRunner",
    "Combined",
    "TosaRunner",
    "TosaLowering",
    "VitisLowering",
]


def __dir__() -> list[str]:
    return sorted(__all__)

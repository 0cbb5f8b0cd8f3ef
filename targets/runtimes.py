"""The lowerings and runners of the chips: what a `Target` holds as `lowering`, and its `Runtime` as `runner`."""

from qfunc.targets.compressed_tensors.lowering import CompressedTensorsLowering
from qfunc.targets.compressed_tensors.runner import TransformersRunner
from qfunc.targets.executorch.lowering import XnnpackLowering
from qfunc.targets.executorch.runner import ExecuTorchRunner
from qfunc.targets.ggml.llama_cpp.config import decoder_config
from qfunc.targets.ggml.llama_cpp.lowering import LlamaCppLowering
from qfunc.targets.ggml.llama_cpp.runner import LlamaCppRunner
from qfunc.targets.ggml.llama_cpp.tokenizer import with_tokenizer
from qfunc.targets.ggml.lowering import GgufLowering
from qfunc.targets.ggml.runner import GgmlRunner
from qfunc.targets.k210.lowering import K210Lowering
from qfunc.targets.litert.lowering import TfliteLowering
from qfunc.targets.litert.runner import LiteRtRunner, TfliteMicroRunner
from qfunc.targets.ncnn.lowering import NcnnLowering
from qfunc.targets.ncnn.runner import NcnnRunner
from qfunc.targets.nnie.lowering import NnieLowering
from qfunc.targets.onnx_qnn.lowering import QLinearLowering
from qfunc.targets.onnxruntime.lowering import MatMulNBitsLowering, OnnxRuntimeLowering
from qfunc.targets.onnxruntime.runner import OnnxRuntimeRunner
from qfunc.targets.openvino.blocks.lowering import OpenVinoBlocksLowering
from qfunc.targets.openvino.blocks.runner import OpenVinoBlocksRunner
from qfunc.targets.openvino.lowering import OpenVinoLowering
from qfunc.targets.openvino.runner import OpenVinoRunner
from qfunc.targets.ppl_cuda.lowering import PplCudaLowering
from qfunc.targets.ppl_w8a16.lowering import PplDspLowering
from qfunc.targets.qnn_htp.lowering import QnnHtpLowering
from qfunc.targets.qnn_htp.runner import QnnHtpRunner
from qfunc.targets.snpe.lowering import SnpeEncodings
from qfunc.targets.stpu.lowering import StpuLowering
from qfunc.targets.tengine_u8.lowering import TengineLowering
from qfunc.targets.tensorrt.lowering import TensorRtRanges
from qfunc.targets.tosa.lowering import TosaLowering
from qfunc.targets.tosa.runner import TosaRunner
from qfunc.targets.vitis.lowering import VitisLowering

__all__ = [
    "CompressedTensorsLowering",
    "ExecuTorchRunner",
    "GgmlRunner",
    "GgufLowering",
    "K210Lowering",
    "LiteRtRunner",
    "LlamaCppLowering",
    "LlamaCppRunner",
    "MatMulNBitsLowering",
    "NcnnLowering",
    "NcnnRunner",
    "NnieLowering",
    "OnnxRuntimeLowering",
    "OnnxRuntimeRunner",
    "OpenVinoBlocksLowering",
    "OpenVinoBlocksRunner",
    "OpenVinoLowering",
    "OpenVinoRunner",
    "PplCudaLowering",
    "PplDspLowering",
    "QLinearLowering",
    "QnnHtpLowering",
    "QnnHtpRunner",
    "SnpeEncodings",
    "StpuLowering",
    "TengineLowering",
    "TensorRtRanges",
    "TfliteLowering",
    "TfliteMicroRunner",
    "TosaLowering",
    "TosaRunner",
    "TransformersRunner",
    "VitisLowering",
    "XnnpackLowering",
    "decoder_config",
    "with_tokenizer",
]


def __dir__() -> list[str]:
    return sorted(__all__)

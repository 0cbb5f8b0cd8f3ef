"""Targets: one file or one folder per hardware; `runtimes` has the classes of their lowerings and runners."""

from qfunc.targets import arithmetics as arithmetics
from qfunc.targets import runtimes as runtimes
from qfunc.targets.academic import academic
from qfunc.targets.academic_nlp import academic_nlp
from qfunc.targets.cmsis_nn import cmsis_nn, cmsis_nn_16x8
from qfunc.targets.compressed_tensors.target import compressed_tensors
from qfunc.targets.edge_tpu import edge_tpu
from qfunc.targets.executorch.decoder_target import executorch_8da4w
from qfunc.targets.executorch.target import executorch_xnnpack
from qfunc.targets.ggml.target import gguf
from qfunc.targets.k210.target import k210
from qfunc.targets.litert.target import litert, litert_optimised, litert_reference
from qfunc.targets.ncnn.target import ncnn
from qfunc.targets.nnie.target import nnie
from qfunc.targets.onnx_qnn.target import onnx_qnn
from qfunc.targets.onnxruntime.decoder_target import onnxruntime_nbits
from qfunc.targets.onnxruntime.target import onnxruntime
from qfunc.targets.openvino.blocks.target import openvino_blocks
from qfunc.targets.openvino.target import openvino
from qfunc.targets.ppl_cuda.target import ppl_cuda, ppl_cuda_affine
from qfunc.targets.ppl_w8a16.target import ppl_w8a16
from qfunc.targets.qdq import qdq
from qfunc.targets.qnn_htp.target import qnn_htp
from qfunc.targets.snpe.target import snpe
from qfunc.targets.stpu.target import stpu
from qfunc.targets.tengine_u8.target import tengine_u8
from qfunc.targets.tensorrt.target import tensorrt, tensorrt_nlp
from qfunc.targets.tosa.target import tosa
from qfunc.targets.vitis.target import vitis

__all__ = [
    "academic", "academic_nlp", "cmsis_nn", "cmsis_nn_16x8", "compressed_tensors", "edge_tpu", "executorch_8da4w",
    "executorch_xnnpack", "gguf", "k210", "litert", "litert_optimised", "litert_reference", "ncnn", "nnie", "onnx_qnn",
    "onnxruntime", "onnxruntime_nbits", "openvino", "openvino_blocks", "ppl_cuda", "ppl_cuda_affine", "ppl_w8a16", "qdq",
    "qnn_htp", "snpe", "stpu", "tengine_u8", "tensorrt", "tensorrt_nlp", "tosa", "vitis",
]  # fmt: skip


def __dir__() -> list[str]:
    return sorted((*__all__, "arithmetics", "runtimes"))

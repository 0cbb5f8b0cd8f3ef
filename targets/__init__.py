"""Targets: one file per hardware, as data."""

from qfunc.targets.academic import academic
from qfunc.targets.academic_nlp import academic_nlp
from qfunc.targets.cmsis_nn import cmsis_nn, cmsis_nn_16x8
from qfunc.targets.edge_tpu import edge_tpu
from qfunc.targets.executorch_xnnpack import executorch_xnnpack
from qfunc.targets.k210 import k210
from qfunc.targets.language_models.compressed_tensors import compressed_tensors
from qfunc.targets.language_models.executorch_8da4w import executorch_8da4w
from qfunc.targets.language_models.gguf import gguf
from qfunc.targets.language_models.onnxruntime_nbits import onnxruntime_nbits
from qfunc.targets.language_models.openvino_blocks import openvino_blocks
from qfunc.targets.litert import litert, litert_optimised, litert_reference
from qfunc.targets.ncnn import ncnn
from qfunc.targets.nnie import nnie
from qfunc.targets.onnx_qnn import onnx_qnn
from qfunc.targets.onnxruntime import onnxruntime
from qfunc.targets.openvino import openvino
from qfunc.targets.ppl_cuda import ppl_cuda, ppl_cuda_affine
from qfunc.targets.ppl_w8a16 import ppl_w8a16
from qfunc.targets.qdq import qdq
from qfunc.targets.qnn_htp import qnn_htp
from qfunc.targets.snpe import snpe
from qfunc.targets.stpu import stpu
from qfunc.targets.tengine_u8 import tengine_u8
from qfunc.targets.tensorrt import tensorrt, tensorrt_nlp
from qfunc.targets.tosa import tosa
from qfunc.targets.vitis import vitis

__all__ = [
    "academic", "academic_nlp", "cmsis_nn", "cmsis_nn_16x8", "compressed_tensors", "edge_tpu", "executorch_8da4w",
    "executorch_xnnpack", "gguf", "k210", "litert", "litert_optimised", "litert_reference", "ncnn", "nnie", "onnx_qnn",
    "onnxruntime", "onnxruntime_nbits", "openvino", "openvino_blocks", "ppl_cuda", "ppl_cuda_affine", "ppl_w8a16", "qdq",
    "qnn_htp", "snpe", "stpu", "tengine_u8", "tensorrt", "tensorrt_nlp", "tosa", "vitis",
]  # fmt: skip


def __dir__() -> list[str]:
    return sorted(__all__)

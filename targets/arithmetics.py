"""The arithmetics of single chips, and their libraries of float functions."""

from qfunc.targets.executorch.float_functions import XnnpackFloat
from qfunc.targets.executorch.functions import Xnnpack
from qfunc.targets.k210.stages import KPU, Stages
from qfunc.targets.ncnn.functions import Ncnn
from qfunc.targets.onnxruntime.caches import AppendCodes, CachedAttention
from qfunc.targets.onnxruntime.dynamic_lstm import DynamicLstm
from qfunc.targets.onnxruntime.eigen import Eigen
from qfunc.targets.onnxruntime.experts import ExpertSums
from qfunc.targets.onnxruntime.float_matmul import FloatMatmul
from qfunc.targets.onnxruntime.float_products import MlasBlocks
from qfunc.targets.onnxruntime.mlas import Mlas, MlasLogistic

__all__ = [
    "AppendCodes", "CachedAttention", "DynamicLstm", "Eigen", "ExpertSums", "FloatMatmul", "KPU", "Mlas", "MlasBlocks",
    "MlasLogistic", "Ncnn", "Stages", "Xnnpack", "XnnpackFloat",
]  # fmt: skip


def __dir__() -> list[str]:
    return sorted(__all__)

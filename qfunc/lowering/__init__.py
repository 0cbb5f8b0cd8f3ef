"""Lowering: from a calibrated model to the artifact that a vendor's toolchain loads."""

from qfunc.lowering.clip_ranges import ClipRanges
from qfunc.lowering.encodings import Encodings
from qfunc.lowering.onnxruntime import OnnxRuntime
from qfunc.lowering.ppl_cuda import PplCuda
from qfunc.lowering.ppl_json import PplJson
from qfunc.lowering.qdq import Qdq
from qfunc.lowering.stpu_files import StpuFiles
from qfunc.lowering.together import Together

__all__ = ["ClipRanges", "Encodings", "OnnxRuntime", "PplCuda", "PplJson", "Qdq", "StpuFiles", "Together"]

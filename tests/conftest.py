"""On a CPU without VNNI the tests compare with ONNX Runtime by weights of 7 bits, whose sums AVX2 does not saturate.

Each worker, and each process that a test starts, has one thread: threads of several workers wait for each other.
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported

from qfunc import targets
from qfunc.lowering.onnxruntime import OnnxRuntime
from qfunc.specs import edit

if OnnxRuntime().comparable():
    targets.onnxruntime = edit.weights(bits=7)(targets.onnxruntime)

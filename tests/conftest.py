"""On a CPU without VNNI the tests compare with ONNX Runtime by weights of 7 bits, whose sums AVX2 does not saturate."""

from qfunc import targets
from qfunc.lowering.onnxruntime import OnnxRuntime
from qfunc.specs import edit

if OnnxRuntime().comparable():
    targets.onnxruntime = edit.weights(bits=7)(targets.onnxruntime)

"""Pure tensor functions: rounding, qparams, affine quantization, integer kernels."""

from qfunc.numerics.affine import dequantize, fake_quantize, quantize
from qfunc.numerics.qparams import Affine, from_range
from qfunc.numerics.rounding import round_by

__all__ = ["Affine", "dequantize", "fake_quantize", "from_range", "quantize", "round_by"]

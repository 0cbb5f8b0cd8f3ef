"""Pure tensor functions: rounding, qparams, affine quantization, integer kernels."""

from qfunc.numerics.affine import dequantize, fake_quantize, in_range, quantize
from qfunc.numerics.qparams import Affine, blocks, from_range, observed, of_tensor, qparams_shape
from qfunc.numerics.rounding import round_by

__all__ = [
    "Affine", "blocks", "dequantize", "fake_quantize", "from_range", "in_range", "observed", "of_tensor", "qparams_shape",
    "quantize", "round_by",
]  # fmt: skip


def __dir__() -> list[str]:
    return sorted(__all__)

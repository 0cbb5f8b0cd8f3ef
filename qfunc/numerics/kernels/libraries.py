"""Kernel libraries in float: the function with which each library computes an op."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from torch import Tensor

from qfunc.numerics.elementary import eigen
from qfunc.numerics.elementary import xnnpack as curves
from qfunc.numerics.elementary import xnnpack_logistic as logistics
from qfunc.numerics.kernels import integer, mlas, ncnn
from qfunc.numerics.kernels.xnnpack import gelu_in_double, hard_swish_by_sixths, logistic_in_double
from qfunc.numerics.sums import xnnpack_rows
from qfunc.numerics.sums.float_products import float_product

LIBRARIES: Mapping[str, Mapping[str, Callable[..., Tensor]]] = MappingProxyType(
    {
        "mlas": mlas.FUNCTIONS,
        "mlas_nbits": {"linear": float_product},
        "mlas_logistic": {"sigmoid": integer.logistic},
        "eigen": eigen.FUNCTIONS,
        "ncnn": ncnn.FUNCTIONS,
        "xnnpack": {"gelu": gelu_in_double, "hardswish": hard_swish_by_sixths, "sigmoid": logistic_in_double},
        "xnnpack_float": {**curves.FUNCTIONS, **logistics.FUNCTIONS, **xnnpack_rows.FUNCTIONS},
        "xnnpack_float_avx2": {
            **curves.FUNCTIONS,
            **logistics.FUNCTIONS_ON_AVX2,
            **xnnpack_rows.FUNCTIONS,
            **xnnpack_rows.FUNCTIONS_ON_AVX2,
        },
        "gelu_erfc": {"gelu": integer.gelu_erfc},
    }
)
"""`specs.FloatKernel.function` -> kind of op -> function of the op's arguments."""

__all__ = ["LIBRARIES"]

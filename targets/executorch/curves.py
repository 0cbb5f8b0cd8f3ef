"""How XNNPACK computes ops of constants, which a file has as their results."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from qfunc.lowering.constant_folding import Curves
from qfunc.lowering.qdq.qparams import Array
from qfunc.targets.executorch import elementary, logistic


def _of_arrays(curve: Callable[[Tensor], Tensor]) -> Callable[[Array], Array]:
    return lambda x: curve(torch.tensor(x)).numpy()


CURVES: Curves = {
    "Exp": _of_arrays(elementary.exp), "Log": _of_arrays(elementary.log), "Sqrt": _of_arrays(elementary.sqrt),
    "Sin": _of_arrays(elementary.sin), "Cos": _of_arrays(elementary.cos), "Tanh": _of_arrays(elementary.tanh),
    "Sigmoid": _of_arrays(logistic.sigmoid),
}  # fmt: skip
"""Type of node of ONNX -> the curve."""

__all__ = ["CURVES"]

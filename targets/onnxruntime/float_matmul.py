"""Products of real tensors in float32."""

from __future__ import annotations

import operator
from typing import Any, NamedTuple

import torch
from attrs import field, frozen

from qfunc.arithmetic.computation import Computation, Real, Size, bounded
from qfunc.arithmetic.unit import UnitSpec
from qfunc.specs._check import integer
from qfunc.specs._values import readable
from qfunc.targets.onnxruntime.matmul import mlas_linear, mlas_matmul


@readable
@frozen
class FloatMatmul:
    """y = f sum_k a_ik b_kj in float32, with a number f that the runtime fuses with the product, or f = 1.

    The sum over k is cut into slices of `depth` entries.  If b has fewer columns than rows, the slices double while half of
    the columns of a panel, first `depth` and at last 16, hold those of b.  A slice is added from 0 on, one fused multiply-add
    after the other, is multiplied by f, and fused with the sum of the slices before it.

    A single row without f is added without fused multiply-adds: four neighbours along k in order, then to the sum.  If b is
    stored transposed, or has a single column, there are eight sums, of the entries k, k + 8, k + 16 ...

    Of more than 2^16 products, several of the `threads` of the runtime compute parts of the rows, or of the columns in groups
    of 16, if there are more of these; each part has the order above.  So has a matrix of which there are several.

    It computes matmuls in float, and a `scale`, or a `mul` or `div` by a number, that is fused with them; and linear layers
    whose weight in blocks is dequantized, b = w^T, which is stored transposed.  The slices are added to their bias.

    Source: ONNX Runtime, mlas/lib/sgemm.cpp and x86_64/FgemmKernelAvx512FCommon.h, SgemmKernelM1Avx.S,
        SgemmKernelM1TransposeBAvx.S; contrib_ops/cpu/quantization/matmul_nbits.cc.

    >>> FloatMatmul(threads=2)
    FloatMatmul(threads=2)
    """

    depth: int = field(default=128, validator=integer(16))
    threads: int = field(default=1, validator=integer(1))

    @property
    def reads_reals(self) -> bool:
        """True: a weight with codes is dequantized."""
        return True

    @property
    def fuses(self) -> tuple[str, ...]:
        """The kinds of ops that multiply a product by a number."""
        return ("scale", "mul", "div")

    def refuses(self, unit: UnitSpec) -> str:
        """Return the reason for products whose form the graph does not show, and for linear layers times a number."""
        if unit.kind == "matmul":
            return "" if _form(unit) is not None else "the order of its sums depends on how the runtime stores its factors"
        return "a linear layer is not multiplied by a number" if any(op.kind in self.fuses for op in unit.fused) else ""

    def kernel(self, unit: UnitSpec) -> Computation:
        """Return the real values of a product.

        Raises:
            EmulationError: a kernel that takes codes.
        """
        if unit.kind not in ("matmul", "linear"):
            raise unit.unfit(self, ("matmul", "linear"))
        if unit.output is not None:
            found, wanted = f"{self!r} for a {unit.kind} of codes", "a kernel that takes reals"
            raise unit.error(found, wanted, 'Add formats=(("input", (FLOAT32,)), ("output", (FLOAT32,))) to its Kernel.')
        arguments = unit.arguments
        if unit.kind == "linear":
            tensors = (None if o is None else Real(o) for o in (arguments[n] for n in ("input", "weight", "bias")))
            return bounded(unit, Computation(mlas_linear, (*tensors, self.depth, self.threads), "bare"))
        form = _form(unit)
        assert form is not None  # `refuses` has no reason
        a, b = Real(arguments["input"]), Real(arguments["other"])
        factor = form.factor
        if form.by_width:
            factor = Computation(operator.pow, (Computation(torch.Tensor.size, (a, -1), "width"), -0.5), "factor")
        if form.divides:
            factor = Computation(reciprocal, (factor,), "factor")
        return Computation(mlas_matmul, (a, b, form.transposed, factor, self.depth, self.threads))


class _Form(NamedTuple):
    """What a runtime makes of a matmul: whether its second factor is transposed, and the number that it fuses.

    The number is `factor`, or its float32 reciprocal if it `divides`.  `by_width` stands for 1 / sqrt(width of the first
    factor).
    """

    transposed: bool = False
    factor: Any = None
    divides: bool = False
    by_width: bool = False


def _form(unit: UnitSpec) -> _Form | None:
    # None: it cannot be known from the graph.  Numbers that are computed from sizes count as constants, as which they are
    # written if no axis of them varies.
    if not unit.fused:
        first, second = (unit.arguments[name].transposed for name in ("input", "other"))
        return None if first is not False or second is None else _Form(second)
    step, *more = unit.fused
    if more or step.bounds is not None:
        return None
    if step.kind == "scale":
        factor = step.arguments["factor"]
        return _Form(factor=factor, by_width=factor is None)
    number = step.arguments.get("other")
    known = type(number) in (int, float, Size)
    return _Form(factor=number, divides=step.kind == "div") if known else None


def reciprocal(number: float) -> float:
    """Return the float32 reciprocal of a number."""
    return float(1 / torch.tensor(float(number), dtype=torch.float32))

"""Arithmetics: how one unit of a runtime turns codes into codes; and the values of which one of your own is made.

`specs.Arithmetic` has the two methods, `UnitSpec` is what they get, `Computation` what `kernel` returns.  Notation: x the input
codes minus their zero point, acc the sum of products, s_x s_w s_y the scales, z the output's zero point, M = s_x*s_w/s_y, R the
rounding; every result is then clamped to the codes of the output.  acc is exact unless it needs more bits than its
`accumulator` has; the accumulator belongs to products, not to means and sums of two tensors.
"""

from qfunc.arithmetic.averages import AverageCodes, AveragePool
from qfunc.arithmetic.computation import Computation, Constant, Real, Size, bounded
from qfunc.arithmetic.conversions import DequantizeSum, QuantizeInt32, QuantizeLanes, QuantizeRange
from qfunc.arithmetic.curves import GluTable, HardSwish16
from qfunc.arithmetic.dynamic_product import DynamicProduct
from qfunc.arithmetic.fixed_point import FixedBits, FixedPoint, FixedPointGemv, FixedPointLanes, ProductLanes
from qfunc.arithmetic.float_kernel import FloatKernel
from qfunc.arithmetic.float_multiplier import FloatMultiplier
from qfunc.arithmetic.float_requantize import FloatRequantize
from qfunc.arithmetic.images import Bilinear
from qfunc.arithmetic.norms import NormFixed
from qfunc.arithmetic.products import Sums, products
from qfunc.arithmetic.shift import Shift
from qfunc.arithmetic.softmaxes import SoftmaxFixed, SoftmaxFloat, SoftmaxTable, SoftmaxTable16
from qfunc.arithmetic.sums import SumFma, SumScaled, SumShifted
from qfunc.arithmetic.unit import Coding, FusedOp, Inner, Operand, OpItself, UnitSpec

__all__ = [
    "AverageCodes", "AveragePool", "Bilinear", "Coding", "Computation", "Constant",
    "DequantizeSum", "DynamicProduct", "FixedBits", "FixedPoint", "FixedPointGemv", "FixedPointLanes",
    "FloatKernel", "FloatMultiplier", "FloatRequantize", "FusedOp", "GluTable", "HardSwish16", "Inner",
    "NormFixed", "OpItself", "Operand", "ProductLanes", "QuantizeInt32", "QuantizeLanes", "QuantizeRange", "Real",
    "Shift", "Size", "SoftmaxFixed", "SoftmaxFloat", "SoftmaxTable", "SoftmaxTable16", "SumFma", "SumScaled",
    "SumShifted", "Sums", "UnitSpec", "bounded", "products",
]  # fmt: skip

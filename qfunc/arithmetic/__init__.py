"""What an arithmetic of your own is made of: the unit that it gets, and the computation that it returns.

See `specs.Arithmetic` for its two methods.
"""

from qfunc.arithmetic.averages import AverageCodes, AveragePool
from qfunc.arithmetic.computation import Computation, Constant, Real, Size, bounded
from qfunc.arithmetic.conversions import DequantizeSum, QuantizeInt32, QuantizeLanes, QuantizeRange
from qfunc.arithmetic.curves import GluTable, HardSwish16
from qfunc.arithmetic.fixed_point import FixedBits, FixedPoint, FixedPointGemv, FixedPointLanes, ProductLanes
from qfunc.arithmetic.float_kernel import FloatKernel
from qfunc.arithmetic.float_multiplier import FloatMultiplier
from qfunc.arithmetic.float_requantize import FloatRequantize
from qfunc.arithmetic.images import Bilinear
from qfunc.arithmetic.products import Sums, products
from qfunc.arithmetic.shift import Shift
from qfunc.arithmetic.softmaxes import SoftmaxFixed, SoftmaxFloat, SoftmaxTable, SoftmaxTable16
from qfunc.arithmetic.stages import KPU, Stages
from qfunc.arithmetic.sums import SumFma, SumScaled, SumShifted
from qfunc.arithmetic.unit import Coding, FusedOp, Operand, OpItself, UnitSpec

__all__ = [
    "AverageCodes", "AveragePool", "Bilinear", "Coding", "Computation", "Constant", "DequantizeSum", "FixedBits",
    "FixedPoint", "FixedPointGemv", "FixedPointLanes", "FloatKernel", "FloatMultiplier", "FloatRequantize", "FusedOp",
    "GluTable", "HardSwish16", "KPU", "OpItself", "Operand", "ProductLanes", "QuantizeInt32", "QuantizeLanes",
    "QuantizeRange", "Real", "Shift", "Size", "SoftmaxFixed", "SoftmaxFloat", "SoftmaxTable", "SoftmaxTable16", "Stages",
    "SumFma", "SumScaled", "SumShifted", "Sums", "UnitSpec", "bounded", "products",
]  # fmt: skip

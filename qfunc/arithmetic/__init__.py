"""What an arithmetic of your own is made of: the unit that it gets, and the computation that it returns.

See `specs.Arithmetic` for its two methods.
"""

from qfunc.arithmetic.computation import Computation, Constant, Real, Size, bounded
from qfunc.arithmetic.fixed_point import FixedBits, FixedPoint, FixedPointGemv, FixedPointLanes, ProductLanes
from qfunc.arithmetic.float_multiplier import FloatMultiplier
from qfunc.arithmetic.float_requantize import FloatRequantize
from qfunc.arithmetic.products import Sums, products
from qfunc.arithmetic.shift import Shift
from qfunc.arithmetic.stages import KPU, Stages
from qfunc.arithmetic.sums import SumFma, SumShifted
from qfunc.arithmetic.unit import Coding, FusedOp, Operand, UnitSpec

__all__ = [
    "FixedBits",
    "FixedPoint",
    "FixedPointGemv",
    "FixedPointLanes",
    "ProductLanes",
    "FloatMultiplier",
    "FloatRequantize",
    "Shift",
    "KPU",
    "Stages",
    "SumFma",
    "SumShifted",
    "Coding",
    "Computation",
    "Constant",
    "FusedOp",
    "Operand",
    "Real",
    "Size",
    "Sums",
    "UnitSpec",
    "bounded",
    "products",
]

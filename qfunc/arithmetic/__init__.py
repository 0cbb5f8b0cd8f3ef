"""What an arithmetic of your own is made of: the unit that it gets, and the computation that it returns.

See `specs.Arithmetic` for its two methods.
"""

from qfunc.arithmetic.computation import Computation, Constant, Real, Size, bounded
from qfunc.arithmetic.products import Sums, products
from qfunc.arithmetic.unit import Coding, FusedOp, Operand, UnitSpec

__all__ = ["Coding", "Computation", "Constant", "FusedOp", "Operand", "Real", "Size", "Sums", "UnitSpec", "bounded", "products"]

"""Libraries of float functions: the values of `specs.FloatKernel.function`."""

from qfunc.numerics.elementary.eigen import Eigen
from qfunc.numerics.kernels.integer import GeluErfc
from qfunc.numerics.kernels.mlas import Mlas, MlasLogistic
from qfunc.numerics.kernels.ncnn import Ncnn
from qfunc.numerics.kernels.pooling import WindowSum
from qfunc.numerics.kernels.xnnpack import Xnnpack
from qfunc.numerics.kernels.xnnpack_float import XnnpackFloat
from qfunc.numerics.sums.float_products import MlasBlocks

__all__ = ["Eigen", "GeluErfc", "Mlas", "MlasBlocks", "MlasLogistic", "Ncnn", "WindowSum", "Xnnpack", "XnnpackFloat"]

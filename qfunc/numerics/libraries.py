"""Libraries of float functions of several runtimes: values of `specs.FloatKernel.function`."""

from qfunc.numerics.kernels.integer import GeluErfc
from qfunc.numerics.kernels.pooling import WindowSum

__all__ = ["GeluErfc", "WindowSum"]

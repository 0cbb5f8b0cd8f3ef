"""Rounding by the Hessian of each layer's error."""

from qfunc.reconstruction.hessian.compensate import gptq

__all__ = ["gptq"]

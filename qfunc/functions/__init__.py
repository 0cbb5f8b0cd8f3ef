"""Quantize functions: what value the hardware will hold, and which gradient training sees."""

from qfunc.functions.fixed import Fixed

__all__ = ["Fixed"]

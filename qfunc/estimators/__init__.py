"""Estimators of qparams: frozen values whose statistics are an explicit state."""

from qfunc.estimators.ema import Ema
from qfunc.estimators.minmax import MinMax

__all__ = ["Ema", "MinMax"]

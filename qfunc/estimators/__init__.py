"""Estimators of qparams: frozen values whose statistics are an explicit state."""

from qfunc.estimators.ema import Ema
from qfunc.estimators.lsq_init import LsqInit
from qfunc.estimators.lsq_plus_init import LsqPlusInit
from qfunc.estimators.minmax import MinMax
from qfunc.estimators.std_clip import StdClip

__all__ = ["Ema", "LsqInit", "LsqPlusInit", "MinMax", "StdClip"]

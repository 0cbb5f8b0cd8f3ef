"""Estimators of qparams: frozen values that keep their statistics in an explicit state."""

from qfunc.estimators.ema import Ema
from qfunc.estimators.entropy import Entropy
from qfunc.estimators.lsq_init import LsqInit
from qfunc.estimators.lsq_plus_init import LsqPlusInit
from qfunc.estimators.minmax import MinMax
from qfunc.estimators.mse import Mse
from qfunc.estimators.ort_entropy import OrtEntropy
from qfunc.estimators.pot_mode import PotMode
from qfunc.estimators.power_of_two import PowerOfTwo
from qfunc.estimators.quantile import Percentile, Quantile
from qfunc.estimators.std_clip import StdClip

__all__ = [
    "Ema", "Entropy", "LsqInit", "LsqPlusInit", "MinMax", "Mse", "OrtEntropy", "Percentile", "PotMode", "PowerOfTwo",
    "Quantile", "StdClip",
]  # fmt: skip


def __dir__() -> list[str]:
    return sorted(__all__)

"""Quantize functions: the value that the hardware represents, and the gradient of that value in training."""

from qfunc.functions.adaround import AdaRound
from qfunc.functions.compensation import Compensation
from qfunc.functions.dorefa import DoReFa
from qfunc.functions.dsq import Dsq
from qfunc.functions.fixed import Fixed
from qfunc.functions.ggml_blocks import GgmlBlocks
from qfunc.functions.lsq import Lsq
from qfunc.functions.lsq_plus import LsqPlus
from qfunc.functions.nnie_log import NnieLog
from qfunc.functions.own_gradient import WithGradient, with_gradient
from qfunc.functions.pact import Pact
from qfunc.functions.qdrop import QDrop
from qfunc.functions.stochastic import Stochastic
from qfunc.functions.tqt import Tqt

__all__ = [
    "AdaRound", "Compensation", "DoReFa", "Dsq", "Fixed", "GgmlBlocks", "Lsq", "LsqPlus", "NnieLog", "Pact", "QDrop",
    "Stochastic", "Tqt",
    "WithGradient", "with_gradient",
]  # fmt: skip


def __dir__() -> list[str]:
    return sorted(__all__)

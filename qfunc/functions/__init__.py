"""Quantize functions: what value the hardware will hold, and which gradient training sees."""

from qfunc.functions.adaround import AdaRound
from qfunc.functions.fixed import Fixed
from qfunc.functions.nnie_log import NnieLog
from qfunc.functions.qdrop import QDrop
from qfunc.functions.stochastic import Stochastic

__all__ = ["AdaRound", "Fixed", "NnieLog", "QDrop", "Stochastic"]

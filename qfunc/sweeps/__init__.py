"""One model on many targets: accuracy, size and time of each, in one table."""

from qfunc.sweeps.report import Sweep, SweepRow
from qfunc.sweeps.sweep import sweep

__all__ = ["Sweep", "SweepRow", "sweep"]

"""Reconstruction of weight rounding: methods, units and losses.

>>> import qfunc
>>> from qfunc.reconstruction import Blocks, SquaredError
>>> qfunc.brecq(unit=Blocks(modules=("layer1.*",)), loss=SquaredError()).unit.modules
('layer1.*',)
"""

from qfunc.reconstruction.losses import Fisher, SquaredError
from qfunc.reconstruction.methods import Method, Regulariser, mqbench
from qfunc.reconstruction.partition import Blocks, Layers, ReconstructionUnit, units

__all__ = ["Blocks", "Fisher", "Layers", "Method", "Regulariser", "SquaredError", "ReconstructionUnit", "mqbench", "units"]


def __dir__() -> list[str]:
    return sorted(__all__)

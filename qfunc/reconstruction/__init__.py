"""Reconstruction of weight rounding: methods, units and losses.

>>> import qfunc
>>> from qfunc.reconstruction import Blocks, SquaredError
>>> qfunc.brecq(unit=Blocks(modules=("layer1.*",)), loss=SquaredError()).unit.modules
('layer1.*',)
"""

from qfunc.reconstruction.losses import Fisher, SquaredError
from qfunc.reconstruction.methods import Method, Regulariser, mqbench
from qfunc.reconstruction.partition import Blocks, Layers, ReconstructionUnit, units
from qfunc.reconstruction.reconstruct import reconstructed

__all__ = [
    "Blocks", "Fisher", "Layers", "Method", "ReconstructionUnit", "Regulariser", "SquaredError", "mqbench", "reconstructed",
    "units",
]  # fmt: skip


def __dir__() -> list[str]:
    return sorted(__all__)

"""The rows of ptq.py: method and bit widths, with MQBench's results for the same network, data and bits.

MQBench ran with one seed, one thread, and 1,000 iterations per unit of 100 images each, starting from least-square-error
scales.  Its seconds include the calibration.
"""

from __future__ import annotations

from collections.abc import Mapping

from attrs import field, frozen

import qfunc
from qfunc.estimators import Mse
from qfunc.reconstruction import Fisher, Method
from qfunc.specs import Target, edit

BITS = ("W8A8", "W4A8", "W4A4", "W3A3", "W2A4")
FEW = ("W4A4", "W3A3", "W2A4", "W2A2")
LAYERS, BLOCKS = 20, 11
"""Number of units for the layer-wise method, and for the block-wise methods."""

Figures = Mapping[str, tuple[float, float | None]]


@frozen
class Row:
    """A calibration, a reconstruction (None: round to nearest), and MQBench's accuracy and seconds by bits."""

    name: str
    group: str
    least_squares: bool
    method: Method | None
    bits: tuple[str, ...]
    mqbench: Figures = field(factory=dict, eq=False)

    def target(self, target: Target) -> Target:
        """Return the target with the row's estimators: minima and maxima, or least squared error."""
        if not self.least_squares:
            return target
        return edit.pipe(target, edit.weights(estimator=Mse()), edit.activations(estimator=Mse()))

    def units(self) -> int:
        """Return the number of units of the network under this method."""
        return LAYERS if self.method is not None and self.method.unit == qfunc.adaround().unit else BLOCKS


ADAROUND: Figures = {"W4A4": (86.38, 849), "W2A4": (78.82, 779)}
BRECQ: Figures = {"W4A4": (86.62, 877), "W2A4": (77.16, 846)}
QDROP: Figures = {"W4A4": (86.42, 1397), "W2A4": (76.92, 1372)}

NEAREST = (
    Row("nearest, min/max", "nearest", False, None, BITS,
        {"W8A8": (87.30, None), "W4A8": (86.18, None), "W4A4": (83.10, None), "W3A3": (53.96, None), "W2A4": (13.16, None)}),
    Row("nearest, MSE", "nearest", True, None, BITS,
        {"W8A8": (87.24, 139), "W4A8": (84.60, 139), "W4A4": (83.42, 139), "W3A3": (46.04, 139), "W2A4": (14.98, 139)}),
)  # fmt: skip

# v moves by up to 2.4 in steps of about the rate.  With a tenth of the papers' iterations, the rate is ten times theirs.
SHORT = 0.01

EACH = (
    Row("AdaRound", "1,000 iterations a unit", True, qfunc.adaround(iterations=1000, rounding_lr=SHORT), FEW, ADAROUND),
    Row("BRECQ", "1,000 iterations a unit", True, qfunc.brecq(iterations=1000, rounding_lr=SHORT), FEW, BRECQ),
    Row("QDrop", "1,000 iterations a unit", True, qfunc.qdrop(iterations=1000, rounding_lr=SHORT), FEW, QDROP),
)
SAME = (
    Row("AdaRound, same total as the blocks", "equal total", True,
        qfunc.adaround(iterations=1000 * BLOCKS // LAYERS, rounding_lr=SHORT * LAYERS / BLOCKS), FEW),
)  # fmt: skip
PAPERS = (
    Row("AdaRound, papers' settings", "full", True, qfunc.adaround(iterations=20_000), FEW),
    Row(
        "BRECQ, weighted by the Fisher information",
        "full",
        True,
        qfunc.brecq(iterations=1000, rounding_lr=SHORT, loss=Fisher()),
        FEW,
    ),
    Row("BRECQ, papers' settings", "full", True, qfunc.brecq(), FEW),
    Row("QDrop, papers' settings", "full", True, qfunc.qdrop(), FEW),
)

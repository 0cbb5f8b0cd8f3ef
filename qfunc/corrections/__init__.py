"""Corrections: transforms of a float model or of biases that reduce the error of quantization.

Corrections of the float model scale channels down in one op and up in the next.  `equalization_graph.py` finds these ops:
ops with weights (`scalable_ops.py`) or norms (`scalable_norms.py`), joined by ops that commute with scaling
(`channel_scaling.py`).  Corrections of biases use the means of BatchNorms (`correct_bias_analytic.py`, `expected_means.py`)
or of batches (`correct_bias.py`).  `rotation` rotates the channels of transformers,
`migration` scales them.

The module `qfunc` has the usual ones, too: `awq`, `correct_bias`, `correct_bias_analytic`, `equalize`, `rotate` and
`smooth_quant`.
"""

from qfunc.corrections.absorb import absorb_high_bias
from qfunc.corrections.channel_pairs import equalization_pairs
from qfunc.corrections.correct_bias import correct_bias
from qfunc.corrections.correct_bias_analytic import correct_bias_analytic
from qfunc.corrections.equalize import equalize
from qfunc.corrections.fit_accumulators import fit_accumulators
from qfunc.corrections.migration.awq import awq
from qfunc.corrections.migration.smooth import smooth_quant
from qfunc.corrections.relu6 import replace_relu6
from qfunc.corrections.rotation.rotate import rotate

__all__ = [
    "absorb_high_bias", "awq", "correct_bias", "correct_bias_analytic", "equalization_pairs", "equalize", "fit_accumulators",
    "replace_relu6", "rotate", "smooth_quant",
]  # fmt: skip


def __dir__() -> list[str]:
    return sorted(__all__)

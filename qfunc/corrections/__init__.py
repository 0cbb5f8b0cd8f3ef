"""Corrections: transforms of a float model or of biases that reduce the error of quantization.

Corrections of the float model scale channels down in one op and up in the next.  `equalization_graph.py` finds these ops:
ops with weights (`scalable_ops.py`) or norms (`scalable_norms.py`), joined by ops that commute with scaling
(`channel_scaling.py`).  Corrections of biases use the means of BatchNorms (`correct_bias_analytic.py`, `expected_means.py`)
or of batches (`correct_bias.py`).
"""

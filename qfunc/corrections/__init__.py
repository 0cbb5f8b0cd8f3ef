"""Corrections: transforms of a float model, or of its biases, after which it quantizes better.

Those of the float model scale channels up in one op and down in the next: `links.py` finds by the graph which ops those are,
between the ends of `ends.py` (ops with weights) and `gains.py` (norms), behind the ops of `commuting.py`.  Those of biases are
`correct_bias_analytic.py`, by the means of `expected.py`, and `corrections/correct_bias.py`, by those of batches.
"""

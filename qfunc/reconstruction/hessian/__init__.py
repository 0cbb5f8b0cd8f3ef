"""Rounding by the Hessian of the error of each layer's outputs (GPTQ).

`compensate.py` is the transform. `weights.py` finds the weights, `streams.py` runs the network from one layer to the next,
`solver.py` rounds, and `replace_functions.py` stores the rounding in the quantizers.
"""

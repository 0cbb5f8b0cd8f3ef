"""Rounding by the Hessian of the error of each layer's outputs (GPTQ).

`compensate.py` is the transform. `weights.py` finds the weights, `streams.py` runs the network from one layer to the next,
`moments.py` sums the Hessian, and `solver.py` rounds.
"""

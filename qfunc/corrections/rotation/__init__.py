"""Rotations of transformers by Hadamard matrices, folded into their weights.

`rotate.py` is the transform. `streams.py` and `heads.py` find what can be rotated, `hadamard.py` has the matrices.
"""

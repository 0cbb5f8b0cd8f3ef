"""Rotations of the residual stream and of the values of attention heads, folded into the weights around them."""

from qfunc.corrections.rotation.fold import rotate

__all__ = ["rotate"]

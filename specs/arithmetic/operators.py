"""Arithmetic of single operators: average pools, softmax, curves, resizing.

Each value is one runtime's own form, implemented once.  Notation: x the input codes minus their zero point, s_x and s_y
the scales, z the output's zero point, R the rounding.
"""

from __future__ import annotations

from attrs import frozen

from qfunc.specs._check import ROUNDINGS, one_of
from qfunc.specs._values import readable

_rounding = one_of(ROUNDINGS)


@readable
@frozen
class NormFixed:
    """A layer, group, instance or RMS norm in int32: y = R(x̂ w + b) + z, x̂ = c / sqrt(A + E), for the N codes of a statistic.

    c = x - round(mean(x)) and r = sum(c); an RMS norm has c = x and r = 0.  A + E = sum(c^2) - r^2 / N + N eps / s_x^2, with as
    many fractional bits as 31 bits leave.  Its inverse root is read from a table by 8 bits and refined by one step of Newton's
    method, to within 2^-14 of itself.  c - r / N and the products have 31 bits, each rounded half up, and y is rounded once.

    Source: qfunc; TOSA 1.0: REDUCE_SUM, MUL, CLZ, TABLE, RESCALE.

    >>> NormFixed()
    NormFixed()
    """

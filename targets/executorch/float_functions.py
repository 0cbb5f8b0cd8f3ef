"""XNNPACK's ops of real tensors."""

from __future__ import annotations

from collections.abc import Callable

from attrs import field, frozen
from torch import Tensor

from qfunc.specs._check import instance_of
from qfunc.specs._values import readable
from qfunc.targets.executorch import elementary as curves
from qfunc.targets.executorch import logistic as logistics
from qfunc.targets.executorch import rows

_ON_AVX512 = {**curves.FUNCTIONS, **logistics.FUNCTIONS, **rows.FUNCTIONS}
_ON_AVX2 = {**_ON_AVX512, **logistics.FUNCTIONS_ON_AVX2, **rows.FUNCTIONS_ON_AVX2}


@readable
@frozen
class XnnpackFloat:
    """XNNPACK's softmax, norms, curves and products of reals, with AVX-512, or without it: `avx2`.

    >>> XnnpackFloat().form("softmax").__name__, XnnpackFloat(avx2=True).form("softmax").__name__
    ('softmax', 'softmax_in_eight_lanes')
    """

    avx2: bool = field(default=False, kw_only=True, validator=instance_of(bool))

    def form(self, kind: str) -> Callable[..., Tensor] | None:
        """Return the function of a kind of op, or None."""
        return (_ON_AVX2 if self.avx2 else _ON_AVX512).get(kind)

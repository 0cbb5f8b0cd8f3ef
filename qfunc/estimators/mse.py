"""Mse: the range with the smallest quantization error."""

from __future__ import annotations

import torch
from attrs import field, frozen
from torch import Tensor

from qfunc.errors import SpecError
from qfunc.estimators.error import Error, error_of
from qfunc.estimators.minmax import Range
from qfunc.estimators.quantile import BINS
from qfunc.estimators.sketch import Sketch, clipped, empty, merged, nothing, updated
from qfunc.numerics.qparams import Affine, from_range
from qfunc.specs import Scheme


def _power(instance: object, attribute: object, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 16:
        raise SpecError(where="Mse.p", found=repr(value), wanted="a number in (0, 16]", do="Give 2.0 or another norm.")


def _candidates(instance: object, attribute: object, value: object) -> None:
    if type(value) is not int or not 1 <= value <= 10000:
        wanted = "an int in [1, 10000]"
        raise SpecError(where="Mse.candidates", found=repr(value), wanted=wanted, do="Give such a number.")


def _flag(instance: object, attribute: object, value: object) -> None:
    if not isinstance(value, bool):
        raise SpecError(where="Mse.apart", found=repr(value), wanted="True or False", do="Give one of them.")


def _factor(instance: object, attribute: object, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 1 <= value <= 2:
        raise SpecError(where="Mse.widest", found=repr(value), wanted="a number in [1, 2]", do="Give 1.0, 1.5 or 2.0.")


@frozen
class Mse:
    """The range (f low, f high), f = w - (w - 0.05) i/n for i < n, at which sum |x_hat - x|^p is smallest.

    x_hat is x quantized and dequantized with the qparams of that range, so only scales that the hardware
    supports are compared.  `apart` then searches each end of an affine scheme again, with the other end fixed.

    With w = 1 no range is wider than the data.  w = 1.5 is for blocks of floats of few bits, whose largest value may be
    nearer to the second largest code (E2M1: 4 instead of 6), and w = 2 for schemes whose scale for the range itself clips:
    those of OCP MX, whose next power of two does not.

    Up to 8192 elements per block, the sum is over the elements.  Beyond, it is over bins of a width of at most
    1/128 of their values, in which x is assumed uniform: bins x n operations, for any number of elements.

    Args:
        p: The norm; 2.4 is usual for low-bit weights.
        candidates: n; 95 gives MQBench's steps of 1 %.
        apart: If True, the two ends of an affine range may shrink by different factors.
        widest: w, from 1 to 2.
    Raises:
        SpecError: an argument outside its range.
        CalibrationError: by `calibrate`, if a value is NaN or infinite.
    Source: MQBench, mqbench/observer.py, MSEObserver; PPQ, TorchMSEObserver (both ends); Cook et al., arXiv:2512.02010 (4
        or 6 in NVFP4).

    >>> from qfunc.specs import Int
    >>> estimator, x, scheme = Mse(), torch.tensor([0.9, 1.0] * 40 + [2.0]), Scheme(Int(2))
    >>> estimator.range(estimator.update(estimator.init(scheme, x), x, scheme), scheme).high
    tensor(0.9600)
    """

    p: float = field(default=2.0, validator=_power)
    candidates: int = field(default=95, validator=_candidates)
    apart: bool = field(default=True, validator=_flag)
    widest: float = field(default=1.0, validator=_factor)

    def init(self, scheme: Scheme, like: Tensor) -> Sketch:
        """Return the empty state: the identity of merge."""
        return empty(scheme, like)

    def update(self, state: Sketch, x: Tensor, scheme: Scheme) -> Sketch:
        """Return the statistics after x; an empty x changes nothing."""
        return updated(state, x, scheme, BINS)

    def merge(self, a: Sketch, b: Sketch) -> Sketch:
        """Return the statistics of the data of a and b."""
        return merged(a, b, BINS)

    def range(self, state: Sketch, scheme: Scheme) -> Range:
        """Return the best candidate range in float32; of equally good ones, the widest."""
        if nothing(state):
            return Range(state.low, state.high)
        error = error_of(state, BINS, scheme, self.p)
        shares = torch.arange(self.candidates, dtype=torch.float64, device=state.low.device) / self.candidates
        factors = self.widest - (self.widest - 0.05) * shares
        steps = factors.view(-1, *[1] * state.low.ndim)
        all_low, all_high = (steps * state.low.clamp(max=0)).float(), (steps * state.high.clamp(min=0)).float()
        low, high = _best(error, all_low, all_high)
        if self.apart and scheme.zero_point is not None:
            low, _ = _best(error, all_low, high.expand_as(all_high))
            _, high = _best(error, low.expand_as(all_low), all_high)
        return clipped(state, low, high, widest=self.widest)

    def finalize(self, state: Sketch, scheme: Scheme) -> Affine:
        """Return the qparams of the range."""
        return from_range(*self.range(state, scheme), scheme)


def _best(error: Error, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    # Candidates along axis 0, the widest first.
    cost = error(low, high)
    order = torch.arange(len(cost), device=cost.device).view(-1, *[1] * (cost.ndim - 1))
    first = torch.where(cost == cost.amin(0), order, len(cost) - 1).amin(0, keepdim=True)
    return low.gather(0, first).squeeze(0), high.gather(0, first).squeeze(0)

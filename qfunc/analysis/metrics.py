"""Agreement of two tensors: sums over batches, and SQNR, cosine and mean squared error computed from them."""

from __future__ import annotations

import math

import torch
from attrs import frozen
from torch import Tensor


@frozen
class Agreement:
    """Float values x against simulated values x_hat, over every element of every batch.

    Attributes:
        elements: The number of elements.
        signal: sum x^2.
        noise: sum (x_hat - x)^2.
        power: sum x_hat^2.
        product: sum x x_hat.
        largest: max |x_hat - x|.

    >>> Agreement(2, signal=200.0, noise=2.0, power=202.0, product=200.0, largest=1.0).sqnr
    20.0
    """

    elements: int
    signal: float
    noise: float
    power: float
    product: float
    largest: float

    @property
    def sqnr(self) -> float:
        """Signal to quantization noise ratio in dB: 10 log10(signal / noise); infinite if nothing differs."""
        if math.isnan(self.noise) or math.isnan(self.signal):
            return math.nan
        if self.noise == 0:
            return math.inf
        return -math.inf if self.signal == 0 or math.isinf(self.noise) else 10 * math.log10(self.signal / self.noise)

    @property
    def cosine(self) -> float:
        """product / sqrt(signal power); 1 if nothing differs, 0 if only one side is zero."""
        if self.noise == 0:
            return 1.0
        norms = math.sqrt(self.signal) * math.sqrt(self.power)
        return max(-1.0, min(1.0, self.product / norms)) if norms else 0.0

    @property
    def mse(self) -> float:
        """noise / elements."""
        return self.noise / self.elements if self.elements else 0.0


class AgreementRow:
    """The base class of rows of reports: the figures of the row's `agreement`."""

    __slots__ = ()
    agreement: Agreement

    @property
    def sqnr(self) -> float:
        """Signal to quantization noise ratio in dB; infinite if nothing differs."""
        return self.agreement.sqnr

    @property
    def cosine(self) -> float:
        """Cosine of the angle between float and simulated values."""
        return self.agreement.cosine

    @property
    def mse(self) -> float:
        """Mean squared error."""
        return self.agreement.mse


def sqnr_nan_lowest(row: AgreementRow) -> float:
    """Return the SQNR of a row as a key to sort by; NaN counts as -inf."""
    return -math.inf if math.isnan(row.sqnr) else row.sqnr


class Sums:
    """The running sums of one comparison, in fixed memory on the device of the first tensors."""

    def __init__(self) -> None:
        self.elements = 0
        self.totals: Tensor | None = None

    def add(self, x: Tensor, x_hat: Tensor) -> None:
        """Add two tensors of the same shape, in float64.  Equal infinities count as equal zeros."""
        if not x.numel():
            return
        totals = _sums(x.double().flatten(), x_hat.double().flatten())
        if not bool(totals.isfinite().all()):
            equal_infinities = (x == x_hat) & x.isinf()
            totals = _sums(*(torch.where(equal_infinities, 0.0, v.double()).flatten() for v in (x, x_hat)))
        self.join(x.numel(), totals)

    def join(self, elements: int, totals: Tensor | None) -> None:
        """Add the sums of other elements: `elements` and `totals` of another `Sums`."""
        self.elements += elements
        if self.totals is None or totals is None:
            self.totals = totals if self.totals is None else self.totals
        else:
            self.totals = torch.cat([self.totals[:4] + totals[:4], torch.maximum(self.totals[4:], totals[4:])])

    def state(self) -> tuple[int, Tensor | None]:
        """Return the arguments of `join`."""
        return self.elements, self.totals

    def agreement(self) -> Agreement:
        """Return the sums so far."""
        signal, noise, power, product, largest = (0.0,) * 5 if self.totals is None else self.totals.tolist()
        return Agreement(self.elements, signal, noise, power, product, largest)


def _sums(x: Tensor, x_hat: Tensor) -> Tensor:
    difference = x_hat - x
    dots = (torch.dot(x, x), torch.dot(difference, difference), torch.dot(x_hat, x_hat), torch.dot(x, x_hat))
    return torch.stack([*dots, difference.abs_().max()])


def decibels(value: float | None) -> str:
    """Return a figure in dB for tables.

    >>> [decibels(v) for v in (31.2549, float("inf"), None)]
    ['31.25', 'inf', '']
    """
    return "" if value is None else f"{value:.2f}"

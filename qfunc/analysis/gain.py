"""What a deployed file is worth: the error of its outputs, its latency and its size, beside the float network and its file."""

from __future__ import annotations

import math
from collections.abc import Sequence

from attrs import frozen
from torch import Tensor

from qfunc.analysis.metrics import Agreement, AgreementRow, Sums, sqnr_nan_lowest

LOW_SQNR = 20.0
"""The SQNR in dB below which a report names the tensors that lose most."""
LOST_BY_KERNELS = 6.0
"""The dB by which the runtime is worse than the simulation where its kernels, not the quantizers, are what a report names."""
SLOWER = 1.05
"""The ratio to the float file above which a report says that the file is slower."""


@frozen
class OutputError(AgreementRow):
    """One output of the runtime against the float network, over all batches.

    Attributes:
        name: "output 0".
        agreement: The sums, from which `sqnr`, `cosine` and `mse` are computed.
        top1: The share of rows whose largest entry is at the same place; None for outputs that are not rows of scores.
        constant: The number of channels in which the runtime returns one value although the float network does not.
        channels: The number of channels that vary in the float network; 1 for outputs without a channel axis.
    """

    name: str
    agreement: Agreement
    top1: float | None = None
    constant: int = 0
    channels: int = 1


@frozen
class Latency:
    """The time of the file over the time of the float file, in the same runtime.

    Attributes:
        ratio: The least time of one example over the least time of the float file, in turns; None if it is not known.
        spread: How far the ratio varies over the turns, as a share of it.
        threads: The threads of the runtime; 0 if it chooses the number itself.
        why: The reason why there is no ratio, or "".

    >>> print(Latency(0.5, 0.03, 1))
    0.50 x the latency of the float file (1 thread, spread 3 %)
    >>> print(Latency(why="the runtime is a function"))
    no latency: the runtime is a function
    """

    ratio: float | None = None
    spread: float | None = None
    threads: int = 0
    why: str = ""

    @property
    def slower(self) -> bool:
        """True if the file takes more than 1.05 times as long as the float file."""
        return self.ratio is not None and self.ratio > SLOWER

    def __str__(self) -> str:
        """Return one clause."""
        if self.ratio is None:
            return f"no latency: {self.why}"
        threads = f"{self.threads} thread{'s' * (self.threads > 1)}" if self.threads else "threads as the runtime chooses"
        spread = f"spread {100 * (self.spread or 0.0):.0f} %"
        return f"{self.ratio:.2f} x the latency of the float file ({threads}, {spread})"


@frozen
class UnitCost:
    """The time of one unit in a file and in the float file, by the runtime's profile.

    Attributes:
        unit: Its path.
        seconds: Its time in the file, with the conversions of its result.
        plain: Its time in the float file.

    >>> print(UnitCost("conv", 1.6e-4, 5e-5))
    conv (160 us, 50 us in float)
    """

    unit: str
    seconds: float
    plain: float

    def __str__(self) -> str:
        """Return one clause, in microseconds."""
        return f"{self.unit} ({self.seconds * 1e6:.3g} us, {self.plain * 1e6:.3g} us in float)"


@frozen
class Gain:
    """What a file is worth beside the float network and its file.

    Attributes:
        outputs: The errors of the outputs of floats.
        losses: The quantizers that lose most, with the SQNR of each alone in dB, if the lowest SQNR is below 20 dB.
        latency: The latency beside the float file.
        size_ratio: The bytes of the file over the bytes of the float file; None if there is no float file.
        simulated: The lowest SQNR of the simulation's outputs in the last batch, if the lowest of the runtime is below 20 dB.
        costs: The units that cost most beyond their time in float, if the file is slower than the float file and the runtime
            has a profile.
    """

    outputs: tuple[OutputError, ...] = ()
    losses: tuple[tuple[str, float], ...] = ()
    latency: Latency = Latency(why="it was not measured")
    size_ratio: float | None = None
    simulated: float | None = None
    costs: tuple[UnitCost, ...] = ()

    @property
    def sqnr(self) -> float | None:
        """The lowest SQNR of the outputs, in dB; None without outputs of floats."""
        return least_sqnr(self.outputs)

    @property
    def top1(self) -> float | None:
        """The lowest agreement of the largest entries of rows of scores; None without such outputs."""
        return min((o.top1 for o in self.outputs if o.top1 is not None), default=None)

    def __str__(self) -> str:
        """Return one line."""
        clauses = [] if self.sqnr is None else [f"{decibels_text(self.sqnr)} to the float network"]
        scored = [o for o in self.outputs if o.top1 is not None]
        if self.top1 is not None:
            worst = next(o.name for o in scored if o.top1 == self.top1)
            clauses.append(f"top-1 {f'of {worst} ' if len(scored) > 1 else ''}agrees in {100 * self.top1:.4g} %")
        size = [] if self.size_ratio is None else [f"{self.size_ratio:.2f} x its size"]
        return "; ".join([*clauses, str(self.latency), *size])

    @property
    def remarks(self) -> tuple[str, ...]:
        """A line for each loss that a user would want to know: a low SQNR, constant outputs, a file slower than float."""
        found = []
        if self.sqnr is not None and self.simulated is not None and self.simulated > self.sqnr + LOST_BY_KERNELS:
            found.append(
                f"below {LOW_SQNR:g} dB, where the simulation has {decibels_text(self.simulated)}: the runtime's kernels lose "
                "the rest; if their sums saturate on this processor, edit.weights(bits=7) keeps them exact"
            )
        elif self.sqnr is not None and self.sqnr < LOW_SQNR:
            named = ", ".join(f"{tensor} ({sqnr:.1f} dB)" for tensor, sqnr in self.losses)
            found.append(
                f"below {LOW_SQNR:g} dB: the quantizers that lose most are {named or 'not known'}; "
                "qfunc.diagnose(...) ranks the causes and their cures"
            )
        for output in self.outputs:
            if output.constant:
                channels = f"{output.constant} of {output.channels} channels" if output.channels > 1 else "the whole output"
                found.append(f"{output.name}: one value in {channels}, where the float network has several")
        if self.latency.slower:
            named = f"the units that cost most are {', '.join(map(str, self.costs))}; " if self.costs else ""
            cure = "qfunc.measure_placement(target, inputs)(model) finds what is slower on integers"
            found.append(f"slower than the float file: {named}{cure}")
        return tuple(found)


class OutputErrors:
    """The running sums of each output, over batches."""

    def __init__(self) -> None:
        self.outputs: list[_Running] = []

    def add(self, reference: Sequence[Tensor], outputs: Sequence[Tensor]) -> None:
        """Add the outputs of one batch; outputs that are not of floats are left out."""
        self.outputs = self.outputs or [_Running(index) for index in range(len(outputs))]
        for running, x, y in zip(self.outputs, reference, outputs, strict=True):
            if x.is_floating_point():
                running.add(x.detach(), y.detach().to(x.dtype))

    def rows(self) -> tuple[OutputError, ...]:
        """Return the outputs of floats."""
        return tuple(r.row() for r in self.outputs if r.sums.elements)


def least_sqnr(rows: Sequence[OutputError]) -> float | None:
    """Return the lowest SQNR, or None without outputs."""
    return min(map(sqnr_nan_lowest, rows), default=None)


class _Running:
    def __init__(self, index: int) -> None:
        self.name, self.sums = f"output {index}", Sums()
        self.alike = self.scored = 0
        self.real: Ends | None = None
        self.run: Ends | None = None

    def add(self, x: Tensor, y: Tensor) -> None:
        self.sums.add(x, y)
        if x.ndim == 2 and x.shape[1] > 1:
            self.scored += len(x)
            self.alike += int((x.argmax(1) == y.argmax(1)).sum())
        if x.numel():
            self.real, self.run = _joined(self.real, x), _joined(self.run, y)

    def row(self) -> OutputError:
        top1 = self.alike / self.scored if self.scored else None
        if self.real is None or self.run is None:
            return OutputError(self.name, self.sums.agreement(), top1)
        varies, constant = self.real[1] > self.real[0], self.run[1] == self.run[0]
        return OutputError(self.name, self.sums.agreement(), top1, int((varies & constant).sum()), int(varies.sum()))


Ends = tuple[Tensor, Tensor]
"""The lowest and the highest value of each channel, axis 1 of images and sequences; of all values for others."""


def _joined(ends: Ends | None, value: Tensor) -> Ends:
    rows = value.transpose(0, 1).flatten(1) if value.ndim > 2 else value.reshape(1, -1)
    low, high = rows.aminmax(dim=1)
    if ends is None or ends[0].shape != low.shape:
        return low, high
    return ends[0].minimum(low), ends[1].maximum(high)


def decibels_text(value: float) -> str:
    """Return an SQNR as text.

    >>> decibels_text(31.26), decibels_text(math.inf)
    ('31.3 dB', 'equal')
    """
    return "equal" if math.isinf(value) and value > 0 else f"{value:.1f} dB"

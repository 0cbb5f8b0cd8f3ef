"""The report of `verify`: a verdict, and the figures on which it is based."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from attrs import asdict, field, frozen
from torch import Tensor

from qfunc.analysis.gain import Gain, Latency
from qfunc.analysis.integer_share import IntegerShare, percentage
from qfunc.analysis.report_format import HtmlReport, Section, page, table

_FAR = 1.0
"""The mean difference of simulation and emulation, in LSB of an output, above which a verdict names it."""

_HEAD = ("tensor", "compared", "elements", "differ", "largest, LSB")


@frozen
class Difference:
    """The first element that differs: the number of its batch, from 0, its index, and both values.

    >>> Difference(0, (1, 2), 127.0, -1.0)
    Difference(batch=0, at=(1, 2), emulated=127.0, runtime=-1.0)
    """

    batch: int
    at: tuple[int, ...]
    emulated: float
    runtime: float

    def __str__(self) -> str:
        return f"batch {self.batch}, {list(self.at)}: {self.emulated:.9g} emulated, {self.runtime:.9g} by the runtime"


class Tally:
    """Running counts of one comparison, over batches."""

    def __init__(self, name: str, kind: str) -> None:
        self.name, self.kind = name, kind
        self.elements = self.mismatches = self.calls = 0
        self.largest = self.total = 0.0
        self.first: Difference | None = None

    def add(self, a: Tensor, b: Tensor, lsb: float, batch: int | None = None) -> None:
        """Count the elements of a and b that differ, and update the largest difference in LSB; batches count from 0."""
        a, b = a.detach().double(), b.detach().double()
        difference = (a - b).abs()
        difference = torch.where((a == b) | (a.isnan() & b.isnan()), 0.0, difference)  # inf - inf is NaN
        self.elements += a.numel()
        self.mismatches += int((difference != 0).sum())
        if self.first is None and self.mismatches:
            at = tuple(int(i) for i in (difference != 0).nonzero()[0])
            self.first = Difference(self.calls if batch is None else batch, at, float(a[at]), float(b[at]))
        self.calls += 1
        if a.numel():
            difference = difference.nan_to_num(nan=torch.inf) / lsb
            self.largest = max(self.largest, float(difference.max()))
            self.total += float(difference.sum())

    def add_bounded(self, deviation: Tensor, bound: Tensor) -> None:
        """Count the elements that deviate by more than their bound, and update the largest deviation, in bounds."""
        share = torch.where((deviation == 0) | bound.isposinf(), 0.0, deviation / bound).nan_to_num(
            nan=torch.inf, posinf=torch.inf
        )
        self.elements += share.numel()
        self.mismatches += int((share > 1).sum())
        if share.numel():
            self.largest = max(self.largest, float(share.max()))
            self.total += float(share.sum())

    @property
    def mean(self) -> float:
        """The mean difference, in the same unit as the largest."""
        return self.total / max(self.elements, 1)


@frozen
class Comparison:
    """One tensor: the number of elements compared, the number that differ, and the largest difference in LSB.

    `kind`: "codes" (integer tensor, emulation against runtime), "alone" (the same or an output, with the runtime's
    own inputs for each unit, and without the differences that the bounds of float32 explain), "real" (real result of an
    integer unit), "output", "simulation" (output of the simulation against emulation), "float" (result of a float unit against
    the float64 value of its op, given the runtime's own inputs; the differences are in bounds of the float32 error instead of
    LSB).
    `exact`: the emulation must match in every bit, because no float unit computes the tensor.  `mean`: the mean difference.
    `first`: the first element that differs, as codes or as the value of an output; None if none does.
    """

    name: str
    kind: str
    elements: int
    mismatches: int
    largest_lsb: float
    exact: bool = True
    mean: float = 0.0
    first: Difference | None = None

    @property
    def within_one(self) -> bool:
        """True if no element differs by more than one code; codes times a scale are rounded to float32."""
        return self.largest_lsb <= 1 + 2**-14

    def cells(self) -> tuple[str, ...]:
        """Return the row of a table."""
        largest = f"{self.largest_lsb:.3g}" + (" bounds" if self.kind == "float" else "")
        return (self.name, self.kind, f"{self.elements:,}", f"{self.mismatches:,}", largest)


@frozen
class Report(HtmlReport):
    """The report of `verify`.

    `predicted` is the number of integer units that the target predicts.  `disagreements` are units that the runtime
    executes in integers although the target predicts float, or the reverse.  `float_units` are pairs (unit, reason).
    `scores` are pairs (float, simulation, emulation or runtime; the mean of the score passed to `verify`).
    `skipped` are integer units whose results were not compared, with the reason; `unbounded` are float units without a bound.
    `products` is the number of multiply-accumulates of one batch; `compared_products` the number whose results were compared
    bit by bit, `bounded_products` the number whose results reach a tensor that was compared with its bound instead, and
    `integer_products` the number in integer units.  `rounded` is the number of codes of integer units that differ, given
    the runtime's own inputs, within the bounds of its float32 sums.  `units_shown` is the reason why the runtime's units were
    not compared with the predicted ones, or "".  `gain` is what the file is worth beside the float network.
    """

    target: str
    runtime: str
    predicted: int
    rows: tuple[Comparison, ...] = field(repr=False)
    disagreements: tuple[str, ...] = ()
    float_units: tuple[tuple[str, str], ...] = ()
    unknown: str = ""
    incomparable: str = ""
    scores: tuple[tuple[str, float], ...] = ()
    skipped: tuple[tuple[str, str], ...] = ()
    unbounded: tuple[tuple[str, str], ...] = ()
    products: int = 0
    compared_products: int = 0
    units_shown: str = ""
    rounded: int = 0
    integer_products: int = 0
    bounded_products: int = 0
    gain: Gain = field(factory=Gain)

    @property
    def sqnr(self) -> float | None:
        """The lowest SQNR of the runtime's outputs against the float network, in dB; None without outputs of floats."""
        return self.gain.sqnr

    @property
    def top1(self) -> float | None:
        """The share of rows of scores whose largest entry the float network has at the same place; None without scores."""
        return self.gain.top1

    @property
    def latency(self) -> Latency:
        """The latency as a ratio to the float file in the same runtime."""
        return self.gain.latency

    @property
    def size_ratio(self) -> float | None:
        """The size as a ratio to the float file; None if the runtime has no float file."""
        return self.gain.size_ratio

    def of(self, kind: str) -> tuple[Comparison, ...]:
        """Return the comparisons of one kind."""
        return tuple(r for r in self.rows if r.kind == kind)

    @property
    def tensors(self) -> int:
        """The number of inner tensors compared: of codes, and real results of integer units."""
        return len(self._inner)

    @property
    def _inner(self) -> tuple[Comparison, ...]:
        return tuple(r for r in self.rows if r.kind in ("codes", "real"))

    @property
    def simulation_lsb(self) -> float:
        """The mean difference of simulation and emulation at the outputs, in LSB: the largest of all outputs."""
        return max((r.mean for r in self.of("simulation")), default=0.0)

    @property
    def elements(self) -> int:
        """The number of elements compared between emulation and runtime, in all integer tensors and the outputs."""
        return sum(r.elements for r in (*self._inner, *self.of("output")))

    @property
    def mismatches(self) -> int:
        """The number of these elements that differ."""
        return sum(r.mismatches for r in (*self._inner, *self.of("output")))

    @property
    def first(self) -> Comparison | None:
        """The first tensor, in the order of execution, that differs."""
        return next((r for r in (*self._inner, *self.of("output")) if r.mismatches), None)

    @property
    def within_bounds(self) -> bool:
        """True if the verdict is "at most k LSB at rate p, within the bounds of float32 sums"."""
        return self._explained and bool(self.rounded) and not (self._beyond or self.unknown or self.incomparable)

    @property
    def outside_float_units(self) -> bool:
        """True if elements differ, and each is within one LSB or its bound where float units allow it, else equal."""
        known = not (self._beyond or self.unknown or self.incomparable or self.rounded)
        return bool(self.mismatches and self.float_units) and self._explained and known

    @property
    def _explained(self) -> bool:
        # True if each unit, with the runtime's own inputs, has the runtime's result as exactly as the emulation knows it.
        alone = self.of("alone")
        as_planned = bool(alone) and not self.disagreements
        return as_planned and not any(r.mismatches if r.exact else not r.within_one for r in alone)

    @property
    def _beyond(self) -> Comparison | None:
        # The first tensor of a float unit that exceeds its bound.
        return next((r for r in self.of("float") if r.mismatches), None)

    @property
    def verdict(self) -> str:
        """One line: the share of the multiply-accumulates on integers, the agreement, and how far the comparison reaches.

        The share, and the multiply-accumulates that were compared within bounds or not at all, appear unless everything runs
        on integers and was compared bit by bit.  A mismatch, and codes that cannot be compared, come without them.
        "Bit-exact" appears only if some unit with multiply-accumulates runs on integers, or some unit of a model without them.
        """
        if self.unknown or self.agreement.startswith(("mismatch", "not comparable")):
            return self.agreement
        share = IntegerShare(self.integer_products, self.products)
        some = self.integer_products if self.products else self.predicted
        first = share.text if self.products else "no unit runs on integers"
        agreement = self._agreement if some else self._agreement.removeprefix(f"{self._exactly}: ")
        clauses = ([] if some and share.share == 1 else [first]) + [agreement, *self._reach, *self._far]
        return "; ".join(clauses)

    @property
    def agreement(self) -> str:
        """One line: bit-exact | bit-exact outside N float units | at most k LSB at rate p | mismatch | not comparable.

        Outside of float units it counts what is exact before what is within one LSB or its bound.
        """
        return "; ".join([self._agreement, *self._far])

    @property
    def _far(self) -> list[str]:
        far = self.simulation_lsb > _FAR and not self.unknown
        return [f"the simulation is {self.simulation_lsb:.3g} LSB off on average"] if far else []

    @property
    def _reach(self) -> list[str]:
        # The multiply-accumulates whose results were not compared bit by bit.
        rest = self.products - self.compared_products - self.bounded_products
        counts = (("compared within bounds", self.bounded_products), ("not compared", rest))
        return [f"{what}: {percentage(n, self.products)} of the multiply-accumulates" for what, n in counts if n > 0]

    @property
    def _exactly(self) -> str:
        units = f" outside {len(self.float_units)} float unit{'s' * (len(self.float_units) > 1)}"
        return f"bit-exact{units if self.mismatches else ''}"

    @property
    def _agreement(self) -> str:
        counts = f"{self.mismatches:,} of {self.elements:,} elements differ"
        largest = max((r.largest_lsb for r in (*self._inner, *self.of("output"))), default=0.0)
        rate = self.mismatches / max(self.elements, 1)
        if self.disagreements:
            return f"mismatch: the runtime's units are not the predicted ones ({self.disagreements[0]})"
        if self.unknown:
            return f"at most {largest:.3g} LSB at rate {rate:.2g}, against the simulation ({self.unknown})"
        beyond = self._beyond
        if self.mismatches == 0 and beyond is None:
            return f"bit-exact: {counts}"
        if self.incomparable:
            return f"not comparable: {self.incomparable} ({counts})"
        if beyond is not None:
            return f"mismatch: {beyond.name}, of a float unit, deviates by {beyond.largest_lsb:.3g} times its bound ({counts})"
        if self.within_bounds:
            return f"at most {largest:.3g} LSB at rate {rate:.2g}, within the bounds of float32 sums: {counts}"
        if self.outside_float_units:
            return self._outside_float_units
        first = self.first
        if largest <= 2:
            return f"at most {largest:.3g} LSB at rate {rate:.2g}: {counts}, first at {first.name if first else ''}"
        return f"mismatch: {counts}, first at {first.name if first else ''}, by {largest:.3g} LSB"

    @property
    def _outside_float_units(self) -> str:
        rows = (*self._inner, *self.of("output"))
        exact, bounded = (sum(r.elements for r in rows if r.exact is wanted) for wanted in (True, False))
        unequal = sum(r.mismatches for r in rows if not r.exact)
        within = f"within 1 LSB or their bounds: {bounded:,} elements, {unequal:,} of them unequal"
        if not exact:
            return f"{within}; no tensor was compared bit by bit"
        text = f"{self._exactly}: 0 of {exact:,} elements differ, given the runtime's inputs"
        return f"{text}; {within}" if bounded else text

    @property
    def coverage(self) -> str:
        """One line: what was compared."""
        share = f" of {self.products:,} ({self.compared_products / self.products:.0%})" if self.products else ""
        bounded = f", {len(self.of('float'))} tensors of float units with bounds" if self.of("float") else ""
        within = f", {self.bounded_products:,} within bounds" if self.bounded_products else ""
        outputs = len(self.of("output"))
        return (
            f"compared: {self.tensors} inner tensors and {outputs} outputs, {self.elements:,} elements, "
            f"{self.compared_products:,} multiply-accumulates{share}{within}{bounded}"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain data."""
        return {"verdict": self.verdict, **asdict(self), "sqnr": self.sqnr}

    def __str__(self) -> str:
        """Return the verdict and a table of the comparisons."""
        rows = [r.cells() for r in self.rows if r.kind != "alone"]
        scores = "".join(f"\nscore, {name}: {mean:.6g}" for name, mean in self.scores)
        floats = "".join(f"\nfloat unit {names}: {reason}" for names, reason in _by_reason(self.float_units))
        left_out = "".join(
            f"\n{what} {names}: {reason}" for what, pairs in self._left_out for names, reason in _by_reason(pairs)
        )
        example = "" if self.first is None or self.first.first is None else f"\nfirst: {self.first.name}, {self.first.first}"
        gained = "".join(f"\n{line}" for line in (str(self.gain), *self.gain.remarks))
        return (
            f"{self._title}: {self.verdict}{gained}\n{self.coverage}\n{table(_HEAD, rows)}{example}{scores}{floats}{left_out}"
        )

    def html(self) -> str:
        """Return a self-contained page: scores, every comparison in the order of execution, and the float units."""
        parts = [
            Section("Beside the float network", ("found",), tuple((line,) for line in (str(self.gain), *self.gain.remarks))),
            Section("Scores", ("computed by", "mean"), tuple((name, f"{mean:.6g}") for name, mean in self.scores)),
            Section("Units that the runtime decided otherwise", ("unit",), tuple((text,) for text in self.disagreements)),
            Section("Tensors", _HEAD, tuple(r.cells() for r in self.rows)),
            Section("Float units", ("unit", "reason"), self.float_units),
            *(Section(what.capitalize(), ("unit", "reason"), pairs) for what, pairs in self._left_out),
            Section("Coverage", ("compared",), ((self.coverage.removeprefix("compared: "),),)),
        ]
        return page(self._title, self.verdict, parts)

    @property
    def _left_out(self) -> tuple[tuple[str, tuple[tuple[str, str], ...]], ...]:
        units = (("all", self.units_shown),) if self.units_shown else ()
        return (("not compared,", self.skipped), ("no bound,", self.unbounded), ("units not compared,", units))

    @property
    def _title(self) -> str:
        return f"{self.target} by {self.runtime}"


def _by_reason(pairs: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    # (names, reason): one line for all that have the same reason.
    found: dict[str, list[str]] = {}
    for name, reason in pairs:
        found.setdefault(reason, []).append(name)
    return [(", ".join(names), reason) for reason, names in found.items()]

"""Causes of a loss of accuracy, as the ranges and channels of a calibrated model show them.

Each function takes the evidence and returns suspects, with the sites that they name.  A suspect is a cause as far as the
model gains accuracy without the quantizers of these sites.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from attrs import frozen
from torch import fx

from qfunc.analysis.layer_errors import LayerError
from qfunc.diagnosis import remedies
from qfunc.diagnosis.evidence import Evidence, unlikeness
from qfunc.diagnosis.plan import Plan
from qfunc.graph.record import path_of
from qfunc.graph.selectors import matches

WIDER = 1.25
"""Values beyond the calibrated range by this factor are not of the distribution that calibration saw."""
NARROWER = 0.25
"""A tensor that uses less of its range loses two bits of its codes."""
CLIPPED = 1e-4
"""A share of clipped values below which clipping is the tail that estimators cut on purpose."""
UNLIKE = 8.0
"""Channels whose ranges differ by this factor lose three bits in one scale."""


@frozen
class Suspect:
    """A possible cause.

    Attributes:
        kind: The name of the cause.
        text: What was measured, with figures.
        sites: The names of the sites.
        plans: What may remove it.
    """

    kind: str
    text: str
    sites: tuple[str, ...]
    plans: tuple[Plan, ...] = ()


def calibration_is_unlike(evidence: Evidence) -> Iterator[Suspect]:
    """Yield a suspect if the batches of the calibration have other ranges than the evaluated ones."""
    if evidence.calibrated is None:
        return
    before = {r.tensor: r for r in evidence.calibrated.rows}
    wider, narrower = dict[str, float](), dict[str, float]()
    for row in evidence.rows("input", "output"):
        now, old = row.histogram, before[row.tensor].histogram if row.tensor in before else None
        if now is None or old is None:
            continue
        growth = _span(now.minimum, now.maximum) / max(_span(old.minimum, old.maximum), 1e-30)
        if growth >= WIDER and now.share > max(CLIPPED, 2 * old.share):
            wider[row.tensor] = growth
        elif growth <= NARROWER:
            narrower[row.tensor] = growth
    for found, word in ((wider, "wider"), (narrower, "narrower")):
        if found:
            worst = sorted(found, key=lambda n: abs(1 - found[n]), reverse=True)
            text = (
                f"{_tensors(len(found))} {word} ranges on the evaluated batches than in the calibration: "
                f"{worst[0]!r} by a factor of {found[worst[0]]:.3g}"
            )
            yield Suspect("calibration batches", text, tuple(worst), (remedies.RECALIBRATED,))


def values_are_clipped(evidence: Evidence) -> Iterator[Suspect]:
    """Yield a suspect if the estimator clips values of the calibration itself."""
    rows = [r for r in (evidence.calibrated or evidence.evaluated).rows if r.slot in ("input", "output") and r.histogram]
    clipped = [r for r in rows if _clips(r)]
    if clipped:
        worst = max(clipped, key=_excess)
        h = worst.histogram
        assert h is not None
        text = (
            f"{_tensors(len(clipped))} clipped values on the batches of the calibration: {worst.tensor!r} has the range "
            f"{h.minimum:.4g} to {h.maximum:.4g}, its codes {h.low:.4g} to {h.high:.4g}; {100 * h.share:.2g} % are clipped"
        )
        ordered = sorted(clipped, key=_excess, reverse=True)
        sites = tuple(r.tensor for r in ordered)
        yield Suspect("clipping", text, sites, (remedies.unclipped(sites), *remedies.keep_float(_ops(ordered))))


def tied_ranges_differ(evidence: Evidence) -> Iterator[Suspect]:
    """Yield a suspect for each set of tied tensors in which one uses little of the common range."""
    rows = {r.tensor: r for r in evidence.rows("input", "output")}
    nodes = {n.name: n for n in evidence.view.float_network.graph.nodes}
    ties: dict[str, list[LayerError]] = {}
    for quantizer in evidence.view.quantizers:
        site = quantizer.module.site
        if site.tie is not None and site.name in rows:
            ties.setdefault(site.tie, []).append(rows[site.name])
    for members in ties.values():
        spans = {r.tensor: _span(r.histogram.minimum, r.histogram.maximum) for r in members if r.histogram}
        narrow = min(spans, key=lambda n: spans[n])
        wide = max(spans, key=lambda n: spans[n])
        if not spans[narrow] or spans[narrow] / spans[wide] > 1 / UNLIKE:
            continue
        joins = [n for n in nodes.values() if _joins(evidence, n, set(spans))]
        paths = tuple(path_of(evidence.view.float_network, n) for n in joins)
        at = f"{paths[0]!r}" if paths else "an op"
        text = (
            f"{at} makes {len(spans)} tensors share one scale: the range of {wide!r} is {spans[wide]:.4g}, that of "
            f"{narrow!r} {spans[narrow]:.4g}, {spans[wide] / spans[narrow]:.0f} times less"
        )
        yield Suspect("tied ranges", text, tuple(spans), (*remedies.keep_float(paths), remedies.WIDE_ACTIVATIONS))


def channels_of_activations_are_unlike(evidence: Evidence) -> Iterator[Suspect]:
    """Yield a suspect if channels of activations with one scale have unlike ranges."""
    rows, text = _with_unlike_channels(evidence, "input", "output")
    if rows:
        text += _neighbours(evidence, rows[0])
        sites = tuple(r.tensor for r in rows)
        plans = (remedies.SMOOTHED, remedies.EQUALIZED, remedies.clipped(sites), remedies.WIDE_ACTIVATIONS)
        yield Suspect("channels of activations", text, sites, (*plans, *remedies.keep_float(_ops(rows))))


def channels_of_weights_are_unlike(evidence: Evidence) -> Iterator[Suspect]:
    """Yield a suspect if channels of weights with one scale have unlike ranges."""
    rows, text = _with_unlike_channels(evidence, "weight")
    if rows:
        plans = (remedies.PER_CHANNEL, remedies.EQUALIZED, remedies.UNBIASED, remedies.CLOSE_WEIGHTS)
        yield Suspect("channels of weights", text, tuple(r.tensor for r in rows), plans)


def biases_are_clipped(evidence: Evidence) -> Iterator[Suspect]:
    """Yield a suspect if biases do not fit their format at the scale that the hardware gives them."""
    clipped = [r for r in evidence.rows("bias") if r.histogram is not None and r.histogram.clipped]
    if clipped:
        number = sum(r.histogram.clipped for r in clipped if r.histogram)
        text = f"{number} elements of {len(clipped)} biases do not fit their codes: {clipped[0].tensor!r} first"
        yield Suspect("clipped biases", text, tuple(r.tensor for r in clipped), remedies.keep_float(_ops(clipped)))


def weights_are_rounded(evidence: Evidence) -> Iterator[Suspect]:
    """Yield the rounding of the weights without another cause."""
    rows = evidence.rest("weight")
    if rows:
        plans = (remedies.UNBIASED, remedies.PER_CHANNEL, remedies.CLOSE_WEIGHTS)
        yield Suspect("rounding of weights", _rounded(rows), tuple(r.tensor for r in rows), plans)


def activations_are_rounded(evidence: Evidence) -> Iterator[Suspect]:
    """Yield the rounding of the activations without another cause."""
    rows = evidence.rest("input", "output")
    if rows:
        plans = (remedies.CLOSE_ACTIVATIONS, remedies.WIDE_ACTIVATIONS)
        yield Suspect("rounding of activations", _rounded(rows), tuple(r.tensor for r in rows), plans)


DETECTORS: tuple[Callable[[Evidence], Iterator[Suspect]], ...] = (
    calibration_is_unlike, values_are_clipped, tied_ranges_differ, channels_of_activations_are_unlike,
    channels_of_weights_are_unlike, biases_are_clipped,
)  # fmt: skip
"""The functions that look for causes, the most specific first."""
REMAINDERS: tuple[Callable[[Evidence], Iterator[Suspect]], ...] = (weights_are_rounded, activations_are_rounded)
"""The functions that yield what remains: the rounding of tensors that no cause names."""


def _with_unlike_channels(evidence: Evidence, *slots: str) -> tuple[list[LayerError], str]:
    # Return the rows whose tensors have unlike channels, the most unlike first, and a text about the first.
    rows = [r for r in evidence.rows(*slots) if r.tensor in evidence.channels]
    factors = {r.tensor: unlikeness(evidence.channels[r.tensor]) for r in rows}
    unlike = sorted((r for r in rows if factors[r.tensor] >= UNLIKE), key=lambda r: factors[r.tensor], reverse=True)
    if not unlike:
        return [], ""
    worst = unlike[0].tensor
    channels = evidence.channels[worst]
    return unlike, (
        f"{len(unlike)} of {len(rows)} tensors with one scale have channels of unlike ranges: in {worst!r} channel "
        f"{int(channels.argmax())} reaches {float(channels.max()):.4g}, {factors[worst]:.0f} times the median"
    )


def _neighbours(evidence: Evidence, row: LayerError) -> str:
    # The ops on both sides of an activation, between which equalization moves factors.
    network = evidence.view.float_network
    nodes = {n.name: n for n in network.graph.nodes}
    quantizers = evidence.quantizers((row.tensor,))
    readers = dict.fromkeys(path_of(network, nodes[name]) for q in quantizers for name in q.readers if name in nodes)
    if row.slot == "input" or not readers:
        return ""
    read = f"{', '.join(map(repr, readers))} {'reads' if len(readers) == 1 else 'read'} it"
    return f"; {row.op!r} writes it and {read}: it is in float only if all of them are"


def _tensors(count: int) -> str:
    return "1 tensor has" if count == 1 else f"{count} tensors have"


def _rounded(rows: Sequence[LayerError]) -> str:
    number = "1 tensor is" if len(rows) == 1 else f"{len(rows)} tensors are"
    sqnr = rows[0].alone.sqnr if rows[0].alone is not None else float("inf")
    return f"{number} rounded, {rows[0].tensor!r} with the least SQNR, {sqnr:.1f} dB"


def _ops(rows: Sequence[LayerError]) -> list[str]:
    return list(dict.fromkeys(r.op for r in rows))


def _span(low: float, high: float) -> float:
    return max(high, 0.0) - min(low, 0.0)


def _excess(row: LayerError) -> float:
    # By how much the values exceed the range of the codes, as a ratio.
    h = row.histogram
    return 0.0 if h is None else _span(h.minimum, h.maximum) / max(_span(max(h.minimum, h.low), min(h.maximum, h.high)), 1e-30)


def _clips(row: LayerError) -> bool:
    return row.histogram is not None and row.histogram.share > CLIPPED and _excess(row) >= WIDER


def _joins(evidence: Evidence, node: fx.Node, tensors: set[str]) -> bool:
    # True for an op of a target's ties that reads a tied tensor, or writes one.
    target: Any = evidence.view.record.target
    sites = {q.tensor for q in evidence.quantizers(tensors)}
    touched = node.name in sites or any(n.name in sites for n in node.all_input_nodes)
    return touched and any(matches(tie.select, node, evidence.context) for tie in target.ties if "input" in tie.slots)

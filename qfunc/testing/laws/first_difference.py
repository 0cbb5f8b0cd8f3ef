"""The text about the first unit whose codes are not the runtime's: what it computes there, and how its codes differ."""

from __future__ import annotations

from qfunc.analysis.verification_report import Report
from qfunc.placement.encoding import Encoding
from qfunc.placement.partition import Partition
from qfunc.placement.units import Unit
from qfunc.testing.laws.unit_elements import elements_of, summary
from qfunc.testing.pipeline import Pipeline
from qfunc.transforms.verification.check import Verification
from qfunc.transforms.verification.outputs import outputs_of


def first_difference(report: Report, trial: Pipeline) -> str:
    """Return lines about the first unit that differs, or about the units that the runtime decided otherwise.

    With a runner that shows inner tensors, that is the first unit that differs on the runtime's own inputs.
    """
    if report.disagreements:
        return "\n".join(report.disagreements)
    alone = [r for r in report.of("alone") if r.mismatches and r.exact]
    first = alone[0] if alone else report.first
    if first is None:
        return ""
    lines = [
        f"The first to differ: {first.name}, {first.mismatches} of {first.elements} elements, by {first.largest_lsb:.3g} LSB"
    ]
    if first.first is not None:
        lines.append(f"Its first element: {first.first}")
    check = Verification(trial.calibrated, trial.target, trial.run)
    unit = _unit_of(first.name, check.partition)
    if unit is None:
        return "\n".join(lines)
    batches = elements_of(check, unit, trial.batches)
    if first.first is not None and batches:
        lines.append(f"There in the emulation: {batches[first.first.batch].described(first.first.at)}")
    lines += summary(batches)
    lines.append(f"Its unit: {unit.path}, {unit.kernel!r}")
    lines += [f"  {name}: {qparams_text(encoding)}" for name, encoding in _encodings(check.partition, unit)]
    return "\n".join(lines)


def qparams_text(encoding: Encoding) -> str:
    """Return the qparams of a tensor as text."""
    scale, zero = encoding.qparams.scale.flatten().tolist(), encoding.qparams.zero_point.flatten().tolist()
    shown = (
        f"{scale[0]!r}"
        if len(scale) == 1
        else f"[{', '.join(f'{s:.9g}' for s in scale[:4])}{', ...' if len(scale) > 4 else ''}]"
    )
    return f"scale {shown}, zero point {int(zero[0])}, codes {encoding.format.qmin}..{encoding.format.qmax}"


def _encodings(partition: Partition, unit: Unit) -> list[tuple[str, Encoding]]:
    inside = unit.group.nodes
    edges = [(p.name, partition.encoding(p, n)) for n in inside for p in n.all_input_nodes if p not in inside]
    edges.append(("output", partition.output_encoding(unit.group.output)))
    return [(name, encoding) for name, encoding in edges if encoding is not None]


def _unit_of(name: str, partition: Partition) -> Unit | None:
    # The unit that computes a tensor of codes, or an output.
    if not name.startswith("output "):
        return next((u for u in partition.units if name in (u.tensor, u.path)), None)
    leaves, index = outputs_of(partition)[1], int(name.removeprefix("output "))
    return next((u for u in partition.units if index < len(leaves) and u.group.output is leaves[index]), None)


__all__ = ["qparams_text", "first_difference"]

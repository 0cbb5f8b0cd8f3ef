"""mixed_precision: bits for each weight, with the least loss within a budget."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from attrs import evolve, field, frozen
from torch import nn

from qfunc._transform import Transform
from qfunc.analysis.bit_sensitivity import Key, Loss, MergeableWatch, OutputMse, SquaredWatch, Watch
from qfunc.analysis.budgets import Budget, minimize
from qfunc.analysis.lockstep import Ops
from qfunc.analysis.operations.quantized_weights import Weight, weights_of
from qfunc.analysis.report_format import Section, fragment, page, table
from qfunc.errors import CalibrationError, SpecError
from qfunc.execution.batches import require_batches
from qfunc.execution.distributed import gather_counts, propagate_errors, ranks, require_group
from qfunc.execution.feed import feed_all
from qfunc.graph.evaluation_form import evaluation_form
from qfunc.graph.record import record_of
from qfunc.graph.submodules import require_submodules
from qfunc.specs import Override, Target
from qfunc.specs.selectors import AnyOf, Name, Selector

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


@frozen
class Mixture:
    """Bits for each weight, with the loss and the cost of the choice.

    Attributes:
        target: The model's target, with an override for each narrowed weight; pass it to `quantize`.
        bits: (site of the weight, its bits) in the order of the graph.
        loss: The sum of the losses of the chosen bits; `losses` has the loss of each (site, bits).
        cost, limit: The cost of the chosen bits and the budget's limit, in `unit`.
        gap: (loss - a lower bound of every choice's loss) / loss; 0 if no choice within the budget has a smaller sum of losses.
    """

    target: Target
    bits: tuple[tuple[str, int], ...]
    loss: float
    cost: float
    limit: float
    unit: str
    gap: float
    losses: tuple[tuple[Key, float], ...] = field(repr=False)

    def __str__(self) -> str:
        """Return a table of the bits of each weight, and its loss with each number of bits."""
        section = self._table
        return f"{section.title}\n{table(section.head, section.rows, 220)}"

    def _repr_html_(self) -> str:
        section = self._table
        return fragment(page(section.title, "", [evolve(section, title="Weights")]))

    @property
    def _table(self) -> Section:
        losses = dict(self.losses)
        widths = sorted({b for _, b in losses})
        rows = [
            [site, str(b), *(f"{losses[site, w]:.3g}" if (site, w) in losses else "" for w in widths)] for site, b in self.bits
        ]
        title = f"{self.target.name}: {self.cost:g} of {self.limit:g} {self.unit}, loss {self.loss:.4g}, gap {self.gap:.2g}"
        return Section(title, ("weight", "bits", *(f"loss, {w} bits" for w in widths)), tuple(rows))


def mixed_precision(
    batches: Iterable[Any],
    bits: Sequence[int],
    budget: Budget,
    progress: bool = True,
    *,
    loss: Loss = OutputMse(),
    group: ProcessGroup | None = None,
) -> Callable[[nn.Module], Mixture]:
    """Return a function from a calibrated model to the bits of its weights with the least loss within a budget.

        minimise sum_l L_l(b_l)  over  b_l in bits_l  subject to  sum_l C_l(b_l) <= limit

    L_l is the loss of weight l with b_l bits (`OutputMse`, `HessianTrace`; losses of several weights are assumed to
    add up), C_l is its cost (`SizeBudget`, `BitOpsBudget`, `LatencyBudget`), and bits_l are the target's width and the
    smaller ones of `bits`.  The problem is solved exactly, or the result has the `gap`.  If several submodules are
    quantized, the loss of each is divided by the mean square of its outputs, so that it does not depend on their units.
    Quantize the float model with the `target` of the result.

    Args:
        batches: As for `calibrate`; iterated once.
        bits: The widths to choose from, each from 2 to 16, such as (2, 4).
        budget: The limit on the cost of the weights.
        progress: Show a progress bar on a terminal, else a line every 30 seconds.
        loss: The loss of a weight with fewer bits.
        group: As for `calibrate`; the losses cover the batches of all its processes, of which each needs one.
    Raises:
        CalibrationError: no batches, or a model that is not calibrated; or a loss whose `watch` has no `state` and `join`,
            in several processes; or no output is a floating-point tensor that depends on a weight.
        SpecError: a width is out of range, no weight can be narrower, or even the narrowest weights exceed the budget.
    Source: Hubara et al., arXiv:2006.10518, section 4 (integer programming); Yao et al., arXiv:2011.10680, section 3.4.

    >>> import qfunc, torch
    >>> from qfunc import targets
    >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    >>> x = torch.randn(16, 4)
    >>> calibrated = qfunc.calibrate([x])(qfunc.quantize(targets.onnxruntime)(model))
    >>> found = mixed_precision([x], bits=(2, 4), budget=qfunc.SizeBudget(mean_bits=5))(calibrated)
    >>> found.cost <= 5 * 48, found.gap, sorted({site for site, _ in found.bits})
    (True, 0.0, ['0.weight', '2.weight'])
    >>> _ = qfunc.quantize(found.target)(model)
    """
    require_batches(batches, "mixed_precision", progress, "qfunc.mixed_precision(batches, bits, budget)(model)")
    require_group(group, "mixed_precision")
    widths = list(bits) if isinstance(bits, Sequence) and not isinstance(bits, str) else []
    if not widths or not all(type(b) is int and 2 <= b <= 16 for b in widths):
        do = "Write bits=(2, 4)."
        raise SpecError(where="mixed_precision, bits", found=repr(bits), wanted="a sequence of ints from 2 to 16", do=do)

    def transform(calibrated: nn.Module) -> Mixture:
        each = require_submodules(calibrated, "calibrated", "mixed_precision")
        target = next(r.target for r in map(record_of, each.values()) if r and r.target)
        watches = {path: _Watch(Ops(evaluation_form(part)), widths, loss) for path, part in each.items()}
        processes = ranks(group)
        with propagate_errors(processes):
            count = feed_all(calibrated, {path: w.add for path, w in watches.items()}, batches, "mixed_precision", progress)
            if not count:
                do = "Pass at least one batch."
                raise CalibrationError(where="mixed_precision", found="no batches", wanted="batches of inputs", do=do)
            states = {path: w.state(processes) for path, w in watches.items()}
        sites = [w.site for watch in watches.values() for w in watch.weights]
        gathered, _ = gather_counts(states, count, sites, processes, "mixed_precision")
        for path, watch in watches.items():
            watch.join([state[path] for state in gathered])
        weights = [w for watch in watches.values() for w in watch.weights]
        losses = {key: value for w in watches.values() for key, value in w.losses(relative=len(watches) > 1).items()}
        if not any(len(w.narrowed) > 1 for w in weights):
            present = ", ".join(f"{w.site} {w.bits[-1]}" for w in weights[:3]) or "no integer weights"
            wanted, do = f"weights of more than {min(widths)} bits", "Pass fewer bits, or a target with wider weights."
            raise SpecError(where="mixed_precision", found=present, wanted=wanted, do=do)
        return _mixture(target, weights, losses, budget)

    return Transform(
        mixed_precision,
        {"batches": batches, "bits": bits, "budget": budget, "progress": progress, "loss": loss, "group": group},
        transform,
    )


class _Watch:
    """Find the weights with the first batch, then accumulate their losses."""

    def __init__(self, ops: Ops, bits: Sequence[int], loss: Loss) -> None:
        self.ops, self.bits, self.loss = ops, bits, loss
        self.weights: tuple[Weight, ...] = ()
        self.watch: Watch | None = None

    def add(self, arguments: tuple[Any, ...], number: int) -> Any:
        if self.watch is None:
            self.weights = tuple(weights_of(self.ops, self.bits, arguments))
            self.watch = self.loss.watch(self.ops, self.weights)
        return self.watch.add(arguments, number)

    def state(self, group: ProcessGroup | None) -> Any:
        """Return (the products of each weight, the sums of the losses); the sums are None for one process."""
        products = [w.products for w in self.weights]
        if group is None:
            return products, None
        if not isinstance(self.watch, MergeableWatch):
            raise CalibrationError(
                where="mixed_precision, loss",
                found=f"{self.loss!r}, whose watch has no state and join, in {group.size()} processes",
                wanted="a watch with state() and join(states)",
                do="Use OutputMse() or HessianTrace(), or call mixed_precision in one process.",
            )
        return products, self.watch.state()

    def join(self, states: Sequence[Any]) -> None:
        """Continue with the sums of all processes; multiply-accumulates are counted in the first batch of the first one."""
        self.weights = tuple(evolve(w, products=p) for w, p in zip(self.weights, states[0][0], strict=True))
        if len(states) > 1 and isinstance(self.watch, MergeableWatch):
            self.watch.join([sums for _, sums in states])

    def losses(self, relative: bool) -> dict[Key, float]:
        """Return the losses; `relative` divides those in squared units of the outputs by the mean square of the outputs."""
        if self.watch is None:
            return {}
        power = (self.watch.power() if relative and isinstance(self.watch, SquaredWatch) else 1.0) or 1.0
        return {key: value / power for key, value in self.watch.losses().items()}


def _mixture(target: Target, weights: Sequence[Weight], losses: dict[Key, float], budget: Budget) -> Mixture:
    costs = {(w.site, b): budget.cost(w, b) for w in weights for b in w.bits}
    limit = budget.limit(weights)
    lowest = math.fsum(min(costs[w.site, b] for b in w.bits) for w in weights)
    if lowest > limit:
        found, wanted = f"{limit:g} {budget.unit}", f"at least {lowest:g}, the cost of the narrowest weights"
        raise SpecError(where="mixed_precision, budget", found=found, wanted=wanted, do="Allow more, or pass fewer bits.")
    invalid = next((key for key, value in losses.items() if not math.isfinite(value)), None)
    if invalid is not None:
        where, do = (
            f"mixed_precision, {invalid[0]!r} with {invalid[1]} bits",
            "Look for NaN or infinities in the model's outputs.",
        )
        raise CalibrationError(where=where, found=f"a loss of {losses[invalid]}", wanted="a finite loss", do=do)
    if not any(losses.values()) and any(not torch.equal(v, w.narrowed[-1][1]) for w in weights for _, v in w.narrowed):
        found, do = "a loss of 0 for every weight and number of bits", "Use other batches, or return the scores of the model."
        raise CalibrationError(where="mixed_precision", found=found, wanted="outputs that depend on a weight", do=do)
    bits, gap = minimize([[(w.site, b) for b in w.bits] for w in weights], losses, costs, limit)
    narrower = {site: b for w, (site, b) in zip(weights, bits, strict=True) if b < w.bits[-1]}
    overrides = (
        Override(_name_selector([s for s in narrower if narrower[s] == b]), "weight", bits=b)
        for b in sorted({*narrower.values()})
    )
    edited = evolve(target, overrides=(*target.overrides, *overrides))
    loss, cost = (math.fsum(of[key] for key in bits) for of in (losses, costs))
    return Mixture(edited, bits, loss, cost, limit, budget.unit, gap, tuple(losses.items()))


def _name_selector(sites: Sequence[str]) -> Selector:
    names = tuple(Name(re.sub(r"([*?\[])", r"[\1]", site.partition("@")[0])) for site in sites)
    return names[0] if len(names) == 1 else AnyOf(names)

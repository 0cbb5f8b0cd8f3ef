"""sensitivity: the error at the outputs that each quantizer alone causes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch import fx, nn

from qfunc._transform import Transform
from qfunc.analysis.lockstep import TRANSPARENT, Ops
from qfunc.analysis.metrics import Sums
from qfunc.analysis.replay import Replays
from qfunc.analysis.site_losses import SiteLoss, SiteLosses
from qfunc.execution.batches import require_batches
from qfunc.execution.distributed import gather_counts, propagate_errors, ranks, require_group
from qfunc.execution.feed import feed_all
from qfunc.graph.submodules import require_submodules
from qfunc.graph.view import QuantizedModel
from qfunc.ops.node import kind_of
from qfunc.quantizers.fake_quantize import FakeQuantize

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


def sensitivity(
    batches: Iterable[Any], progress: bool = True, *, group: ProcessGroup | None = None
) -> Callable[[nn.Module], SiteLosses]:
    """Return a function from a calibrated model to the error that each of its quantizers causes alone: `SiteLosses`.

    For each site, y is the float network's output and y_hat the output with only that site quantized, over all outputs
    and batches: SQNR = 10 log10(sum y^2 / sum (y_hat - y)^2), mean squared error, cosine.

    Each batch costs one float pass, and for each site the ops that depend on its quantizer. All other values are read
    from the float pass. A chain of n sites costs about n / 2 passes instead of n; the report counts them. Memory is
    twice the activations of one batch, for any number of batches. The networks run in evaluation mode, and the model does
    not change. For submodules that `quantize(submodules=)` quantized, y is the submodule's output, for the inputs that
    it has in the float network.

    Args:
        batches: As for `calibrate`; a few are enough for the order of the sites.
        progress: Show a progress bar on a terminal, else a line every 30 seconds.
        group: As for `calibrate`; the figures cover the batches of all its processes.
    Raises:
        CalibrationError: there are no batches, or a batch has a wrong structure, or the model is not calibrated.
    Source: Wu, Judd, Zhang, Isaev and Micikevicius, arXiv:2004.09602, section 6.1 (one at a time).

    >>> import qfunc
    >>> from qfunc import targets
    >>> model = torch.nn.Linear(2, 1, bias=False)
    >>> _ = torch.nn.init.constant_(model.weight, 1.0)
    >>> calibrated = qfunc.calibrate([torch.tensor([[0.0, 2.55]])])(qfunc.quantize(targets.onnxruntime)(model))
    >>> [(r.site, round(r.sqnr, 1)) for r in sensitivity([torch.tensor([[1.0, 1.554]])])(calibrated).rows]
    [('input', 56.1), ('weight', inf), ('linear', 56.1)]
    """
    require_batches(batches, "sensitivity", progress)
    require_group(group, "sensitivity")

    def transform(calibrated: nn.Module) -> SiteLosses:
        parts = require_submodules(calibrated, "calibrated", "sensitivity")
        views = {path: QuantizedModel(part) for path, part in parts.items()}
        trials, processes = {path: _Sites(view) for path, view in views.items()}, ranks(group)
        with torch.inference_mode(), propagate_errors(processes):
            count = feed_all(calibrated, {path: t.trials.add for path, t in trials.items()}, batches, "sensitivity", progress)
        sites = [q.module.site.name for view in views.values() for q in view.quantizers]
        states, count = gather_counts({path: t.state() for path, t in trials.items()}, count, sites, processes, "sensitivity")
        rows = [row for path, t in trials.items() for row in t.rows([state[path] for state in states])]
        targets = dict.fromkeys(view.record.target.name for view in views.values() if view.record.target)
        return SiteLosses(", ".join(targets), count, tuple(rows), sum(t.op_count_of_full_passes() for t in trials.values()))

    return Transform(sensitivity, {"batches": batches, "progress": progress, "group": group}, transform)


class _Sites:
    """One trial for each site: the network with this quantizer only."""

    def __init__(self, view: QuantizedModel) -> None:
        ops = Ops(view.evaluation_form)
        modules = {s.path: s.module for s in view.quantizers}
        self.sites: dict[fx.Node, FakeQuantize] = {n: modules[str(n.target)] for n in ops.nodes if n.target in modules}
        self.trials = Replays(ops, {n: (n, ops.module(n)) for n in self.sites}, "sensitivity")

    def state(self) -> dict[str, Any]:
        return {node.name: self.trials.sums[node].state() for node in self.sites}

    def rows(self, states: list[dict[str, Any]]) -> list[SiteLoss]:
        losses, sums = [], {node: Sums() for node in self.sites}
        for node, state in ((node, state[node.name]) for state in states for node in self.sites):
            sums[node].join(*state)
        for node, module in self.sites.items():
            site = module.site
            ops = sum(map(_is_counted, self.trials.cones[node]))
            losses.append(SiteLoss(site.name, site.slot, site.op, repr(site.scheme.format), ops, sums[node].agreement()))
        return losses

    def op_count_of_full_passes(self) -> int:
        """Return the number of ops that one full pass for each site would run."""
        return len(self.sites) * sum(map(_is_counted, self.trials.ops.nodes))


def _is_counted(node: fx.Node) -> bool:
    return node.op.startswith("call_") and kind_of(node) not in TRANSPARENT

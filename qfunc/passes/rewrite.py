"""A pass that applies declared rewrites and keeps their near misses in the record, for `explain`."""

from __future__ import annotations

from collections.abc import Iterable

from attrs import evolve
from torch import fx

from qfunc.errors import CalibrationError
from qfunc.graph.matcher import Rewrite, apply_rewrites
from qfunc.graph.record import attach, path_of, record_of
from qfunc.graph.stages import kind_of_model


def rewrite(network: fx.GraphModule, *stages: tuple[Rewrite, ...], nodes: Iterable[fx.Node] | None = None) -> fx.GraphModule:
    """Apply the rewrites of each stage to a network, in place, and return it.

    Args:
        network: The network.
        stages: The rewrites.
        nodes: The nodes at which a match may begin; by default all.
    Raises:
        CalibrationError: the network is quantized, so that its quantizers are between the ops of a pattern.

    >>> import torch
    >>> from qfunc.frontend.capture import capture
    >>> from qfunc.ops.node import kind_of
    >>> from qfunc.passes.fuse_norms import NORMS
    >>> class Norm(torch.nn.Linear):
    ...     def forward(self, x): return self.bias * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))
    >>> [kind_of(n) for n in rewrite(capture()(Norm(2, 3)), *NORMS).graph.nodes]
    ['input', 'constant', 'rms_norm', 'output']
    """
    made = record_of(network)
    if made is not None and made.target is not None:
        do = "Rewrite the captured model: qfunc.quantize(target)(my_pass(qfunc.capture()(model)))."
        raise CalibrationError(where="rewrite", found=kind_of_model(made), wanted="a captured float model", do=do)
    changed, misses = apply_rewrites(network.graph, *stages, nodes=nodes)
    record = record_of(network) if misses else None
    if record is not None:
        found = tuple((path_of(network, m.node), m.rewrite, m.reason) for m in misses)
        attach(network, evolve(record, unmatched=(*record.unmatched, *found)))
    if changed:
        network.graph.eliminate_dead_code(is_impure_node=lambda n: n.op in ("placeholder", "output"))
        network.recompile()
    return network

"""awq: enlarge the columns of weights that read large channels, so that rounding the weights costs less."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, fx, nn

from qfunc._transform import Transform
from qfunc.corrections.equalization_graph import Link, capture_for_equalization, equalization_links, require_links
from qfunc.corrections.scalable_ops import Columns
from qfunc.errors import CalibrationError, SpecError
from qfunc.execution.batches import require_batches, require_finite_input
from qfunc.execution.feed import feed_all
from qfunc.graph.float_network import float_network
from qfunc.graph.interpreter import ObservingInterpreter
from qfunc.graph.record import path_of
from qfunc.graph.view import QuantizedModel
from qfunc.numerics.moments import second_moments
from qfunc.ops.node import attribute
from qfunc.passes.fuse_norms import NORMS
from qfunc.passes.rewrite import rewrite
from qfunc.quantizers.fake_quantize import FakeQuantize
from qfunc.specs import Target
from qfunc.transforms.quantize import quantize


def awq(
    target: Target, batches: Iterable[Any], progress: bool = True, *, candidates: int = 20
) -> Callable[[nn.Module], fx.GraphModule]:
    """Return a transform of a float model that scales inputs of linear layers for the rounding of their weights.

    For the channels j that linear layers with weights W read from one norm, with X_j their values over the batches,

        s_j = m_j^a / sqrt(max_k m_k^a min_k m_k^a),   m_j = mean |X_j|,   X'_j = X_j / s_j,   W'_j = W_j s_j,

    with the a of 0, 1/n, ..., (n-1)/n for which the outputs change least when the target rounds the weights to nearest:

        sum over the layers of  tr (W - V) H (W - V)^T,   H = sum x x^T,   V_j = Q(W')_j / s_j.

    X is divided in the norm, as by `smooth_quant`: a LayerNorm, RMSNorm or BatchNorm with a weight, or an op with weights
    before ReLUs and the like, whose only readers are linear layers.  The float model does not change, except for the rounding
    of each tensor to its dtype.  Inputs are those in the float network; channels that are 0 keep s = 1, and so do layers
    whose weights the target does not quantize.

    Args:
        target: The target, or another with the same schemes of weights.
        batches: As for `calibrate`.
        progress: Show a progress bar on a terminal, else a line every 30 seconds.
        candidates: n.
    Returns:
        A function from a module, or from the result of `qfunc.capture`, to a captured model for `quantize`.
    Raises:
        SpecError: candidates out of bounds, no such linear layers, or none with a quantized weight.
        CalibrationError: no batches, NaN or infinite values, or a model that is quantized.
    Source: Lin et al., AWQ, arXiv:2306.00978, section 3.2, equations 4 and 5; the normalization follows its code.

    >>> import qfunc
    >>> from qfunc import targets
    >>> _ = torch.manual_seed(0)
    >>> net, x = nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 8)).eval().requires_grad_(False), torch.randn(64, 8)
    >>> _ = net[0].weight.copy_(torch.tensor([20.0] + [1.0] * 7))
    >>> target = targets.academic(3, 8)
    >>> nearest, scaled = (qfunc.calibrate([x])(qfunc.quantize(target)(m)) for m in (net, awq(target, [x])(net)))
    >>> bool((scaled(x) - net(x)).square().sum() < (nearest(x) - net(x)).square().sum())
    True
    """
    require_batches(batches, "awq", progress, "qfunc.awq(target, batches)(model)")
    if type(candidates) is not int or candidates < 2:
        do = "Write qfunc.awq(target, batches, candidates=20)."
        raise SpecError(where="awq, candidates", found=repr(candidates), wanted="an integer from 2", do=do)

    def transform(model: Any) -> fx.GraphModule:
        with torch.inference_mode(False), torch.no_grad():
            network = rewrite(capture_for_equalization(model, "awq"), *NORMS)
            links, misses = equalization_links(network, gains=True, target=target)
            links = tuple(link for link in links if all(end.op.kind == "linear" for end in link.ends))
            require_links(links, misses, "awq", "linear layers that are the only readers of a norm or an op with weights")
            modules = _quantizers(quantize(target)(network))
            links = tuple(link for link in links if any(end.op.node.name in modules for end in link.ends))
            if not links:
                do = "Give the target of the next step, qfunc.quantize."
                wanted = "one that quantizes weights of linear layers behind norms"
                raise SpecError(where="awq, target", found=repr(target.name), wanted=wanted, do=do)
            inputs = _Inputs(network, links)
            if not feed_all(inputs.network, {"": inputs.observe}, batches, "awq", progress):
                do = "Pass a non-empty iterable, not one already used up."
                raise CalibrationError(where="awq", found="no batches", wanted="at least one", do=do)
            factors = [_best(network, link, inputs, modules, candidates) for link in links]
            for link, by in zip(links, factors, strict=True):
                link.scale(by)
            network.recompile()
            return network

    arguments = {"target": target, "batches": batches, "progress": progress, "candidates": candidates}
    return Transform(awq, arguments, transform)


def _quantizers(quantized: fx.GraphModule) -> dict[str, FakeQuantize]:
    # The quantizers of weights by the names of the ops that read them.
    weights = [q for q in QuantizedModel(quantized).quantizers if q.module.site.constant and q.module.site.slot == "weight"]
    return {reader: q.module for q in weights for reader in q.readers}


class _Inputs:
    """H and mean |x| of the inputs of each link's linear layers, by the name of the tensor."""

    def __init__(self, model: fx.GraphModule, links: tuple[Link, ...]) -> None:
        self.network = float_network(model)
        self.names = {n.name for n in self.network.graph.nodes}
        self.hessians: dict[str, Tensor] = {}
        self.sizes: dict[str, Tensor] = {}
        observed = {self.name(end) for link in links for end in link.ends}
        self.interpreter = ObservingInterpreter(self.network, self._add, observed)

    def name(self, end: Columns) -> str:
        """Return the name of the input of a layer, before dropouts."""
        node = attribute(end.op.node, "input")
        while node.name not in self.names:
            node = node.all_input_nodes[0]
        return str(node.name)

    def observe(self, arguments: tuple[Any, ...], number: int) -> Any:
        """Process one batch."""
        return self.interpreter.run_batch(arguments, f"awq, batch {number}")

    def _add(self, name: str, value: Any) -> None:
        size, hessian = value.abs().reshape(-1, value.shape[-1]).double().sum(0), second_moments([value])
        self.sizes[name] = self.sizes[name] + size if name in self.sizes else size
        self.hessians[name] = self.hessians[name] + hessian if name in self.hessians else hessian


def _best(model: fx.GraphModule, link: Link, inputs: _Inputs, modules: dict[str, FakeQuantize], candidates: int) -> Tensor:
    sizes = torch.stack([inputs.sizes[inputs.name(end)].reshape(-1, end.repeat).sum(1) for end in link.ends]).sum(0)
    require_finite_input(sizes, "awq", path_of(model, link.ends[0].op.node))
    best, least = torch.ones_like(sizes), torch.inf
    for i in range(candidates):
        factors = _factors(sizes, i / candidates)
        error = sum(_error(end, factors, inputs, modules) for end in link.ends)
        if error < least:
            best, least = factors, error
    return best


def _factors(sizes: Tensor, power: float) -> Tensor:
    known = sizes > 0
    by = torch.where(known, sizes, 1.0) ** power
    seen = by[known] if bool(known.any()) else torch.ones_like(by)
    return torch.where(known, by / (seen.max() * seen.min()).sqrt(), 1.0)


def _error(end: Columns, factors: Tensor, inputs: _Inputs, modules: dict[str, FakeQuantize]) -> float:
    # tr (W - V) H (W - V)^T of one layer; 0 if the target does not quantize its weight.
    module, weight = modules.get(end.op.node.name), end.weight()
    if module is None:
        return 0.0
    by = end.each(factors)
    scaled, site = (weight * by).to(end.op.stored.dtype), module.site
    state = site.estimator.update(site.estimator.init(site.scheme, scaled), scaled, site.scheme)
    trial = FakeQuantize(site, scaled)
    trial.set_qparams(site.estimator.finalize(state, site.scheme), scaled)
    difference = weight - trial.eval()(scaled).double() / by
    return float(((difference @ inputs.hessians[inputs.name(end)]) * difference).sum())

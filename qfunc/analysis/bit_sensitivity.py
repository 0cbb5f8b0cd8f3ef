"""The loss at the outputs of a weight with fewer bits: measured, or estimated from the curvature."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch
from attrs import field, frozen
from torch import Tensor, fx

from qfunc.analysis.lockstep import TRANSPARENT, Ops
from qfunc.analysis.quantized_weights import Weight
from qfunc.analysis.replay import Replays, outputs_of
from qfunc.graph.constants import read_attr
from qfunc.ops.node import kind_of
from qfunc.specs._check import integer

Key = tuple[str, int]
"""The name of a weight's site, and bits."""


class Watch(Protocol):
    """Processes batches, and then returns the losses."""

    def add(self, arguments: tuple[Any, ...], number: int) -> Any:
        """Process one batch and return the output of the float network."""
        ...

    def losses(self) -> Mapping[Key, float]:
        """Return the loss of each weight with each number of bits."""
        ...


class Loss(Protocol):
    """A method that computes the losses of narrower weights."""

    def watch(self, ops: Ops, weights: Sequence[Weight]) -> Watch:
        """Return a `Watch` that processes the batches."""
        ...


@frozen
class OutputMse:
    """The mean squared error of the outputs with one weight quantized and everything else in float.

    L_l(b) = mean (y(w_l -> Q_b(w_l)) - y)^2 over all outputs and batches; the ops before the weight run only once.

    Source: Wu, Judd, Zhang, Isaev and Micikevicius, arXiv:2004.09602, section 6.1 (one at a time).

    >>> OutputMse()
    OutputMse()
    """

    def watch(self, ops: Ops, weights: Sequence[Weight]) -> Watch:
        """Return replays of the network for every weight and every number of bits."""
        return _OutputMse(ops, weights)


class _OutputMse:
    def __init__(self, ops: Ops, weights: Sequence[Weight]) -> None:
        replacements = {(w.site, b): (w.node, lambda _, value=value: value) for w in weights for b, value in w.narrowed}
        self.trials = Replays(ops, replacements, "mixed_precision")

    def add(self, arguments: tuple[Any, ...], number: int) -> Any:
        with torch.inference_mode():
            return self.trials.add(arguments, number)

    def losses(self) -> dict[Key, float]:
        agreements = {key: sums.agreement() for key, sums in self.trials.sums.items()}
        return {key: a.noise / max(a.elements, 1) for key, a in agreements.items()}


@frozen
class HessianTrace:
    """The mean curvature of a weight times the square error of its rounding.

    L_l(b) = tr(J_l^T J_l) / n_l  ||Q_b(w_l) - w_l||^2 / N, J_l the Jacobian of the N outputs with respect to the n_l
    elements of w_l: the Gauss-Newton part of the Hessian of half the squared error of the outputs.  The trace is estimated
    as the mean of ||J_l^T u||^2 over random signs u (Hutchinson), one backward pass each.

    Args:
        draws: The number of draws of u per batch.
        seed: The seed of the random generator.
    Raises:
        SpecError: fewer than one draw.
    Source: Dong, Yao, Cai et al., arXiv:1911.03852, section 3.1 and equation 8 (HAWQ-V2).

    >>> HessianTrace(draws=4)
    HessianTrace(draws=4, seed=0)
    """

    draws: int = field(default=8, validator=integer(1))
    seed: int = field(default=0, validator=integer(0))

    def watch(self, ops: Ops, weights: Sequence[Weight]) -> Watch:
        """Return backward passes of the float network."""
        return _Curvature(ops, weights, self.draws, torch.Generator().manual_seed(self.seed))


class _Curvature:
    def __init__(self, ops: Ops, weights: Sequence[Weight], draws: int, generator: torch.Generator) -> None:
        self.ops, self.weights, self.draws, self.generator = ops, weights, draws, generator
        weights_by_node = {w.node: read_attr(ops.model, w.node.all_input_nodes[0]).detach() for w in weights}
        self.leaves = {node: value.clone().requires_grad_() for node, value in weights_by_node.items()}
        self.traces = dict.fromkeys(self.leaves, 0.0)
        self.outputs = 0

    def add(self, arguments: tuple[Any, ...], number: int) -> Any:
        values: dict[fx.Node, Any] = self.ops.inputs(arguments)
        with torch.enable_grad():
            for node in self.ops.nodes:
                if node in self.leaves:
                    values[node] = self.leaves[node]
                elif kind_of(node) in TRANSPARENT:
                    values[node] = values[node.all_input_nodes[0]]
                elif node.op != "placeholder":
                    values[node] = self.ops.call(node, values.__getitem__)
        returned = values[self.ops.nodes[-1]]
        outputs = [y for y in outputs_of(returned) if y.requires_grad]
        self.outputs += sum(y.numel() for y in outputs)
        for draw in range(self.draws if outputs else 0):
            signs = [self._signs(y) for y in outputs]
            more = draw + 1 < self.draws
            slopes = torch.autograd.grad(outputs, list(self.leaves.values()), signs, retain_graph=more, allow_unused=True)
            for node, slope in zip(self.leaves, slopes, strict=True):
                self.traces[node] += 0.0 if slope is None else float(slope.double().square().sum()) / self.draws
        return self.ops.returned(returned)

    def _signs(self, y: Tensor) -> Tensor:
        signs = torch.randint(0, 2, y.shape, generator=self.generator)
        return (2 * signs - 1).to(y)

    def losses(self) -> dict[Key, float]:
        by_key = {}
        for w in self.weights:
            mean = self.traces[w.node] / max(w.elements * self.outputs, 1)
            for bits, value in w.narrowed:
                by_key[w.site, bits] = mean * float((value.double() - self.leaves[w.node].detach().double()).square().sum())
        return by_key


__all__ = ["HessianTrace", "Key", "Loss", "OutputMse", "Watch"]

"""The loss at the outputs of a weight with fewer bits: measured, or estimated from the curvature."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable
from zlib import crc32

import torch
from attrs import field, frozen
from torch import Tensor, fx

from qfunc.analysis.lockstep import TRANSPARENT, Ops
from qfunc.analysis.metrics import Sums
from qfunc.analysis.operations.quantized_weights import Weight
from qfunc.analysis.replay import Replays, outputs_of, require_float_output
from qfunc.execution.batches import tensors_of
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


@runtime_checkable
class MergeableWatch(Protocol):
    """A watch that joins the sums of several processes."""

    def state(self) -> Any:
        """Return its sums: tensors and numbers in tuples and dicts."""
        ...

    def join(self, states: Sequence[Any]) -> None:
        """Replace its sums by the total of the states of all processes, in order."""
        ...


@runtime_checkable
class SquaredWatch(Protocol):
    """A watch of losses in squared units of the outputs."""

    def power(self) -> float:
        """Return the mean square of the outputs."""
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

    def state(self) -> dict[Key, Any]:
        return {key: sums.state() for key, sums in self.trials.sums.items()}

    def join(self, states: Sequence[dict[Key, Any]]) -> None:
        self.trials.sums = {key: Sums() for key in self.trials.sums}
        for key, sums in self.trials.sums.items():
            for state in states:
                sums.join(*state[key])

    def losses(self) -> dict[Key, float]:
        agreements = {key: sums.agreement() for key, sums in self.trials.sums.items()}
        return {key: a.noise / max(a.elements, 1) for key, a in agreements.items()}

    def power(self) -> float:
        agreement = next((sums.agreement() for sums in self.trials.sums.values()), None)
        return 0.0 if agreement is None else agreement.signal / max(agreement.elements, 1)


@frozen
class HessianTrace:
    """The mean curvature of a weight times the square error of its rounding.

    L_l(b) = tr(J_l^T J_l) / n_l  ||Q_b(w_l) - w_l||^2 / N, J_l the Jacobian of the N outputs with respect to the n_l
    elements of w_l: the Gauss-Newton part of the Hessian of half the squared error of the outputs.  The trace is estimated
    as the mean of ||J_l^T u||^2 over random signs u (Hutchinson), one backward pass each.  The signs depend on the seed and
    the values of the batch, so that they do not depend on the process that has it.

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
        return _Curvature(ops, weights, self.draws, self.seed)


class _Curvature:
    def __init__(self, ops: Ops, weights: Sequence[Weight], draws: int, seed: int) -> None:
        self.ops, self.weights, self.draws, self.seed = ops, weights, draws, seed
        weights_by_node = {w.node: read_attr(ops.model, w.node.all_input_nodes[0]).detach() for w in weights}
        self.leaves = {node: value.clone().requires_grad_() for node, value in weights_by_node.items()}
        self.traces = dict.fromkeys(self.leaves, 0.0)
        self.outputs, self.squares = 0, 0.0

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
        require_float_output(returned, "mixed_precision")
        outputs = [y for y in outputs_of(returned) if y.requires_grad]
        self.outputs += sum(y.numel() for y in outputs)
        self.squares += sum(float(y.detach().double().square().sum()) for y in outputs)
        generator = torch.Generator().manual_seed(_digest(arguments, self.seed))
        for draw in range(self.draws if outputs else 0):
            signs = [_signs(y, generator) for y in outputs]
            more = draw + 1 < self.draws
            slopes = torch.autograd.grad(outputs, list(self.leaves.values()), signs, retain_graph=more, allow_unused=True)
            for node, slope in zip(self.leaves, slopes, strict=True):
                self.traces[node] += 0.0 if slope is None else float(slope.double().square().sum()) / self.draws
        return self.ops.returned(returned)

    def state(self) -> tuple[dict[str, float], int, float]:
        return {node.name: trace for node, trace in self.traces.items()}, self.outputs, self.squares

    def join(self, states: Sequence[tuple[dict[str, float], int, float]]) -> None:
        self.traces = {node: sum((traces[node.name] for traces, _, _ in states), 0.0) for node in self.traces}
        self.outputs, self.squares = sum(n for _, n, _ in states), sum(squares for _, _, squares in states)

    def power(self) -> float:
        return self.squares / max(self.outputs, 1)

    def losses(self) -> dict[Key, float]:
        by_key = {}
        for w in self.weights:
            mean = self.traces[w.node] / max(w.elements * self.outputs, 1)
            for bits, value in w.narrowed:
                by_key[w.site, bits] = mean * float((value.double() - self.leaves[w.node].detach().double()).square().sum())
        return by_key


def _signs(y: Tensor, generator: torch.Generator) -> Tensor:
    return (2 * torch.randint(0, 2, y.shape, generator=generator) - 1).to(y)


def _digest(arguments: Any, seed: int) -> int:
    # 32 bits, because torch's CPU generator does not use more.
    found = crc32(str(seed).encode())
    for value in tensors_of(arguments):
        flat = value.detach().cpu().contiguous().reshape(-1)
        found = crc32(flat.view(torch.uint8).numpy().data if flat.numel() else b"", found)
    return found

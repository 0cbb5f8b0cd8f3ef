"""Qparams beside which the last bits of an arithmetic decide: values next to ties, and scales next to powers of two.

Random sums are rarely within 2^-18 of a tie, where multipliers of float32, of 31 bits and exact ones give other codes.
"""

from __future__ import annotations

import copy
import math
from typing import Any

import torch
from attrs import frozen
from torch import Tensor, fx

from qfunc.execution.batches import tensors_of
from qfunc.graph.constants import read_attr
from qfunc.graph.view import QuantizedModel
from qfunc.numerics.qparams import Affine
from qfunc.ops.definition import Trait
from qfunc.ops.node import has, slots
from qfunc.quantizers.fake_quantize import FakeQuantize
from qfunc.specs import Int, PerChannel, PerTensor, Scheme
from qfunc.transforms.reconcile import set_qparams

CANDIDATES = 1024
"""The number of values of a tensor of which the one nearest to a tie is kept."""


def beside_powers(calibrated: fx.GraphModule, seed: int = 0) -> fx.GraphModule:
    """Return a copy with scales 2^j (1 +- 2^-k), k from 8 to 24: sums that would be ties are next to them.

    Each scale that is estimated is rounded up to a power of two first; each channel of a weight has a k of its own.
    """
    twin, g = copy.deepcopy(calibrated), torch.Generator().manual_seed(seed)
    view, found = QuantizedModel(twin), dict[str, Affine]()
    for quantizer in view.quantizers:
        if not _is_free(quantizer.module):
            continue
        qparams = quantizer.module.qparams()
        scale = qparams.scale
        power = torch.exp2(torch.ceil(torch.log2(scale.abs().double())))
        k = torch.randint(8, 25, scale.shape, generator=g)
        sign = 2.0 * torch.randint(0, 2, scale.shape, generator=g) - 1
        found[quantizer.path] = qparams._replace(scale=torch.copysign(power * (1 + sign * 2.0**-k), scale).float())
    set_qparams(view, found)
    return twin


def beside_ties(calibrated: fx.GraphModule, example: Any, seed: int = 0) -> fx.GraphModule:
    """Return a copy whose scales put some value of each quantized tensor of `example` next to a tie.

    With one scale for each output channel of a weight, one value of each channel: the scale s_w of the channel becomes
    s_w f, and its weights and its bias are multiplied by f, so that its codes stay.  Elsewhere the scale of the tensor
    changes.  Scales that are tied, dictated, or powers of two stay as they are.
    """
    twin = copy.deepcopy(calibrated)
    _Mover(QuantizedModel(twin).evaluation_form, seed).run(*tensors_of(example), enable_io_processing=False)
    for module in twin.modules():
        if isinstance(module, FakeQuantize):
            module.cache.clear()
    return twin


@frozen
class Edges:
    """The values, in steps, beside which a rounding changes: ties, integers if `whole`, each minus `below` in magnitude.

    An arithmetic that rounds twice, to r fractional bits first, changes 2^-(r + 1) below a tie.
    """

    whole: bool = False
    below: Tensor | float = 0.0

    def near(self, ratio: Tensor) -> Tensor:
        """Return the five edges next to each ratio, along a new last axis."""
        count = torch.floor(ratio.abs())[..., None] + torch.arange(-2.0, 3.0, dtype=torch.float64)
        return (count + (0.0 if self.whole else 0.5) - self.below).copysign(ratio[..., None])

    def distance(self, ratio: Tensor) -> Tensor:
        """Return the distance of each ratio from the next edge."""
        moved = ratio.abs() + self.below + (0.0 if self.whole else 0.5)
        return (moved - torch.round(moved)).abs()


def next_to_edges(values: Tensor, step: Tensor, edges: Edges, g: torch.Generator) -> Tensor | None:
    """Return the float32 scale s near `step` for which one of the values v has its v / s nearest to an edge; None without any.

    v is in float64; |v| is above 3 steps.

    >>> s = next_to_edges(torch.tensor([7.4, 0.3]).double(), torch.tensor(1.0), Edges(), torch.Generator())
    >>> round(2 * 7.4 / s.item(), 4) % 2
    1.0
    """
    values = _drawn(values[values.abs() > 3 * step.double()].reshape(1, -1), g)[0]
    if not values.numel():
        return None
    edge = edges.near(values / step.double())
    scale = (values[:, None] / edge).float().flatten()
    return scale[edges.distance(values[:, None] / scale.double().reshape(edge.shape)).flatten().argmin()]


def _drawn(rows: Tensor, g: torch.Generator) -> Tensor:
    return rows[:, torch.randperm(rows.shape[1], generator=g)[:CANDIDATES]] if rows.shape[1] > CANDIDATES else rows


def _is_free(module: FakeQuantize) -> bool:
    # True for an estimated scale of integers that no rule of the target binds to powers of two.
    scheme = module.site.scheme
    plain = isinstance(scheme.format, Int) and isinstance(scheme.scale.shared, PerTensor | PerChannel)
    return isinstance(module.site.value, Scheme) and not module.dynamic and plain and not scheme.scale.power_of_two


def _constant(module: FakeQuantize, x: Tensor) -> Tensor:
    # The value of a constant in float64, in which (q - z) s is exact; a bias has the exact product of the two scales.
    scheme = module.site.scheme
    if module.dynamic or not isinstance(scheme.format, Int) or not isinstance(scheme.scale.shared, PerTensor | PerChannel):
        simulated: Tensor = module(x).detach().double()
        return simulated
    codes, qparams = module.export(x)
    scale = qparams.scale.double()
    for i, factor in enumerate(module.factors):
        exact = factor.scales().double().flatten()
        scale = exact if i == 0 else scale * exact
    value: Tensor = (codes.double() - qparams.zero_point.double()) * scale
    return value


class _Mover(fx.Interpreter):
    """Runs a model in float64, and moves the scales of each quantizer when it comes to it."""

    def __init__(self, form: fx.GraphModule, seed: int) -> None:
        super().__init__(form, garbage_collect_values=False)
        self.extra_traceback = False
        self.form, self.g, self.seed = form, torch.Generator().manual_seed(seed), seed
        self.readers: dict[str, int] = {}
        for node in form.graph.nodes:
            if node.op == "get_attr":
                self.readers[str(node.target)] = self.readers.get(str(node.target), 0) + len(node.users)

    def run_node(self, n: fx.Node) -> Any:
        """Return the node's value in float64."""
        module = self._quantizer(n)
        if module is None:
            value = super().run_node(n)
            return value.double() if isinstance(value, Tensor) and value.is_floating_point() else value
        if module.dynamic or module.site.constant:
            return _constant(module, self.env[n.all_input_nodes[0]].float())
        if _is_free(module) and not module.site.tie and not (self._move_channels(n, module)):
            self._move_tensor(n, module)
        scale, zero = module.qparams().scale.double(), module.qparams().zero_point.double()
        fmt: Any = module.site.scheme.format
        x = self.env[n.all_input_nodes[0]]
        if not isinstance(fmt, Int) or scale.ndim:
            return module(x.float()).double()
        return ((x / scale + zero).round().clamp(fmt.qmin, fmt.qmax) - zero) * scale

    def _quantizer(self, n: fx.Node) -> FakeQuantize | None:
        module = self.form.get_submodule(str(n.target)) if n.op == "call_module" else None
        return module if isinstance(module, FakeQuantize) else None

    def _move_tensor(self, n: fx.Node, module: FakeQuantize) -> None:
        qparams, x = module.qparams(), self.env[n.all_input_nodes[0]]
        if qparams.scale.ndim or not isinstance(x, Tensor) or not x.is_floating_point():
            return
        scale = next_to_edges(self._inside(x, module).flatten(), qparams.scale, self._edges(n, qparams.scale), self.g)
        if scale is not None:
            module.set_qparams(qparams._replace(scale=scale))

    def _edges(self, n: fx.Node, step: Tensor) -> Edges:
        # For odd seeds, those of two roundings, the first of which keeps the bits that a multiplier of 31 bits has behind 31.
        if self.seed % 4 == 3:
            return Edges(whole=True)
        root = n.all_input_nodes[0]
        while len(root.all_input_nodes) == 1 and has(root, Trait.ACTIVATION):
            root = root.all_input_nodes[0]
        operands = [self._quantizer(node) for slot, node in slots(root) if slot != "bias"]
        if self.seed % 2 == 0 or not operands or any(m is None or m.dynamic or m.scales().numel() > 1 for m in operands):
            return Edges()
        multiplier = torch.stack([m.scales().double().reshape(()) for m in operands if m is not None]).prod() / step.double()
        bits = -1 - math.floor(math.log2(float(multiplier)))
        return Edges(below=2.0 ** -(bits + 1) if 0 < bits < 24 else 0.0)

    def _inside(self, x: Tensor, module: FakeQuantize) -> Tensor:
        # The values that are not clamped, and 0 for the others.
        qparams, fmt = module.qparams(), module.site.scheme.format
        assert isinstance(fmt, Int)
        index = x / qparams.scale.double() + qparams.zero_point.double()
        return torch.where((index > fmt.qmin) & (index < fmt.qmax), x, 0.0)

    def _move_channels(self, n: fx.Node, module: FakeQuantize) -> bool:
        # True if each channel of the weight before this quantizer got a scale of its own.
        chain = self._chain(n)
        tensors = dict(slots(chain[0])) if chain else {}
        if "weight" not in tensors or module.qparams().scale.ndim:
            return False
        root, weight = chain[0], self._quantizer(tensors["weight"])
        if weight is None or not _is_free(weight) or bool(weight.qparams().zero_point.any()):
            return False
        scale, x = weight.qparams().scale.double(), self.env[root]
        axis = x.ndim - 1 if scale.ndim == 2 else 1
        nodes = [tensors[s] for s in ("weight", "bias") if s in tensors]
        params = [self._own(node) for node in nodes]
        if scale.numel() != x.shape[axis] or any(p is None for p in params):
            return False
        rows = _drawn(self._inside(x, module).movedim(axis, 0).flatten(1), self.g)
        bias = self._quantizer(nodes[1]) if len(nodes) > 1 else None
        offset = None if bias is None or weight not in bias.factors else (bias, params[1])
        new = self._scales(rows, module.qparams().scale.double(), weight, offset).reshape(scale.shape)
        codes = weight.export(params[0])[0]
        with torch.no_grad():
            params[0].copy_(codes * new)
            weight.set_qparams(weight.qparams()._replace(scale=new), params[0])
            for other in params[1:]:
                other.copy_((other.double() * (new.double() / scale).flatten()).float())
        for node in (*self._before(tensors), *chain):
            self.env[node] = self.run_node(node)
        return True

    def _scales(self, rows: Tensor, step: Tensor, weight: FakeQuantize, offset: Any) -> Tensor:
        # For each row of values, the scale of its weight's channel that puts one of them next to a tie of the step.
        ratio, scale, edges = rows / step, weight.scales().double().flatten(), Edges(self.seed % 4 == 3)
        edge = edges.near(ratio)
        new = (scale[:, None, None] * (edge * step / rows[..., None])).float()
        factor = new.double() / scale[:, None, None]
        value = rows[..., None] * factor
        if offset is not None:  # the bias is rounded to the new steps of the sum
            bias, b = offset
            (other,) = (f.scales().double().reshape(()) for f in bias.factors if f is not weight)
            sums = torch.round(rows / (other * scale)[:, None]) - bias.export(b)[0].double()[:, None]
            moved = torch.round((b.double()[:, None, None] * factor).float().double() / (other.float() * new).double())
            value = (sums[..., None] + moved) * (new.double() * other)
        distance = edges.distance(value / step)
        distance[(ratio.abs() < 3)[..., None].expand_as(edge) | ~(new > 2.0**-126) | torch.isinf(new)] = torch.inf
        least, best = distance.flatten(1).min(1, keepdim=True)
        return torch.where(torch.isfinite(least), new.flatten(1).gather(1, best), scale.float()[:, None])[:, 0]

    def _chain(self, n: fx.Node) -> list[fx.Node]:
        # The weighted op before a quantizer, and the activations between the two; [] if there is none.
        found: list[fx.Node] = [n.all_input_nodes[0]]
        while not has(found[0], Trait.WEIGHTED):
            before = found[0].all_input_nodes
            if len(before) != 1 or not has(found[0], Trait.ELEMENTWISE) or self._quantizer(before[0]) is not None:
                return []
            found.insert(0, before[0])
        return found

    def _before(self, tensors: dict[str, fx.Node]) -> list[fx.Node]:
        # The nodes that compute the weight and the bias: their constants, and their quantizers.
        found: list[fx.Node] = []
        for slot, node in tensors.items():
            if slot != "input":
                found += [*node.all_input_nodes, node]
        return found

    def _own(self, node: fx.Node) -> Any:
        # The parameter behind a slot, if only this op reads it.
        constant = node if node.op == "get_attr" else node.all_input_nodes[0]
        if constant.op != "get_attr" or self.readers[str(constant.target)] != 1:
            return None
        return read_attr(self.form, constant).data

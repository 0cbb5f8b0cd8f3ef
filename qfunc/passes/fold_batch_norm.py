"""Fold ops that scale and shift channels by constants into the op before or after them, with evaluation semantics.

With factor f and shift s per channel (of a BatchNorm: f = gamma / sqrt(running_var + eps), s = beta - running_mean * f):
after an op,  w' = w * f  along the outputs  and  b' = s + b * f;  before an op,  w' = w * f  along the inputs  and
b' = b + sum(w * s),  which is exact only if the op reads no padding, or s = 0.
"""

from __future__ import annotations

import copy
from collections.abc import Container
from typing import Any

import torch
from attrs import evolve
from torch import fx, nn

from qfunc.errors import SpecError
from qfunc.graph.channel_affine import ChannelAffine, ChannelAffines
from qfunc.graph.constants import AttributeNodes, read_attr, store, value_of
from qfunc.graph.data_movement import TRANSPARENT, moved_input, value_readers
from qfunc.graph.linear_op import LinearOp, after, before, linear_op
from qfunc.graph.record import attach, record_of
from qfunc.graph.selectors import Context, matches
from qfunc.ops.definition import Trait
from qfunc.ops.node import has, kind_of, slots
from qfunc.passes.share_folded_constants import SharedConstants
from qfunc.specs import FusionStep, Target

_RANKS: dict[Any, tuple[int, ...]] = {nn.BatchNorm1d: (0, 1), nn.BatchNorm2d: (2,), nn.BatchNorm3d: (3,)}


def fold_batch_norms(model: fx.GraphModule, target: Target | None = None) -> fx.GraphModule:
    """Return a copy in which BatchNorms are folded into the conv, transposed conv or linear next to them.

    Products, quotients, sums and differences with constants fold too, as of a frozen BatchNorm, x * scale + bias, or of a
    scaled branch, unless an op without a fold reads the same weight, as an embedding; and so do the steps of the
    target's fusions that define `FusionStep.fold`.  If no op before a BatchNorm can take it, it folds into its only
    reader, if that is exact.  A dropout between the two stays, and then drops what is normed already, or what is not yet.  A
    BatchNorm1d next to a linear is assumed to normalize the linear's features, which is
    true of inputs of rank 2; `calibrate` refuses others.  A BatchNorm2d that cannot fold becomes an equivalent
    depthwise 1x1 conv, whose weight all calls of the BatchNorm share; other BatchNorms stay.  Weights are computed in
    float64 and stored in their dtype.  Ops that share a weight still share it if the same constants are folded into each;
    else each gets a copy, in graph order.

    Raises:
        SpecError: a `FusionStep.fold` of the target returns something else than a weight and a bias.

    >>> from qfunc.frontend.capture import capture
    >>> net = capture()(nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)).eval())
    >>> [n.name for n in fold_batch_norms(net).graph.nodes]
    ['input_1', '_0_weight', '_0_bias', '_0', 'output']
    """
    return fold_into(copy.deepcopy(model), target)


def fold_into(model: fx.GraphModule, target: Target | None, training: Container[str] = ()) -> fx.GraphModule:
    """Fold as `fold_batch_norms` does, but in place, and return the model; parameters are replaced, none is changed.

    Constants behind the BatchNorms with the paths `training` do not fold: the arithmetic of training has the BatchNorm last.
    """
    folding = _Folding(model, target, training)
    folding.run()
    model.graph.eliminate_dead_code(is_impure_node=lambda n: n.op in ("placeholder", "output"))
    model.recompile()
    record = record_of(model)
    if record is not None:
        names = {n.name for n in model.graph.nodes}
        facts = {k: v for k, v in record.facts.items() if k in names}
        facts |= {conv: record.facts[norm] for conv, norm in folding.convs.items() if norm in record.facts and conv in names}
        unfolded = (*record.unfolded, *dict.fromkeys(folding.misses))
        attach(model, evolve(record, facts=facts, rank_two=(*record.rank_two, *folding.linears), unfolded=unfolded))
    return model


class _Folding:
    """One pass over a graph, in place; `misses` are (path of the op, path of the step, reason)."""

    def __init__(self, model: fx.GraphModule, target: Target | None, training: Container[str]) -> None:
        self.model, self.norms, self.training = model, ChannelAffines(model), training
        self.shared = SharedConstants(model, self.norms.constant)
        self.attributes = AttributeNodes(model.graph)
        self.context = Context(model, () if target is None else target.ops)
        steps = [] if target is None else [(f, s) for f in target.fusions for s in f.then if s.fold is not None]
        self.steps, self.kinds = steps, () if target is None else tuple(op.kind for op in target.ops)
        self.linears: list[str] = []
        self.closed: set[fx.Node] = set()  # ops with a BatchNorm that trains
        self.convs: dict[str, str] = {}  # name of a new conv -> name of its BatchNorm
        self.misses: list[tuple[str, str, str]] = []

    def run(self) -> None:
        """Fold everything that folds."""
        for node in [n for n in self.model.graph.nodes if n.op == "call_function"]:
            while has(node, Trait.WEIGHTED) and self._fold_after(node):
                pass
        # Find all norms first: a conv has the path of the norm that it replaces, which other nodes may call too.
        norms = [(node, norm) for node in self.model.graph.nodes if (norm := self.norms.at(node)) is not None]
        for node, norm in reversed(norms):
            if not self._fold_before(node, norm) and isinstance(self._module(node), nn.BatchNorm2d):
                self._as_conv(node, norm)
        for node in self.model.graph.nodes:
            self._report_unfolded(node)
        self.shared.run()

    def _report_unfolded(self, node: fx.Node) -> None:
        # Report a user-defined op that a fusion folds only after another op.
        fusion = next((f for f, s in self.steps if matches(s.op, node, self.context)), None)
        if fusion is None or self.context.kind(node) not in self.kinds or not node.all_input_nodes:
            return
        source = node.all_input_nodes[0]
        while kind_of(source) in TRANSPARENT:
            source = moved_input(source)
        if not matches(fusion.root, source, self.context):
            self._miss(source, node, f"{source.name!r}, which it follows, is not {fusion.root!r}")

    def _fold_after(self, node: fx.Node) -> bool:
        # Fold one reader into an op; return True if one was folded, since more may follow.
        op, readers = linear_op(self.model, node, self.attributes), value_readers(node)
        for reader in readers:
            step, norm = self._step(node, reader), self.norms.at(reader)
            if step is None and norm is None:
                continue
            if len(readers) > 1:
                self._miss(node, reader, f"{node.name!r} is read {len(readers)} times, and a fused op may be read only once")
            elif op is None:
                self._miss(node, reader, f"the weight or bias of {node.name!r} is computed, not a parameter")
            elif step is not None:
                return self._fold_step(op, reader, step)
            elif norm is not None and self._fits(op, reader, norm, op.outputs):
                self._fold_norm(op, norm, *after(op.weight(), op.bias(), norm.factor, norm.shift))
                return True
        if op is None or len(readers) != 1:
            return False
        stored = op.stored
        chain = self.norms.chain_after(node, op.outputs, stored.ndim - 2, stored.dtype)
        if chain is None or node in self.closed or not self._takes(op, chain):
            return False
        weight, bias = after(op.weight(), op.bias(), chain.factor, chain.shift)
        self._fold_norm(op, chain, weight, bias if op.constants[1] or chain.shift.count_nonzero() else None)
        return True

    def _takes(self, op: LinearOp, chain: ChannelAffine) -> bool:
        # A whole norm always folds.  Else a weight that an embedding reads, too, stays one, and a constant that is computed
        # from a parameter stays, for this trains.  An int may be a size, which only torch.export knows: both captures keep it.
        kinds = {kind_of(node) for node in chain.nodes}
        if kinds & {"mul", "div"} and kinds & {"add", "sub"}:
            return True
        if any(type(a) is int for node in chain.nodes for a in node.args):
            return False
        constants = [n for node in chain.nodes for n in node.all_input_nodes if n in self.norms.constant]
        return all(has(n, Trait.WEIGHTED) for n in self.attributes.users(op.constants[0])) and not any(
            map(self._trains, constants)
        )

    def _trains(self, constant: fx.Node) -> bool:
        pending, seen, computed, trained = [constant], {constant}, False, False
        while pending:
            node = pending.pop()
            new = [n for n in node.all_input_nodes if n not in seen]
            seen.update(new)
            pending += new
            computed |= node.op != "get_attr" and not has(node, Trait.MOVES_VALUES)
            trained |= node.op == "get_attr" and read_attr(self.model, node).requires_grad
        return computed and trained

    def _fold_before(self, node: fx.Node, norm: ChannelAffine) -> bool:
        # Fold a norm into its only reader; return True if it was folded.
        readers = value_readers(node)
        op = linear_op(self.model, next(iter(readers)), self.attributes) if len(readers) == 1 else None
        if op is None or [s for s, n in slots(op.node) if n is (node, *readers[op.node])[-1]] != ["input"]:
            return False
        if not self._fits(op, node, norm, op.inputs):
            return False
        if op.pads and bool(norm.shift.count_nonzero()):
            self._miss(op.node, node, "the op reads padding, which the norm before it does not shift")
            return False
        folded = before(op.weight(), op.bias(), norm.factor, norm.shift, op.groups)
        self.shared.put(op, norm.nodes, *folded)
        if op.kind == "linear":
            self.linears.append(op.node.name)
        node.replace_all_uses_with(node.all_input_nodes[0])
        self.model.graph.erase_node(node)
        return True

    def _fits(self, op: LinearOp, node: fx.Node, norm: ChannelAffine, channels: int) -> bool:
        ranks = _RANKS.get(type(self._module(node)), (op.spatial,))
        if norm.factor.numel() == channels and op.spatial in ranks:
            return True
        found = f"it norms {norm.factor.numel()} entries of axis 1, which are not the channels of {op.node.name!r}"
        self._miss(op.node, node, found)
        return False

    def _fold_norm(self, op: LinearOp, norm: ChannelAffine, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self.closed |= {op.node} if str(norm.nodes[0].target) in self.training else set()
        self.shared.put(op, norm.nodes, weight, bias)
        if op.kind == "linear" and self.norms.at(norm.nodes[0]) is not None:
            self.linears.append(op.node.name)
        self._absorb(op.node, norm.nodes)

    def _absorb(self, op: fx.Node, nodes: tuple[fx.Node, ...]) -> None:
        for node in nodes:
            op = _read_by(node, op)
            node.replace_all_uses_with(op)
            self.model.graph.erase_node(node)

    def _step(self, op: fx.Node, reader: fx.Node) -> FusionStep | None:
        for fusion, step in self.steps:
            if not matches(fusion.root, op, self.context) or not matches(step.op, reader, self.context):
                continue
            if fusion.when is None or matches(fusion.when, op, self.context):
                return step
            self._miss(op, reader, f"the fusion requires {fusion.when!r}")
        return None

    def _fold_step(self, op: LinearOp, node: fx.Node, step: FusionStep) -> bool:
        source = _read_by(node, op.node)
        operands = [a for a in node.args if a is not source]
        constants = all(n in self.norms.constant for n in node.all_input_nodes if n is not source)
        if not constants or len(operands) != len(node.args) - 1:
            self._miss(op.node, node, f"{node.name!r} reads more than {op.node.name!r} and constants")
            return False
        read = lambda n: value_of(self.model, n, self.norms.known).clone()  # noqa: E731
        args, kwargs = fx.map_arg((tuple(operands), node.kwargs), read)
        module = self._module(node)
        owner = () if module is None else (copy.deepcopy(module).double().eval(),)
        weight, bias = op.weight(), op.bias()
        found = _call_fold(step, weight, bias, (*owner, *args), kwargs, self.context.fact(op.node).path)
        self.shared.put(op, (node,), *(v.detach().double() for v in found))
        self._absorb(op.node, (node,))
        return True

    def _as_conv(self, node: fx.Node, norm: ChannelAffine) -> None:
        module: Any = self._module(node)
        path, dtype = str(node.target), module.get_buffer("running_var").dtype
        if isinstance(self.model.get_submodule(path), nn.BatchNorm2d) and not self._is_read(path):
            self.model.set_submodule(path, nn.Module())
        trained = [p.requires_grad for p in (module.weight, module.bias) if p is not None] or [True]
        values = (("weight", norm.factor.reshape(-1, 1, 1, 1), trained[0]), ("bias", norm.shift, trained[-1]))
        weight, bias = (store(self.model, node, f"{path}.{n}", v.to(dtype), trained=t) for n, v, t in values)
        with self.model.graph.inserting_before(node):
            args = (node.args[0], weight, bias, 1, 0, 1, norm.factor.numel())
            conv = self.model.graph.call_function(torch.conv2d, args)
        self.shared.create(node, conv, path)
        self.convs[conv.name] = node.name
        node.replace_all_uses_with(conv)
        self.model.graph.erase_node(node)

    def _is_read(self, path: str) -> bool:
        return any(read.startswith(f"{path}.") for read in self.shared.paths)

    def _module(self, node: fx.Node) -> nn.Module | None:
        return self.shared.modules[str(node.target)] if node.op == "call_module" else None

    def _miss(self, op: fx.Node, step: fx.Node, reason: str) -> None:
        self.misses.append((self.context.fact(op).path, self.context.fact(step).path, reason))


def _read_by(node: fx.Node, op: fx.Node) -> fx.Node:
    # The node by which a reader gets the value of an op: the op, or the last dropout between the two.
    return (op, *value_readers(op)[node])[-1]


def _call_fold(step: FusionStep, weight: torch.Tensor, bias: torch.Tensor, args: Any, kwargs: Any, path: str) -> Any:
    # Return the result of a user-defined fold, which must have the shapes of its arguments.
    where = f"FusionStep.fold, {getattr(step.fold, '__name__', step.fold)} for op {path!r}"
    shapes = [tuple(v.shape) for v in (weight, bias)]
    wanted, do = (
        f"a finite weight of shape {shapes[0]} and a bias of shape {shapes[1]}",
        "Return (weight, bias), the output channels first.",
    )
    try:
        found = step.fold(weight.clone(), bias.clone(), *args, **kwargs) if step.fold is not None else None
    except Exception as e:
        do = "It is called with weight, bias, and the step's module or constants."
        raise SpecError(where=where, found=f"{type(e).__name__}: {e}", wanted=wanted, do=do) from e
    if isinstance(found, tuple | list) and [tuple(getattr(v, "shape", (-1,))) for v in found] == shapes:
        if all(isinstance(v, torch.Tensor) and bool(v.isfinite().all()) for v in found):
            return found
        summary = "NaN or infinite values"
    else:
        parts = found if isinstance(found, tuple | list) else [found]
        summary = ", ".join(str(tuple(v.shape)) if isinstance(v, torch.Tensor) else type(v).__name__ for v in parts)
    raise SpecError(where=where, found=summary, wanted=wanted, do=do)

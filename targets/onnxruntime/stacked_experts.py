"""Write mixtures of experts as ONNX Runtime's QMoE."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import onnx
from attrs import frozen
from onnx import helper, numpy_helper

from qfunc.lowering.qdq.qparams import Array
from qfunc.targets.onnxruntime.block_weights import DOMAIN, OPERATOR

MIXTURE = "QMoE"
_LEVEL, _ALL = 4, 1 << 31


@frozen(eq=False)
class _Expert:
    # A mixture's part: down(silu(g) l) times a column of the shares.
    input: str
    shares: str
    column: int
    up: onnx.NodeProto
    down: onnx.NodeProto
    inside: tuple[onnx.NodeProto, ...]


def with_stacked_experts(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model, in which a QMoE takes the place of each sum of experts whose layers are MatMulNBits of one form.

    Its routing weights are the shares: an expert computes the rows with a share above 1e-8.  Rows of the first weights are a
    gate and an up channel in turns, and k is the number of experts.

    Source: ONNX Runtime, docs/ContribOperators.md, com.microsoft.QMoE.
    """
    graph = _Graph(model)
    made: dict[int, onnx.NodeProto] = {}
    gone: set[int] = set()
    for node in model.graph.node:
        if node.op_type == "Add" and (found := graph.mixture(node)) is not None:
            experts, inside = found
            made[id(node)] = graph.stacked(node, experts)
            gone.update(id(n) for n in inside)
    if not made:
        return model
    kept = [made.get(id(n), n) for n in model.graph.node if id(n) in made or id(n) not in gone]
    result = onnx.ModelProto()
    result.CopyFrom(model)
    del result.graph.node[:], result.graph.initializer[:]
    result.graph.node.extend(kept)
    read = {name for n in kept for name in n.input}
    result.graph.initializer.extend(t for t in (*model.graph.initializer, *graph.made) if t.name in read)
    written = {name for n in kept for name in n.output}
    infos = [i for i in model.graph.value_info if i.name in written]
    del result.graph.value_info[:]
    result.graph.value_info.extend(infos)
    return result


class _Graph:
    def __init__(self, model: onnx.ModelProto) -> None:
        self.nodes = list(model.graph.node)
        self.producers = {name: n for n in self.nodes for name in n.output}
        self.constants = {t.name: t for t in model.graph.initializer}
        self.readers: dict[str, list[onnx.NodeProto]] = {}
        for node in self.nodes:
            for name in node.input:
                self.readers.setdefault(name, []).append(node)
        self.outputs = {o.name for o in model.graph.output}
        self.made: list[onnx.TensorProto] = []

    def mixture(self, total: onnx.NodeProto) -> tuple[list[_Expert], list[onnx.NodeProto]] | None:
        """Return the experts and all nodes of the mixture that an Add ends, or None."""
        if any(r.op_type == "Add" and r.input[0] == total.output[0] for r in self.readers.get(total.output[0], [])):
            return None
        sums, terms = [], []
        name = total.output[0]
        while (node := self._producer(name, "Add")) is not None:
            sums.append(node)
            terms.append(node.input[1])
            name = node.input[0]
        found = [self._expert(term) for term in (name, *reversed(terms))]
        experts = [e for e in found if e is not None]
        if len(experts) < len(found) or [e.column for e in experts] != list(range(len(experts))):
            return None
        if len({(e.input, e.shares) for e in experts}) > 1 or self._columns(experts[0].shares) != len(experts):
            return None
        inside = [*(n for e in experts for n in e.inside), *sums]
        held = {id(n) for n in inside}
        for name in (name for n in inside if n is not total for name in n.output):
            if name in self.outputs or any(id(r) not in held for r in self.readers.get(name, [])):
                return None
        return (experts, inside) if self._of_one_form(experts) else None

    def _producer(self, name: str, kind: str) -> onnx.NodeProto | None:
        node = self.producers.get(name)
        return node if node is not None and node.op_type == kind else None

    def _expert(self, name: str) -> _Expert | None:
        term = self._producer(name, "Mul")
        down = None if term is None else self._producer(term.input[0], OPERATOR)
        column = None if term is None else self._producer(term.input[1], "Slice")
        if term is None or down is None or column is None:
            return None
        ends = [self._integers(n) for n in column.input[1:]]
        first = ends[0][0] if ends and ends[0] else -1
        if ends != [[first], [first + 1], [1], [1]]:
            return None
        taken: tuple[onnx.NodeProto, ...] = ()
        shares = column.input[0]
        rows = self._producer(shares, "Slice")
        if rows is not None:  # all rows, as torch.export writes the first index of t[:, e]
            start, end, axes, steps = (self._integers(n) for n in rows.input[1:])
            if [start, axes, steps] != [[0], [0], [1]] or not end or end[0] < _ALL:
                return None
            taken, shares = (rows,), rows.input[0]
        product = self._producer(down.input[0], "Mul")
        curve = None if product is None else self._producer(product.input[0], "Mul")
        logistic = None if curve is None else self._producer(curve.input[1], "Sigmoid")
        if product is None or curve is None or logistic is None or logistic.input[0] != curve.input[0]:
            return None
        halves = self._producer(curve.input[0], "Split")
        if halves is None or list(halves.output) != [curve.input[0], product.input[1]]:
            return None
        up = self._producer(halves.input[0], OPERATOR)
        if up is None:
            return None
        inside = (up, halves, logistic, curve, product, down, *taken, column, term)
        return _Expert(up.input[0], shares, first, up, down, inside)

    def _integers(self, name: str) -> list[int] | None:
        return [int(v) for v in numpy_helper.to_array(self.constants[name]).ravel()] if name in self.constants else None

    def _columns(self, shares: str) -> int | None:
        # The depth of the one-hot rows whose sum the shares are.
        for kind in ("ReduceSum", "Mul", "Cast"):
            node = self._producer(shares, kind)
            if node is None:
                return None
            shares = node.input[0]
        one_hot = self._producer(shares, "OneHot")
        depth = None if one_hot is None else self._integers(one_hot.input[1])
        return depth[0] if depth else None

    def _of_one_form(self, experts: Iterable[_Expert]) -> bool:
        forms = set()
        for role, node in ((role, n) for e in experts for role, n in (("up", e.up), ("down", e.down))):
            fields = _fields(node)
            zeros, bias = (len(node.input) > i and bool(node.input[i]) for i in (3, 5))
            k, block = fields["K"], fields["block_size"]
            if k % block or fields["bits"] < 4 or fields["accuracy_level"] != _LEVEL or (zeros and k == block):
                return False
            forms |= {(fields["bits"], block, zeros), (role, fields["N"], k, bias)}
        return len(forms) == 3

    def stacked(self, total: onnx.NodeProto, experts: list[_Expert]) -> onnx.NodeProto:
        """Return the QMoE of a mixture."""
        names: dict[str, str] = {}
        for role, layers in (("up", [e.up for e in experts]), ("down", [e.down for e in experts])):
            for part, place in (("codes", 1), ("scales", 2), ("zero_points", 3), ("bias", 5)):
                held = [n.input[place] if len(n.input) > place else "" for n in layers]
                if all(held):
                    stack = np.stack([self._rows(name, role) for name in held])
                    names[f"{role}.{part}"] = self._constant(f"{total.name}.{role}.{part}", stack)
        fields, first = _fields(experts[0].up), experts[0]
        inputs = [
            first.input, first.shares, names["up.codes"], names["up.scales"], names.get("up.bias", ""),
            names["down.codes"], names["down.scales"], names.get("down.bias", ""), "", "", "",
            names.get("up.zero_points", ""), names.get("down.zero_points", ""), "", first.shares,
        ]  # fmt: skip
        return helper.make_node(
            MIXTURE, inputs, list(total.output), name=total.name, domain=DOMAIN, k=len(experts),
            expert_weight_bits=fields["bits"], block_size=fields["block_size"], accuracy_level=_LEVEL,
            activation_type="swiglu", swiglu_fusion=1, activation_alpha=1.0, activation_beta=0.0, normalize_routing_weights=0,
        )  # fmt: skip

    def _rows(self, name: str, role: str) -> Array:
        # The array of a weight by rows [N, ...]; those of gates and of up channels in turns.
        array = np.asarray(numpy_helper.to_array(self.constants[name]))
        rows = array.reshape(len(array), -1) if array.ndim > 1 else array
        return np.stack(np.split(rows, 2), axis=1).reshape(rows.shape) if role == "up" else rows

    def _constant(self, name: str, array: Array) -> str:
        self.made.append(numpy_helper.from_array(np.ascontiguousarray(array), name))
        return name


def _fields(node: onnx.NodeProto) -> Mapping[str, Any]:
    return {a.name: a.i for a in node.attribute}

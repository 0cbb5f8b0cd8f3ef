"""Convert ONNX models to opsets before 13, and to another IR version.

Each operator keeps the form that it has in the model if the older opset has the same form: as many inputs, and the node's
attributes with the same defaults in ONNX's schemas.  Squeeze, Unsqueeze, Split, reductions, Softmax, LogSoftmax, Resize, the
comparisons with equality and the operators in `EARLIER` are rewritten.  Other operators are refused by name.

Source: ONNX operator schemas, as `onnx.defs` holds them; ONNX docs/Versioning.md.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from qfunc.errors import DeployError, first_line
from qfunc.graph.constants import UniqueNames
from qfunc.lowering.onnx.builder import EARLIER, GraphBuilder
from qfunc.lowering.onnx.opset import WRITTEN

_FUNCTIONS, _FLOAT8, _INT4 = 8, 9, 10  # the IR versions that introduced them
_LATER_TYPES: dict[int, int] = {
    **dict.fromkeys((TensorProto.FLOAT8E4M3FN, TensorProto.FLOAT8E4M3FNUZ, TensorProto.FLOAT8E5M2), _FLOAT8),
    **dict.fromkeys((TensorProto.INT4, TensorProto.UINT4), _INT4),
}
_WITH_EQUALITY = {"GreaterOrEqual": "Greater", "LessOrEqual": "Less"}


def to_bytes(model: onnx.ModelProto, lowering: Any) -> bytes:
    """Return the file of a model in the opset and the IR version of a lowering.

    Raises:
        DeployError: as `at_version`.
    """
    content: bytes = at_version(model, lowering).SerializeToString(deterministic=True)
    return content


def at_version(model: onnx.ModelProto, lowering: Any) -> onnx.ModelProto:
    """Return a model in the opset and the IR version of a lowering, which are its `opset` and `ir_version`.

    An IR version of None is the one that introduced the opset, or the model's functions or types.

    Raises:
        DeployError: an operator without a form in that opset, or content that the IR version lacks; names both.

    >>> from qfunc.targets.runtimes import SnpeEncodings
    >>> model = onnx.parser.parse_model(
    ...     '''<ir_version: 10, opset_import: ["": 13]> agraph (float[2] x) => (float[1, 2] y)
    ...     <int64[1] axes = {0}> { y = Unsqueeze(x, axes) }'''
    ... )
    >>> made = at_version(model, SnpeEncodings(opset=11))
    >>> made.ir_version, made.opset_import[0].version, made.graph.node[0].attribute[0].ints
    (6, 11, [0])
    """
    made = onnx.ModelProto()
    made.CopyFrom(model)
    name, opset = type(lowering).__name__, lowering.format.opset
    if opset < WRITTEN:
        _Older(made, opset, name).convert()
    _set_ir_version(made, opset, lowering.ir_version, name)
    return made


def _set_ir_version(model: onnx.ModelProto, opset: int, wanted: int | None, name: str) -> None:
    stored = [(t.name, _LATER_TYPES.get(t.data_type, 0)) for t in model.graph.initializer]
    content = [("functions", _FUNCTIONS)] if model.functions else []
    content += [(f"the tensor {tensor!r} of its type", since) for tensor, since in stored]
    what, least = max(content, key=lambda c: c[1], default=("", 0))
    if wanted is not None and wanted < least:
        do = f"Write {name}(ir_version={least}), or leave it out."
        raise DeployError(
            where=f"{name}.ir_version", found=f"{wanted} with {what}", wanted=f"IR version {least} or later", do=do
        )
    model.ir_version = wanted or max(least, helper.find_min_ir_version_for([helper.make_opsetid("", opset)]))


class _Older:
    """Converts a model to an older opset, in place."""

    def __init__(self, model: onnx.ModelProto, opset: int, lowering: str) -> None:
        self.model, self.opset, self.lowering = model, opset, lowering
        self.newer = next(o.version for o in model.opset_import if not o.domain)
        self.constants = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
        graph = onnx.shape_inference.infer_shapes(model).graph
        values = (*graph.value_info, *graph.input, *graph.output)
        self.ranks = {v.name: len(v.type.tensor_type.shape.dim) for v in values if v.type.tensor_type.HasField("shape")}
        self.taken = UniqueNames()
        for used in (*self.constants, *(n for node in model.graph.node for n in (node.name, *node.output))):
            self.taken.fresh(used)

    def convert(self) -> None:
        """Convert all nodes, those of functions included, and check the result."""
        graph = self.model.graph
        self._nodes(graph.node)
        for function in self.model.functions:
            self._nodes(function.node)
        for imported in (*self.model.opset_import, *(o for f in self.model.functions for o in f.opset_import)):
            imported.version = self.opset if not imported.domain else imported.version
        used = {n for node in graph.node for n in node.input} | {o.name for o in graph.output}
        for tensor in [t for t in graph.initializer if t.name not in used]:
            graph.initializer.remove(tensor)
        try:
            onnx.checker.check_model(self.model, full_check=True)
        except Exception as e:  # the checker's and the inference's errors share no other base
            raise self._error("the model", first_line(e), "a model that ONNX's checker accepts") from e

    def _nodes(self, nodes: Any) -> None:
        made = [new for node in nodes for new in self._node(node)]
        del nodes[:]
        nodes.extend(made)

    def _node(self, node: onnx.NodeProto) -> list[onnx.NodeProto]:
        if node.domain:
            return [node]
        before: list[onnx.NodeProto] = []
        after: list[onnx.NodeProto] = []
        kept = onnx.NodeProto()
        kept.CopyFrom(node)
        if node.op_type in EARLIER and not onnx.defs.has(node.op_type, self.opset):
            return [made for part in self._by_earlier(node) for made in self._node(part)]
        if attribute := _vector(node):
            self._as_attribute(kept, attribute)
        elif node.op_type in ("Softmax", "LogSoftmax"):
            before, after = self._last_axis(kept)
        elif node.op_type == "Resize":
            before = self._all_inputs(kept)
        elif (strict := _WITH_EQUALITY.get(node.op_type)) and not onnx.defs.has(node.op_type, self.opset):
            names = [self.taken.fresh(f"{node.output[0]}.{op}") for op in ("strict", "equal")]
            parts = zip((strict, "Equal"), names, strict=True)
            before = [helper.make_node(op, node.input, [name], name=name) for op, name in parts]
            kept = helper.make_node("Or", names, node.output, name=node.name)
        made = [*before, kept, *after]
        for each in made:
            self._require_form(each)
        return made

    def _by_earlier(self, node: onnx.NodeProto) -> list[onnx.NodeProto]:
        builder = GraphBuilder(WRITTEN)
        builder.taken = self.taken
        values = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        attributes = {name: v.decode() if isinstance(v, bytes) else v for name, v in values.items()}
        EARLIER[node.op_type](builder, list(node.input), node.output[0], attributes)
        constants = builder.initializers.items()
        return [*(helper.make_node("Constant", [], [n], name=n, value=t) for n, t in constants), *builder.nodes]

    def _as_attribute(self, node: onnx.NodeProto, attribute: str) -> None:
        # Their axes and lengths were attributes; equal parts needed no number.
        for given in [a for a in node.attribute if a.name in ("num_outputs", "noop_with_empty_axes")]:
            node.attribute.remove(given)
        if len(node.input) > 1:
            values = self.constants.get(node.input[1])
            if values is None:
                raise self._form_error(node, f"computed {attribute}")
            del node.input[1:]
            node.attribute.append(helper.make_attribute(attribute, [int(v) for v in values]))

    def _last_axis(self, node: onnx.NodeProto) -> tuple[list[onnx.NodeProto], list[onnx.NodeProto]]:
        # Before opset 13 all axes from `axis` on are normalised together; of the last axis both are the same.
        axis = next((a.i for a in node.attribute if a.name == "axis"), -1)
        rank = self.ranks.get(node.output[0], self.ranks.get(node.input[0]))
        del node.attribute[:]
        node.attribute.append(helper.make_attribute("axis", -1))
        if axis == -1 or (rank is not None and axis == rank - 1):
            return [], []
        if rank is None:
            raise self._form_error(node, f"axis {axis} of a tensor of unknown rank")
        order = list(range(rank))
        order[axis], order[-1] = order[-1], order[axis]  # its own inverse
        inner, outer = (self.taken.fresh(f"{node.output[0]}.{side}") for side in ("moved", "normalized"))
        first = helper.make_node("Transpose", [node.input[0]], [inner], name=inner, perm=order)
        last = helper.make_node("Transpose", [outer], [node.output[0]], name=self.taken.fresh(f"{node.name}.back"), perm=order)
        node.input[0], node.output[0] = inner, outer
        return [first], [last]

    def _all_inputs(self, node: onnx.NodeProto) -> list[onnx.NodeProto]:
        # roi and scales are required inputs before opset 13; an empty tensor means that there is none.
        made = []
        for index in (1, 2):
            if node.input[index] == "":
                node.input[index] = self.taken.fresh(f"{node.output[0]}.{('roi', 'scales')[index - 1]}")
                empty = numpy_helper.from_array(np.zeros(0, np.float32), node.input[index])
                made.append(helper.make_node("Constant", [], [empty.name], name=empty.name, value=empty))
        return made

    def _require_form(self, node: onnx.NodeProto) -> None:
        if not onnx.defs.has(node.op_type, self.opset):
            raise self._form_error(node, "")
        old, new = (onnx.defs.get_schema(node.op_type, v) for v in (self.opset, self.newer))
        given = {a.name for a in node.attribute}
        other = {n for n in old.attributes.keys() & new.attributes.keys() - given if _default(old, n) != _default(new, n)}
        if differ := sorted((given - old.attributes.keys()) | other):
            raise self._form_error(node, differ[0])
        for index, name in enumerate(node.input):
            slot = old.inputs[min(index, len(old.inputs) - 1)]
            if index >= old.max_input or (not name and slot.option == onnx.defs.OpSchema.FormalParameterOption.Single):
                raise self._form_error(node, f"input {index}")

    def _form_error(self, node: onnx.NodeProto, what: str) -> DeployError:
        found = f"{node.op_type}{f' with {what}' if what else ''} in opset {self.opset}"
        return self._error(f"op {node.name or node.output[0]!r}", found, f"an operator of opset {self.opset}")

    def _error(self, where: str, found: str, wanted: str) -> DeployError:
        do = f"Deploy by a later opset: edit.deploy({self.lowering}(opset={WRITTEN}))."
        return DeployError(where=where, found=found, wanted=wanted, do=do)


def _vector(node: onnx.NodeProto) -> str:
    # The attribute that holds what is the second input of an operator in later opsets.
    if node.op_type == "Split":
        return "split"
    return "axes" if node.op_type in ("Squeeze", "Unsqueeze") or node.op_type.startswith("Reduce") else ""


def _default(schema: Any, name: str) -> bytes:
    value: bytes = schema.attributes[name].default_value.SerializeToString(deterministic=True)
    return value

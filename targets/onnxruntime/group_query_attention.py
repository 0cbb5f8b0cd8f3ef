"""Write attention to a cache in codes as ONNX Runtime's GroupQueryAttention."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attrs import frozen

from qfunc.lowering.coded_state.names import CODES, PACKED, SCALE_KEY

if TYPE_CHECKING:
    from qfunc.lowering.qdq.reader import QdqModel

OPERATOR = "GroupQueryAttention"
ROWS, MOVED = ".rows", ".moved"
_CALL, _DOMAIN = "CachedAttention", "com.microsoft"


@frozen(eq=False)
class _Cache:
    """Keys or values: the graph's input, the write into it, the real tensor that is written, the scale, the dequantizer."""

    state: str
    write: Any
    new: str
    scale: str
    read: Any


def with_cached_attention(model: Any) -> Any:
    """Return a model with a GroupQueryAttention in place of each call of `qfunc.CachedAttention` and the writes before it.

    Its cache is that of `with_coded_state`: codes in and out, those of 4 bits plus 8 in bytes, the first in the low bits.
    Queries, keys and values are put in the order of their positions before it, and its result back, so that a prompt may have
    padding on its left.

    The operator has a second way to add, by blocks of keys whose size depends on the processor's cache.  A fourth result, the
    scores, which nothing reads, keeps it to the first.

    Source: ONNX Runtime, docs/ContribOperators.md, com.microsoft.GroupQueryAttention; contrib_ops/cpu/bert/
        group_query_attention.cc, `use_flash`.
    """
    # Import here, so that `import qfunc` does not import onnx.
    import onnx

    from qfunc.lowering.onnx.remove_quantizers import prune
    from qfunc.lowering.qdq.reader import QdqModel

    if not any(n.op_type == _CALL for n in model.graph.node):
        return model
    made = onnx.ModelProto()
    made.CopyFrom(model)
    source, writer = QdqModel(model), _Writer(made)
    for call in [n for n in model.graph.node if n.op_type == _CALL]:
        keys, values = (_cache(source, call.input[k]) for k in (1, 2))
        heads, factor = source.attribute(call, "heads"), source.attribute(call, "factor")
        writer.write(call, (keys, values), heads, factor)
    writer.finish()
    prune(made)
    _drop_unread_zero_points(made.graph)
    prune(made)
    if _DOMAIN not in [o.domain for o in made.opset_import]:
        made.opset_import.append(onnx.helper.make_opsetid(_DOMAIN, 1))
    return made


def _drop_unread_zero_points(graph: Any) -> None:
    # The operator has none: a code of int8 is 0 for 0, and a byte has 8 for each code of 4 bits.
    read = {name for node in graph.node for name in node.input}
    for note in graph.quantization_annotation:
        kept = [p for p in note.quant_parameter_tensor_names if p.key == SCALE_KEY or p.value in read]
        del note.quant_parameter_tensor_names[:]
        note.quant_parameter_tensor_names.extend(kept)


def with_results(graph: Any) -> Any:
    """Return an optimised graph with the result of each GroupQueryAttention as the model has it, [N, H, T, D].

    ONNX Runtime removes the transposes between that and the next layer.
    """
    import numpy as np
    from onnx import ModelProto, helper, numpy_helper

    made = ModelProto()
    made.CopyFrom(graph)
    known = {name for n in graph.graph.node for name in n.output}
    for node in [n for n in graph.graph.node if n.op_type == OPERATOR]:
        name = node.output[0].removesuffix(ROWS)
        if name in known:
            continue
        (count,) = (a.i for a in node.attribute if a.name == "num_heads")
        shape, split = f"{name}.shown_shape", f"{name}.shown"
        made.graph.initializer.append(numpy_helper.from_array(np.array([0, 0, count, -1], np.int64), shape))
        made.graph.node.extend(
            [
                helper.make_node("Reshape", [f"{name}{MOVED}", shape], [split], name=split),
                helper.make_node("Transpose", [split], [name], name=name, perm=[0, 2, 1, 3]),
            ]
        )
    return made


def _cache(source: QdqModel, real: str) -> _Cache:
    read = source.producers[real]
    write = source.producers[read.input[0]]
    quantize = source.producers[write.input[2]]
    return _Cache(write.input[0], write, quantize.input[0], read.input[1], read)


class _Writer:
    # Replaces calls in a model, in place; `order` are the tensors that all calls share.
    def __init__(self, model: Any) -> None:
        self.model, self.graph = model, model.graph
        self.replaced: dict[str, list[Any]] = {}
        self.nodes: list[Any] = []
        self.order: dict[tuple[str, int], str] = {}
        self.constants: set[str] = set()

    def write(self, call: Any, caches: tuple[_Cache, _Cache], heads: list[int], factor: float) -> None:
        from onnx import TensorProto

        name, positions = call.output[0], call.input[3]
        self.nodes = self.replaced.setdefault(name, [])
        count, width, bits = len(heads), self._width(caches[0].state), self._bits(caches[0].state)
        own = (heads[-1] + 1) * width
        rows = [(call.input[0], count * width), (caches[0].new, own), (caches[1].new, own)]
        given = [
            self._ordered(f"{name}.{part}", x, positions, n)
            for part, (x, n) in zip(("query", "key", "value"), rows, strict=True)
        ]
        suffix = CODES if bits == 8 else PACKED
        results = [f"{c.write.output[0].removesuffix(CODES)}{suffix}" for c in caches]
        scales = [self._node("Reshape", [c.scale, self._integers("one_axis", -1)], f"{name}.{part}_scale")
                  for part, c in zip(("key", "value"), caches, strict=True)]  # fmt: skip
        mixed = f"{name}{ROWS}"
        self._node(
            OPERATOR,
            [*given, *(c.state for c in caches), *self._lengths(positions), "", "", "", "", "", *scales],
            mixed, *results, f"{name}.scores", domain=_DOMAIN, num_heads=count, kv_num_heads=heads[-1] + 1, scale=factor,
            k_quant_type="PER_TENSOR", v_quant_type="PER_TENSOR", kv_cache_bit_width=bits, qk_output=1,
        )  # fmt: skip
        back = self._node("GatherElements", [mixed, self._places(positions, count * width)], f"{name}{MOVED}", axis=1)
        split = self._node("Reshape", [back, self._integers(f"split_{count}", 0, 0, count, -1)], f"{name}.heads")
        self._node("Transpose", [split], name, perm=[0, 2, 1, 3])
        for cache, result in zip(caches, results, strict=True):
            self._hold(cache, result, TensorProto.INT8 if bits == 8 else TensorProto.UINT8)

    def _hold(self, cache: _Cache, result: str, kind: int) -> None:
        # The ends of the graph have the type of the cache; their last axis holds two codes a byte if packed.
        codes = cache.write.output[0]
        ends = {cache.state}
        for node in self.graph.node:
            if node.op_type == "Identity" and node.input[0] == codes:
                node.input[0] = result
                ends.add(node.output[0])
        for value in (*self.graph.input, *self.graph.output):
            if value.name in ends:
                value.type.tensor_type.elem_type = kind
                last = value.type.tensor_type.shape.dim[-1]
                if result.endswith(PACKED):
                    last.dim_value //= 2
        self.replaced.setdefault(codes, [])

    def _ordered(self, name: str, tensor: str, positions: str, width: int) -> str:
        # [N, h, T, D] -> [N, T, h D], each row at its place in the order of positions.
        turned = self._node("Transpose", [tensor], f"{name}_turned", perm=[0, 2, 1, 3])
        rows = self._node("Reshape", [turned, self._integers("rows", 0, 0, -1)], f"{name}_rows")
        return self._node("ScatterElements", [rows, self._places(positions, width), rows], f"{name}_ordered", axis=1)

    def _places(self, positions: str, width: int) -> str:
        # The place of each token among those of its row, [N, T, width].
        if (key := (positions, width)) not in self.order:
            base = f"{positions}.places"
            if (positions, 0) not in self.order:
                first = self._node("ReduceMin", [positions, self._integers("last_axis", 1)], f"{base}_first")
                from_first = self._node("Sub", [positions, first], f"{base}_from_first")
                self.order[positions, 0] = self._node("Unsqueeze", [from_first, self._integers("third_axis", 2)], base)
            wide = self._integers(f"wide_{width}", 1, 1, width)
            self.order[key] = self._node("Expand", [self.order[positions, 0], wide], f"{base}_{width}")
        return self.order[key]

    def _lengths(self, positions: str) -> tuple[str, str]:
        # The number of keys of each row less one, and the largest number.
        from onnx import TensorProto

        if (positions, -1) not in self.order:
            base = f"{positions}.last"
            last = self._node("ReduceMax", [positions, self._integers("last_axis", 1)], base, keepdims=0)
            self.order[positions, -1] = self._node("Cast", [last], f"{base}_of_row", to=TensorProto.INT32)
            most = self._node("ReduceMax", [last], f"{base}_of_all", keepdims=0)
            total = self._node("Add", [most, self._integers("one_axis_1", 1)], f"{base}_count")
            self.order[positions, -2] = self._node("Cast", [total], f"{base}_total", to=TensorProto.INT32)
        return self.order[positions, -1], self.order[positions, -2]

    def _node(self, op: str, inputs: list[str], *outputs: str, **attributes: Any) -> str:
        from onnx import helper

        self.nodes.append(helper.make_node(op, inputs, list(outputs), name=outputs[0], **attributes))
        return outputs[0]

    def _integers(self, name: str, *values: int) -> str:
        import numpy as np
        from onnx import numpy_helper

        name = f"cached_attention.{name}"
        if name not in self.constants:
            self.constants.add(name)
            self.graph.initializer.append(numpy_helper.from_array(np.array(values, np.int64), name))
        return name

    def _shape(self, state: str) -> Any:
        return next(v for v in self.graph.input if v.name == state).type.tensor_type

    def _width(self, state: str) -> int:
        return int(self._shape(state).shape.dim[-1].dim_value)

    def _bits(self, state: str) -> int:
        from onnx import TensorProto

        return 4 if self._shape(state).elem_type == TensorProto.INT4 else 8

    def finish(self) -> None:
        """Put the new nodes in the places of the calls, without the writes that they do themselves."""
        nodes = [new for n in self.graph.node for new in self.replaced.get(n.output[0], [n])]
        del self.graph.node[:]
        self.graph.node.extend(nodes)

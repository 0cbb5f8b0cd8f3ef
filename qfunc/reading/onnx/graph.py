"""Read the nodes of an ONNX graph in order, branches with known conditions included."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Mapping, MutableMapping, Sequence
from typing import Any

import onnx
from torch import Tensor, fx

from qfunc.errors import CaptureError, QfuncError, first_line
from qfunc.reading.network import Network
from qfunc.reading.node import NodeReader, tensor_of
from qfunc.reading.onnx.ops import reader_of
from qfunc.reading.onnx.source import Source
from qfunc.reading.size_arithmetic import on_numbers
from qfunc.reading.values import Constant, Value

Env = MutableMapping[str, Value | None]


def read_graph(source: Source, fixed: Mapping[str, Tensor], outputs: Sequence[str]) -> fx.GraphModule:
    """Return the network of a source.

    Args:
        source: The file.
        fixed: Inputs that become constants.
        outputs: Names of tensors to end at; () for the outputs of the file.
    Raises:
        CaptureError: an operator without a reader, or one that depends on values; names the node.
    """
    graph, network = source.model.graph, Network()
    env: Env = {"": None, **_stored(graph)}
    given = {i.name for i in graph.input} - env.keys()
    _require_names("fixed", fixed, sorted(given), source)
    for info in graph.input:
        if info.name in fixed:
            env[info.name] = Constant(fixed[info.name], info.name)
        elif info.name in given:
            env[info.name] = _input(network, info, source)
    ends = list(outputs) or [o.name for o in graph.output]
    needed = _needed(graph, ends)
    _require_names("outputs", outputs, sorted({o for n in graph.node for o in n.output if o} | set(env) - {""}), source)
    _Reading(source, network).nodes([n for i, n in enumerate(graph.node) if i in needed], env)
    found = [env.get(name) for name in ends]
    missing = [name for name, value in zip(ends, found, strict=True) if value is None]
    if missing:
        do = "Check the file with onnx.checker.check_model."
        raise CaptureError(where=source.file, found=f"an output {missing[0]!r} that no node computes", wanted="its node", do=do)
    values = [network.tensor(v, name) for v, name in zip(found, ends, strict=True) if v is not None]
    if not any(n.op == "placeholder" for n in network.graph.nodes):
        raise CaptureError(where=source.file, found="no inputs", wanted="a network", do="Leave some inputs that are not fixed.")
    return network.finish(list(values))


def _stored(graph: onnx.GraphProto) -> dict[str, Value | None]:
    found: dict[str, Value | None] = {}
    for proto in graph.initializer:
        if proto.data_type == onnx.TensorProto.STRING:
            continue
        tensor = tensor_of(proto)
        found[proto.name] = Constant(tensor, proto.name, tensor.is_floating_point() and tensor.ndim > 0)
    return found


def _input(network: Network, info: onnx.ValueInfoProto, source: Source) -> Value:
    dims, dtype = source.known.get(info.name, (None, None))
    if not info.type.HasField("tensor_type") or dtype is None or dims is None:
        kind = info.type.WhichOneof("value") or "no type"
        do = "Read a part: read(..., outputs=(...)), or fix the input: read(..., fixed={name: value})."
        found = f"an input {info.name!r} of {kind if dtype is None else 'unknown rank'}"
        raise CaptureError(where=source.file, found=found, wanted="a tensor of numbers of known rank", do=do)
    return network.input(info.name, dims, dtype)


def _needed(graph: onnx.GraphProto, ends: Sequence[str]) -> set[int]:
    # The places of the nodes that the outputs depend on.
    producers = {o: i for i, n in enumerate(graph.node) for o in n.output if o}
    pending, found = [producers[e] for e in ends if e in producers], set[int]()
    while pending:
        place = pending.pop()
        if place not in found:
            found.add(place)
            pending += [producers[name] for name in _read(graph.node[place]) if name in producers]
    return found


def _read(node: onnx.NodeProto) -> list[str]:
    inner = [a.g for a in node.attribute if a.HasField("g")]
    return [
        *node.input,
        *(name for g in inner for n in g.node for name in _read(n)),
        *(o.name for g in inner for o in g.output),
    ]


def _require_names(what: str, given: Any, names: Sequence[str], source: Source) -> None:
    unknown = next((name for name in given if name not in names), None)
    if unknown is not None:
        few = ", ".join(map(repr, names[:8])) + (", ..." if len(names) > 8 else "")
        raise CaptureError(
            where=f"{source.file}, {what}", found=repr(unknown), wanted=f"one of {few}", do="Give one of these names."
        )


class _Reading:
    def __init__(self, source: Source, network: Network) -> None:
        self.source, self.network = source, network

    def nodes(self, nodes: Sequence[onnx.NodeProto], env: Env) -> None:
        for node in nodes:
            values = self._node(node, env)
            for name, value in zip(node.output, values, strict=False):
                env[name] = value

    def _node(self, proto: onnx.NodeProto, env: Env) -> list[Value | None]:
        version = self.source.versions.get(proto.domain, 1)
        missing = next((name for name in proto.input if name and name not in env), None)
        r = NodeReader(self.network, proto, version, tuple(env.get(name) for name in proto.input), self.source.file)
        if missing is not None:
            raise r.refuse(
                f"an input {missing!r} that nothing computes before", "nodes in order", "Check the file with onnx.checker."
            )
        if proto.op_type == "If":
            return self._branch(r, env)
        reader = reader_of(proto)
        if reader is None:
            raise _unknown(r)
        try:
            found: Any = on_numbers(r)
            found = reader(r) if found is None else found
        except (QfuncError, MemoryError):
            raise
        except Exception as e:  # of torch, for shapes and types that do not go together, as a file can have any
            do = "Check the file with onnx.checker.check_model(model, full_check=True)."
            raise r.refuse(f"{type(e).__name__}: {first_line(e)}", "a valid node", do) from e
        values = list(found) if isinstance(found, list | tuple) else [found]
        for name, value in zip(proto.output, values, strict=False):
            self._note(name, value)
        return [_named(value, name) for name, value in zip(proto.output, values, strict=False)]

    def _note(self, name: str, value: Value | None) -> None:
        if isinstance(value, fx.Node):
            self.network.note(value, *self.source.known.get(name, (None, None)))

    def _branch(self, r: NodeReader, env: Env) -> list[Value | None]:
        chosen = r.tensor(0)
        if chosen is None:
            do = f"{self.network.how_to_fix_sizes[:-1]}; or fix the input that decides: fixed={{input: value}}."
            raise r.refuse("a branch that depends on values or sizes", "a condition that the file determines", do)
        name = "then_branch" if bool(chosen.reshape(-1)[0]) else "else_branch"
        graph = next(a.g for a in r.proto.attribute if a.name == name)
        inner: Env = ChainMap({**_stored(graph)}, env)
        needed = _needed(graph, [o.name for o in graph.output])
        self.nodes([n for i, n in enumerate(graph.node) if i in needed], inner)
        return [inner.get(o.name) for o in graph.output]


def _named(value: Value | None, name: str) -> Value | None:
    # A constant that was computed has the name of the result.
    if isinstance(value, Constant) and not value.trains and value.name != name and name:
        return Constant(value.tensor, name)
    return value


def _unknown(r: NodeReader) -> CaptureError:
    proto = r.proto
    if proto.op_type in ("Loop", "Scan"):
        do = "Export the model without loops; or read the part before it: read(..., outputs=(...))."
        return r.refuse("a loop", "ops in a fixed order", do)
    domain = f" of the domain {proto.domain!r}" if proto.domain else ""
    before = ", ".join(repr(name) for name in proto.input if name) or "none"
    do = f"Read the part before it: read(..., outputs=(...)), of which the op reads {before}."
    return r.refuse(f"an op {proto.op_type}{domain}", "an op that qfunc reads", do)

"""From a traced graph to the functional form: canonical ops, no in-place writes, the user's names."""

from __future__ import annotations

import copy
import re
from typing import Any


from torch import fx, nn

from qfunc.errors import CaptureError
from qfunc.graph.record import Fact, Record, attach
from qfunc.graph.spelling import canonical, is_in_place, short_name
from qfunc.graph.vocabulary import BY_TARGET

_ALIASES = ("contiguous", "clone", "positive", "alias", "detach_")
_MAY_ALIAS = ("narrow", "unbind", "t", "contiguous", "dropout", "alias", "view_as", "movedim", "unflatten", "diagonal", "select")


def functional(model: nn.Module, traced: fx.Graph) -> fx.GraphModule:
    """The functional GraphModule of a traced graph; it owns copies of the model's tensors, ties kept.

    Raises:
        CaptureError: a write through a view whose base is read later.
    """
    owned = copy.deepcopy(model)
    build = _Builder(owned, traced)
    for node in traced.nodes:
        build.step(node)
    result = fx.GraphModule(owned, build.graph)
    result.graph.eliminate_dead_code(is_impure_node=lambda n: n.op in ("placeholder", "output"))
    result.recompile()
    result.train(model.training)
    return attach(result, Record({n.name: build.facts[n.name] for n in result.graph.nodes if n.name in build.facts}))


class _Builder:
    """Copies a graph node by node; `env` maps each traced node to the value it has *now*."""

    def __init__(self, owner: nn.Module, traced: fx.Graph) -> None:
        self.owner, self.graph = owner, fx.Graph(tracer_cls=traced._tracer_cls)
        self.graph.set_codegen(traced._codegen)
        self.env: dict[fx.Node, fx.Node] = {}
        self.base: dict[fx.Node, fx.Node] = {}  # view -> what it looks into
        self.order = {n: i for i, n in enumerate(traced.nodes)}
        self.facts: dict[str, Fact] = {}
        self.paths: set[str] = set()

    def step(self, node: fx.Node) -> None:
        if node.op == "output":
            self.graph.output(fx.map_arg(node.args[0], self.env.__getitem__))
            return
        if node.op in ("placeholder", "get_attr", "call_module"):
            self.env[node] = self._emit(node, node.op, node.target, node.args, node.kwargs, self._path(node))
            return
        name = short_name(node)
        if name in _ALIASES and not is_in_place(node):
            source = node.args[0] if node.args else node.kwargs["input"]
            self.env[node] = self.env[source]  # type: ignore[index]
            if name in _MAY_ALIAS:
                self._view(node, source)  # type: ignore[arg-type]
            return
        call = canonical(node)
        if call is None and is_in_place(node):
            raise self._refused(node, "an in-place write that has no pure form in the op vocabulary")
        if name == "dropout":
            self.env[node] = self._dropout(node)
        elif call is not None:
            self.env[node] = self._emit(node, "call_function", call[0], call[1], {}, self._path(node))
            op = BY_TARGET[call[0]]
            if op.view and isinstance(call[1][0], fx.Node) and op.kind != "reshape" or name in ("view", "reshape"):
                self._view(node, call[1][0])
        else:
            self.env[node] = self._emit(node, node.op, node.target, node.args, node.kwargs, self._path(node))
            if name in _MAY_ALIAS and node.all_input_nodes:
                self._view(node, node.all_input_nodes[0])
        if is_in_place(node):
            self._written(node)

    def _view(self, node: fx.Node, source: Any) -> None:
        if isinstance(source, fx.Node):
            self.base[node] = source

    def _written(self, node: fx.Node) -> None:
        # The written value replaces its argument for all later readers; no view of it may be read later.
        target = node.args[0] if node.args else node.kwargs.get("input")
        assert isinstance(target, fx.Node)
        family = self._family(target) - {target, node}
        for relative in family:
            same_value = self.env.get(relative) is self.env.get(target) and relative not in self.base
            late = [u for u in relative.users if self.order[u] > self.order[node]]
            if late and not same_value:
                raise self._refused(node, f"an in-place write to {target.name!r}, of which {relative.name!r} is a view that is read later")
        for relative in self._same(target):
            self.env[relative] = self.env[node]
        self.base[node] = target  # the result is the same storage

    def _same(self, node: fx.Node) -> set[fx.Node]:
        # Names of one storage and one shape: the written node and the in-place results before it.
        value = self.env[node]
        return {n for n, v in self.env.items() if v is value} | {node}

    def _family(self, node: fx.Node) -> set[fx.Node]:
        root = node
        while root in self.base:
            root = self.base[root]
        family = {root}
        for view in self.base:  # insertion order: a view comes after its base
            if self.base[view] in family:
                family.add(view)
        return {n for n in family if self.env.get(n) is not self.env.get(node)} | {node}

    def _dropout(self, node: fx.Node) -> fx.Node:
        p = node.args[1] if len(node.args) > 1 else node.kwargs.get("p", 0.5)
        name = self._unique("dropout")
        self.owner.add_module(name, nn.Dropout(float(p)))  # type: ignore[arg-type]
        source = node.args[0] if node.args else node.kwargs["input"]
        return self._emit(node, "call_module", name, (source,), {}, self._path(node))

    def _emit(self, node: fx.Node, op: str, target: Any, args: Any, kwargs: Any, path: str) -> fx.Node:
        default = node.args if op == "placeholder" else ()
        mapped = default if op == "placeholder" else fx.map_arg(args, self.env.__getitem__)
        name = re.sub(r"\W", "_", path)
        made = self.graph.create_node(op, target, mapped, fx.map_arg(kwargs, self.env.__getitem__), name, node.type)
        modules = tuple(_class_name(v) for v in (node.meta.get("nn_module_stack") or {}).values())
        self.facts[made.name] = Fact(path, modules, source_line(node))
        return made

    def _path(self, node: fx.Node) -> str:
        if node.op in ("placeholder", "get_attr", "call_module"):
            return self._unique(str(node.target)) if node.op == "call_module" else str(node.target)
        stack = list((node.meta.get("nn_module_stack") or {}).values())
        inner = _module_path(stack[-1]) if stack else ""
        of_torch = bool(stack) and _class_name(stack[-1]).startswith("torch.nn") and inner
        word = short_name(node) or getattr(node.target, "__name__", str(node.target))
        return self._unique(inner if of_torch else ".".join(filter(None, (inner, word.strip("_")))))

    def _unique(self, path: str) -> str:
        fresh, count = path, 0
        while fresh in self.paths or (count and hasattr(self.owner, fresh)):
            count += 1
            fresh = f"{path}_{count}"
        self.paths.add(fresh)
        return fresh

    def _refused(self, node: fx.Node, found: str) -> CaptureError:
        do = "Write it without the in-place op, or make a copy with clone() of what is read later."
        return CaptureError(where=source_line(node) or f"node {node.name!r}", found=found, wanted="a pure operation", do=do)


def _module_path(entry: Any) -> str:
    path = entry[0] if isinstance(entry, tuple) else str(entry)
    return str(path).removeprefix("L['self'].").removeprefix("L['self']").replace("slice(None, None, None)", "")


def _class_name(entry: Any) -> str:
    kind = entry[1] if isinstance(entry, tuple) else entry
    return kind if isinstance(kind, str) else f"{kind.__module__}.{kind.__qualname__}"


def source_line(node: fx.Node) -> str:
    """file:line of the user's code that made a node, or ""."""
    frames = re.findall(r'File "([^"]+)", line (\d+)', node.stack_trace or "")
    mine = [f"{file}:{line}" for file, line in frames if "/torch/" not in file and "/qfunc/graph/" not in file]
    return mine[-1] if mine else ""



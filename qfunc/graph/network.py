"""The float network inside a quantized model, and the sites around it, each found from the graph alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from attrs import evolve, frozen
from torch import Tensor, fx, nn

from qfunc.errors import CalibrationError, QfuncError, a_or_an, first_line
from qfunc.graph.captured import CapturedModule, evaluated
from qfunc.graph.fake_quantize import FakeQuantize
from qfunc.graph.record import Record, attach, path_of, record_of
from qfunc.graph.settled import settled
from qfunc.graph.vocabulary import kind_of


@frozen
class Seat:
    """A FakeQuantize in a model: where it sits, the float node whose value it quantizes, and who reads that.

    Both are named as in `float_network`: dropouts are looked through.
    """

    path: str
    module: FakeQuantize
    tensor: str
    readers: tuple[str, ...]


def seats(model: fx.GraphModule) -> tuple[Seat, ...]:
    """Every FakeQuantize of a model in graph order."""
    model, found = settled(model), []
    for node in model.graph.nodes:
        if kind_of(node) == "fake_quantize":
            module = model.get_submodule(str(node.target))
            assert isinstance(module, FakeQuantize)
            tensor = node.all_input_nodes[0]
            while kind_of(tensor) == "dropout":
                tensor = tensor.all_input_nodes[0]
            found.append(Seat(str(node.target), module, tensor.name, tuple(_readers(node))))
    return tuple(found)


def _readers(node: fx.Node) -> list[str]:
    return [name for user in node.users for name in (_readers(user) if kind_of(user) == "dropout" else [user.name])]


def float_network(model: fx.GraphModule) -> fx.GraphModule:
    """The float network in evaluation form: no FakeQuantize, no dropout; tensors are shared with the model.

    Node names are those of the model.
    """
    model = settled(model)
    return _network(model, {str(n.target) for n in model.graph.nodes if kind_of(n) == "fake_quantize"})


def network_so_far(model: fx.GraphModule) -> fx.GraphModule:
    """As `float_network`, but with every FakeQuantize that is ready."""
    return _network(settled(model), {s.path for s in seats(model) if not s.module.ready})


def _network(model: fx.GraphModule, left_out: set[str]) -> fx.GraphModule:
    graph = fx.Graph()
    graph.set_codegen(model.graph._codegen)
    env: dict[fx.Node, fx.Node] = {}
    leaves: dict[str, nn.Module] = {}
    for node in model.graph.nodes:
        if kind_of(node) == "dropout" or (node.op == "call_module" and node.target in left_out):
            env[node] = env[node.all_input_nodes[0]]
            continue
        env[node] = graph.node_copy(node, env.__getitem__)
        if node.op == "call_module":
            leaves[str(node.target)] = evaluated(model.get_submodule(str(node.target)))
    network = CapturedModule(_Root(model, leaves), graph)
    record = record_of(model)
    return attach(network, evolve(record, stage="captured", target=None)) if record else network


class _Root(nn.Module):
    """A view of a model whose called submodules are replaced by evaluation copies."""

    def __init__(self, model: nn.Module, leaves: dict[str, nn.Module]) -> None:
        super().__init__()
        tensors = [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]
        for tensor_path, tensor in tensors:
            owner, _, name = tensor_path.rpartition(".")
            holder = _descend(self, owner)
            if isinstance(tensor, nn.Parameter):
                holder.register_parameter(name, tensor)
            else:
                holder.register_buffer(name, tensor)
        for path, module in leaves.items():
            owner, _, name = path.rpartition(".")
            setattr(_descend(self, owner), name, module)
        for name, value in vars(model).items():
            if isinstance(value, Tensor):
                setattr(self, name, value)
        self.eval()


def _descend(root: nn.Module, path: str) -> nn.Module:
    for part in path.split(".") if path else ():
        if not isinstance(getattr(root, part, None), nn.Module):
            setattr(root, part, nn.Module())
        root = getattr(root, part)
    return root


def require(model: Any, stage: str, step: str) -> Record:
    """The record of a model that has reached `stage` ("quantized" or "calibrated").

    Raises:
        CalibrationError: it has not; the message names the step that is missing.
    """
    require_unwrapped(model, stage, step)
    record = record_of(model) if isinstance(model, fx.GraphModule) else None
    reached = record is not None and record.stage in (stage, "quantized", "calibrated")
    # Qparams may also have come from a state_dict, or have left with one.
    unready = [s.module.site.name for s in seats(model) if not s.module.ready] if reached and stage == "calibrated" else []
    if record is None or not reached or unready:
        before = {"quantized": "qfunc.quantize(target)(model)", "calibrated": "qfunc.calibrate(batches)(quantized)"}[stage]
        found = kind_of_model(record) if record else f"{a_or_an(type(model))} that is not quantized"
        found += f" without qparams at site {unready[0]!r}" if unready else ""
        raise CalibrationError(where=step, found=found, wanted=f"a {stage} model", do=f"First run {before}.")
    return record


def require_unwrapped(model: Any, stage: str, step: str) -> None:
    """Refuses the wrappers of training, which have a quantized model inside.

    Raises:
        CalibrationError: names the cure.
    """
    compiled = isinstance(model, nn.Module) and isinstance(getattr(model, "_orig_mod", None), nn.Module)
    if compiled or isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel):
        found = "a compiled model" if compiled else a_or_an(type(model))
        do = "Pass the model that was given to torch.compile." if compiled else "Pass its .module."
        raise CalibrationError(where=step, found=found, wanted=f"the {stage} model inside", do=do)


def kind_of_model(record: Record) -> str:
    """What a model is, in words; an emulation is captured and yet knows its target."""
    return "an emulation" if record.target and record.stage == "captured" else f"a {record.stage} model"


class Walk(fx.Interpreter):
    """Runs a network and shows each named node's value to `see(name, value)`."""

    def __init__(self, network: fx.GraphModule, see: Callable[[str, Any], None], names: set[str] | None = None) -> None:
        super().__init__(network)
        self.network, self.see, self.names = network, see, names
        self.at: fx.Node | None = None

    def run_node(self, n: fx.Node) -> Any:
        """The node's value, shown if its name is wanted."""
        self.at = n
        value = super().run_node(n)
        if self.names is None or n.name in self.names:
            self.see(n.name, value)
        return value

    def guarded(self, arguments: tuple[Any, ...], where: str) -> Any:
        """The network's value; what the user's own ops refuse is told by the op's path.

        Raises:
            CalibrationError: an op cannot take the arguments.
        """
        self.extra_traceback = False  # it would write into the messages of our own errors
        try:
            return self.run(*arguments)
        except QfuncError:
            raise
        except Exception as e:
            raise refused(self.network, self.at, where, e) from e


def refused(network: fx.GraphModule, node: fx.Node | None, where: str, error: Exception) -> CalibrationError:
    """What the user's own op says of its arguments, told by the op's path."""
    return CalibrationError(
        where=f"{where}, op {path_of(network, node) if node else 'inputs'!r}",
        found=first_line(error),
        wanted="inputs on which the model runs",
        do="Give batches as the model's forward takes them.",
    )


def same_network(a: fx.GraphModule, b: fx.GraphModule) -> bool:
    """Whether two float networks are one: equal graphs and bit-equal tensors."""
    described = [[(n.op, str(n.target), str(n.args), str(n.kwargs)) for n in m.graph.nodes] for m in (a, b)]
    if described[0] != described[1]:
        return False
    left, right = a.state_dict(), b.state_dict()
    return left.keys() == right.keys() and all(torch.equal(left[k], right[k]) for k in left)


__all__ = [
    "Seat", "Walk", "float_network", "kind_of_model", "network_so_far", "refused", "require", "require_unwrapped",
    "same_network", "seats",
]  # fmt: skip

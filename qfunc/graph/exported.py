"""The torch.export road: an ExportedProgram becomes the same functional form."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import fx, nn

from qfunc.errors import CaptureError
from qfunc.graph.functional import functional


def program_of(model: nn.Module, example_inputs: tuple[Any, ...]) -> torch.export.ExportedProgram:
    """The model exported in evaluation mode, first axis of every tensor dynamic where the model allows it.

    Raises:
        CaptureError: torch.export refused the model; the message carries its reason.
    """
    example = copy.deepcopy(model).eval()
    inputs = example_inputs if isinstance(example_inputs, tuple) else (example_inputs,)
    shapes = tuple(_dynamic(v) for v in inputs)
    failures = []
    for dynamic in (shapes, None):
        try:
            return torch.export.export(example, inputs, dynamic_shapes=dynamic, strict=False)
        except Exception as e:
            failures.append(e)
    first = str(failures[-1]).strip().splitlines()[0]
    raise CaptureError(
        where=f"torch.export of {type(model).__name__}",
        found=f"{type(failures[-1]).__name__}: {first}",
        wanted="a model that torch.export takes with these inputs",
        do="Check that model(*example_inputs) runs; quantize submodules where the whole cannot be captured.",
    ) from failures[-1]


def _dynamic(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return {0: torch.export.Dim.AUTO} if value.ndim and value.shape[0] > 1 else None
    if isinstance(value, dict):
        return {k: _dynamic(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_dynamic(v) for v in value)
    return None


def open_program(program: torch.export.ExportedProgram) -> fx.GraphModule:
    """The functional form of an exported program: weights are attributes again, BatchNorm and Dropout modules.

    Guards on the inputs' shapes are left out: they would fix what may vary.
    """
    module = program.module(check_guards=False)
    assert isinstance(module, fx.GraphModule)
    for node in list(module.graph.nodes):
        if node.op == "call_module" and str(node.target).startswith("_guards"):
            module.graph.erase_node(node)
        elif node.op == "call_function" and getattr(node.target, "__name__", "") == "batch_norm.default":
            _batch_norm_module(module, node)
    _simple_symbols(module.graph)
    module.graph.lint()
    return functional(_tensors_of(module), module.graph).eval()


def _tensors_of(module: fx.GraphModule) -> nn.Module:
    # The tensors without the graph, which functional() has no reason to copy.
    bare = nn.Module()
    bare.__dict__.update({k: v for k, v in vars(module).items() if k in ("_parameters", "_buffers", "_modules", "training")})
    bare.__dict__.update({k: v for k, v in vars(module).items() if isinstance(v, torch.Tensor)})
    return bare


def _batch_norm_module(module: fx.GraphModule, node: fx.Node) -> None:
    # aten.batch_norm(input, weight, bias, mean, var, training, momentum, eps, cudnn) -> nn.BatchNorm of the same tensors.
    x, weight, bias, mean, var, _, momentum, eps = node.args[:8]
    if not all(isinstance(n, fx.Node) and n.op == "get_attr" for n in (mean, var)):
        return
    rank = node.meta["val"].ndim if "val" in node.meta else 4
    kind = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d, 5: nn.BatchNorm3d}[rank]
    tensors = {"running_mean": mean, "running_var": var, "weight": weight, "bias": bias}
    running_mean = _tensor(module, mean)
    made = kind(running_mean.shape[0], eps=float(eps), momentum=float(momentum), affine=weight is not None)  # type: ignore[arg-type]
    for name, source in tensors.items():
        if isinstance(source, fx.Node):
            setattr(made, name, _tensor(module, source))
    path = str(mean.target).rpartition(".")[0] or node.name  # type: ignore[union-attr]
    module.add_submodule(path, made.train(module.training))
    with module.graph.inserting_before(node):
        call = module.graph.call_module(path, (x,))
    call.meta = dict(node.meta)
    node.replace_all_uses_with(call)
    module.graph.erase_node(node)


def _tensor(module: fx.GraphModule, node: Any) -> Any:
    path, _, name = str(node.target).rpartition(".")
    return getattr(module.get_submodule(path), name)


def _simple_symbols(graph: fx.Graph) -> None:
    # Assertions about symbolic sizes say what export assumed; the functional form does not carry them.
    for node in reversed(graph.nodes):
        name = getattr(node.target, "__name__", "")
        if node.op == "call_function" and ("_assert" in name or "sym_constrain" in name) and not node.users:
            graph.erase_node(node)

"""The torch.export road: an ExportedProgram becomes the same functional form."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from attrs import evolve
from torch import fx, nn

from qfunc.errors import CaptureError
from qfunc.graph.captured import CapturedModule, at
from qfunc.graph.functional import functional
from qfunc.graph.inlined import inline_regions
from qfunc.graph.record import attach, record_of
from qfunc.graph.recurrent_export import open_recurrent
from qfunc.graph.sources import module_stack, user_line
from qfunc.graph.training import with_rest
from qfunc.graph.written import written_constants

_NORMS: dict[str, dict[int, type[nn.Module]]] = {
    "batch_norm": {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d, 5: nn.BatchNorm3d},
    "instance_norm": {2: nn.InstanceNorm1d, 3: nn.InstanceNorm1d, 4: nn.InstanceNorm2d, 5: nn.InstanceNorm3d},
}


def program_of(model: nn.Module, example_inputs: Any) -> torch.export.ExportedProgram:
    """The model, which is put in evaluation mode, exported; first axis of every tensor dynamic where it can be.

    Args:
        model: A copy that may be written to.
        example_inputs: A tuple of positional arguments.
    Raises:
        CaptureError: torch.export refused the model; the message carries its reason and the user's line.
    """
    model.eval()
    failures: list[Exception] = []
    for args, dynamic in _attempts(example_inputs if isinstance(example_inputs, tuple) else (example_inputs,)):
        try:
            return torch.export.export(model, args, dynamic_shapes=dynamic, strict=False)
        except Exception as e:
            failures.append(e)
    error = failures[-1]
    first = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    on_values = "data-dependent" in str(error)
    raise CaptureError(
        where=user_line(error.__traceback__) or f"torch.export of {type(model).__name__}",
        found="control flow on the values of a tensor" if on_values else f"{type(error).__name__}: {first}",
        wanted="a forward whose path does not depend on data"
        if on_values
        else "a model that torch.export takes with these inputs",
        do="Use torch.where, or move the decision out of the model; no road captures it."
        if on_values
        else "Check that model(*example_inputs) runs; quantize submodules where the whole cannot be captured.",
    ) from error


def _attempts(inputs: tuple[Any, ...]) -> Iterator[tuple[tuple[Any, ...], Any]]:
    # An axis of length 1 is never dynamic for torch.export, so a batch of one is doubled first.
    lengths: set[int] = set()
    _each(inputs, lambda t: lengths.add(t.shape[0]) if t.ndim else None)
    if lengths == {1}:
        doubled = _each(inputs, lambda t: torch.cat([t, t]) if t.ndim else t)
        yield doubled, _dynamic(doubled)
    yield inputs, _dynamic(inputs)
    yield inputs, None


def _dynamic(inputs: tuple[Any, ...]) -> Any:
    auto = {0: torch.export.Dim.AUTO}
    return _each(inputs, lambda t: auto if t.ndim and t.shape[0] > 1 else None, plain=lambda _: None)


def _each(value: Any, of_tensor: Callable[[torch.Tensor], Any], plain: Callable[[Any], Any] = lambda v: v) -> Any:
    # The same structure with other leaves.
    if isinstance(value, torch.Tensor):
        return of_tensor(value)
    if isinstance(value, dict):
        return {k: _each(v, of_tensor, plain) for k, v in value.items()}
    if isinstance(value, list | tuple):
        inner = [_each(v, of_tensor, plain) for v in value]
        return type(value)(*inner) if hasattr(value, "_fields") else type(value)(inner)
    return plain(value)


def open_program(program: torch.export.ExportedProgram, modes_of: nn.Module | None = None) -> CapturedModule:
    """The functional form of an exported program: weights are attributes again, norms and dropouts modules.

    Guards on the inputs' shapes are left out: they would fix what may vary.  The modes are those of
    `modes_of`, submodule by submodule; without it evaluation mode.
    """
    module = program.module(check_guards=False)
    assert isinstance(module, fx.GraphModule)
    inline_regions(module)
    graph, owner = module.graph, _tensors_of(module)
    open_recurrent(graph)
    for node in reversed(graph.nodes):
        name = getattr(node.target, "__name__", "")
        if node.op == "call_module" and str(node.target).startswith("_guards"):
            graph.erase_node(node)
        elif node.op == "call_function" and not node.users and ("_assert" in name or "sym_constrain" in name):
            graph.erase_node(node)  # what export assumed of symbolic sizes
    for node in list(graph.nodes):
        name = getattr(node.target, "__name__", "").removesuffix(".default")
        if node.op == "call_function" and name in _NORMS:
            _norm_module(owner, module, node, _NORMS[name])
    written_constants(graph, owner, module)
    captured = functional(owner, graph)
    record = record_of(captured)
    assert record is not None
    attach(captured, evolve(record, axes=_axes(program)))
    for path, submodule in captured.named_modules():
        submodule.training = _mode(modes_of, path)
    return captured


def _axes(program: torch.export.ExportedProgram) -> tuple[tuple[str | None, ...], ...]:
    # The names of the inputs' axes that may vary; what varies on first axes is the batch.
    ours, names = set(program.graph_signature.user_inputs), dict[str, str]()
    found = []
    for node in program.graph.nodes:
        value = node.meta.get("val")
        if node.op != "placeholder" or node.name not in ours or not isinstance(value, torch.Tensor):
            continue
        for axis, size in enumerate(value.shape):
            if isinstance(size, torch.SymInt):
                names.setdefault(str(size), f"{node.name}_{axis}" if axis else "batch")
        found.append(tuple(names[str(n)] if isinstance(n, torch.SymInt) else None for n in value.shape))
    return tuple(found)


def _mode(model: nn.Module | None, path: str) -> bool:
    # A submodule that the model does not have follows the one around it.
    while model is not None and path:
        try:
            return model.get_submodule(path).training
        except AttributeError:
            path = path.rpartition(".")[0]
    return model is not None and model.training


def _tensors_of(module: fx.GraphModule) -> nn.Module:
    # The tensors without the graph; they are copies, as an ExportedProgram may be the caller's.
    bare = nn.Module()
    memo: dict[int, torch.Tensor] = {}

    def owned(tensor: torch.Tensor) -> torch.Tensor:
        if id(tensor) not in memo:
            copied = tensor.detach().clone()
            memo[id(tensor)] = nn.Parameter(copied, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else copied
        return memo[id(tensor)]

    for path, source in module.named_modules(remove_duplicate=False):
        holder = at(bare, path)
        for name, tensor in {**source._parameters, **source._buffers, **vars(source)}.items():
            if isinstance(tensor, nn.Parameter):
                holder.register_parameter(name, owned(tensor))  # type: ignore[arg-type]
            elif isinstance(tensor, torch.Tensor):
                persistent = name in source._buffers and name not in source._non_persistent_buffers_set
                holder.register_buffer(name, owned(tensor), persistent=persistent)
    return bare


def _norm_module(owner: nn.Module, module: fx.GraphModule, node: fx.Node, kinds: dict[int, type[nn.Module]]) -> None:
    # aten.batch_norm(input, weight, bias, mean, var, training, momentum, eps, cudnn), aten.instance_norm alike,
    # become the module of the same tensors.  A batch norm without running statistics stays an op.
    x, weight, bias, mean, var, from_batch, momentum, eps = node.args[:8]
    tensors = {"weight": weight, "bias": bias, "running_mean": mean, "running_var": var}
    given = {k: v for k, v in tensors.items() if isinstance(v, fx.Node)}
    batch = nn.BatchNorm2d in kinds.values()
    if any(v.op != "get_attr" for v in given.values()) or bool(from_batch) != (mean is None) or (batch and mean is None):
        return
    rank = node.meta["val"].ndim if "val" in node.meta else 4
    found = {k: _tensor(owner, v) for k, v in given.items()}
    features = next(iter(found.values())).shape[0] if found else node.meta["val"].shape[1]
    made: Any = kinds[rank](
        int(features),
        eps=eps,
        momentum=momentum,
        affine=weight is not None or bias is not None,
        track_running_stats=mean is not None,
    )
    for name in tensors:
        value = found.get(name)
        if name in ("weight", "bias") and value is not None and not isinstance(value, nn.Parameter):
            delattr(made, name)  # a frozen norm's are buffers
            made.register_buffer(name, value)
        else:
            setattr(made, name, value)
    path = str(next(iter(given.values())).target).rpartition(".")[0] if given else _free_path(owner, node)
    counter = getattr(at(owner, path), "num_batches_tracked", None)
    if counter is not None:
        made.num_batches_tracked = counter
    if path:
        with_rest(made, at(owner, path))  # a subclass may hold its activation
        holder, _, last = path.rpartition(".")
        for root in (owner, module):
            at(root, holder).add_module(last, made)
        with node.graph.inserting_before(node):
            call = node.graph.call_module(path, (x,))
        call.meta = dict(node.meta)
        node.replace_all_uses_with(call)
        node.graph.erase_node(node)


def _free_path(owner: nn.Module, node: fx.Node) -> str:
    stack = module_stack(node)
    return stack[-1][1] if stack and stack[-1][1] and "norm" in stack[-1][2] else node.name


def _tensor(owner: nn.Module, node: fx.Node) -> torch.Tensor:
    path, _, name = str(node.target).rpartition(".")
    found: torch.Tensor = getattr(owner.get_submodule(path), name)
    return found

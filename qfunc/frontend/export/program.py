"""Capture with torch.export: convert an ExportedProgram to the functional form."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from attrs import evolve
from torch import fx, nn

from qfunc.errors import CaptureError
from qfunc.frontend.export.constant_writes import fold_constant_writes, fold_created_constants
from qfunc.frontend.export.empty_tensors import omit_empty_tensors
from qfunc.frontend.export.inline_regions import inline_regions
from qfunc.frontend.export.norms import form_of, is_decomposed, norms_as_modules, take_counters, take_dropouts
from qfunc.frontend.export.recompose import recompose
from qfunc.frontend.export.recurrent import expand_recurrent
from qfunc.frontend.functionalize import functionalize
from qfunc.frontend.fx.tracer import decoder_call, packed_sequence_error
from qfunc.frontend.refusals.already_quantized import quantizing_op_error
from qfunc.frontend.refusals.assigned_buffers import refusing_assignments
from qfunc.frontend.refusals.reserved_names import require_free_names
from qfunc.frontend.source_location import packs_sequences, user_line
from qfunc.graph.module import CapturedModule, ensure_submodule
from qfunc.graph.record import attach, record_of

_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


def program_of(model: nn.Module, example_inputs: Any) -> tuple[torch.export.ExportedProgram, int | None]:
    """Export the model in evaluation mode, with the first axis of every tensor dynamic where possible.

    Return the program and, if it is specialized to the batch size (by a loop over the batch), that size; else None.

    Args:
        model: A copy that may be modified.
        example_inputs: A tuple of positional arguments.
    Raises:
        CaptureError: torch.export refused the model; the message has its reason and the user's line.
    """
    model.eval()
    failures: list[Exception] = []
    given, specialized = example_inputs if isinstance(example_inputs, tuple) else (example_inputs,), False
    for args, dynamic in _attempts(given):
        try:
            with refusing_assignments(model):
                program = torch.export.export(model, args, dynamic_shapes=dynamic, strict=False)
        except CaptureError:
            raise
        except Exception as e:
            failures.append(e)
            continue
        requested, size = _requested_dynamic(dynamic, args), _first_size(program)
        fixed = size is not None and not _is_dynamic(size)
        specialized = specialized or (requested and fixed)
        if not specialized or args is given:  # a doubled batch of one would specialize the program to a batch of two
            return program, None if size is None or not (specialized and fixed) else int(size)
    raise _export_error(model, failures[-1]) from failures[-1]


def _export_error(model: nn.Module, error: Exception) -> CaptureError:
    first = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    on_values, wanted = "data-dependent" in str(error), "a model that torch.export accepts with these inputs"
    do = "Check that model(*example_inputs) runs; quantize submodules where the whole cannot be captured."
    if on_values:
        wanted = "a forward whose path does not depend on data"
        do = "Use torch.where, or keep the module that branches as one op, without example_inputs: leaves=MyModule."
    elif "register a pytree" in str(error):
        first = first.partition(". ")[0]
        do = "Register a dataclass by torch.export.register_dataclass(MyClass), or return a dict or a named tuple."
    where = user_line(error.__traceback__) or f"torch.export of {type(model).__name__}"
    if (quantizing := quantizing_op_error(str(error), where)) is not None:
        return quantizing
    if packs_sequences(error.__traceback__):
        return packed_sequence_error(where)
    return CaptureError(
        where=where,
        found="control flow on the values of a tensor" if on_values else f"{type(error).__name__}: {first}",
        wanted=wanted,
        do=decoder_call(model) or do,
    )


def _requested_dynamic(dynamic: Any, args: tuple[Any, ...]) -> bool:
    # Return True if a dynamic first axis was requested for the first tensor.
    requested: list[bool] = []
    _map_leaves(args, lambda t: requested.append(dynamic is not None and t.ndim > 0 and t.shape[0] > 1))
    return bool(requested) and requested[0]


def _first_size(program: torch.export.ExportedProgram) -> Any:
    # Return the size of the first axis of the first tensor input: a number if torch.export specialized it.
    ours = set(program.graph_signature.user_inputs)
    values = [n.meta.get("val") for n in program.graph.nodes if n.op == "placeholder" and n.name in ours]
    first = next((v for v in values if isinstance(v, torch.Tensor)), None)
    return first.shape[0] if first is not None and first.ndim else None


def _attempts(inputs: tuple[Any, ...]) -> Iterator[tuple[tuple[Any, ...], Any]]:
    # torch.export never makes an axis of length 1 dynamic, so try a doubled batch first.
    lengths: set[int] = set()
    _map_leaves(inputs, lambda t: lengths.add(t.shape[0]) if t.ndim else None)
    if lengths == {1}:
        doubled = _map_leaves(inputs, lambda t: torch.cat([t, t]) if t.ndim else t)
        yield doubled, _dynamic(doubled)
    yield inputs, _dynamic(inputs)
    yield inputs, None


def _dynamic(inputs: tuple[Any, ...]) -> Any:
    auto = {0: torch.export.Dim.AUTO}
    return _map_leaves(inputs, lambda t: auto if t.ndim and t.shape[0] > 1 else None, plain=lambda _: None)


def _map_leaves(value: Any, of_tensor: Callable[[torch.Tensor], Any], plain: Callable[[Any], Any] = lambda v: v) -> Any:
    # Map the leaves of a nested structure.
    if isinstance(value, torch.Tensor):
        return of_tensor(value)
    if isinstance(value, dict):
        return {k: _map_leaves(v, of_tensor, plain) for k, v in value.items()}
    if isinstance(value, list | tuple):
        inner = [_map_leaves(v, of_tensor, plain) for v in value]
        return type(value)(*inner) if hasattr(value, "_fields") else type(value)(inner)
    return plain(value)


def from_program(program: torch.export.ExportedProgram, modes_of: nn.Module | None = None) -> CapturedModule:
    """Return the functional form of an exported program: weights become attributes, norms and dropouts become modules.

    Guards on the inputs' shapes are omitted, because they would fix dynamic sizes.  Each submodule gets its mode from
    `modes_of`, or, without it, from the mode in which the program was exported.
    """
    require_free_names((*program.state_dict, *program.constants))
    module: Any = program.module(check_guards=False)
    ours = set(program.graph_signature.user_inputs)
    inputs = [n for n in program.graph.nodes if n.op == "placeholder" and n.name in ours]
    decomposed = program.dialect != "TRAINING"
    form = form_of(program.graph, decomposed, "an ExportedProgram")
    return _functional_form(module, inputs, (False, "") if modes_of is not None else form, modes_of, decomposed)


def is_module_of_a_program(model: Any) -> bool:
    """Return True if a module was created by `ExportedProgram.module()`.

    >>> is_module_of_a_program(torch.export.export(nn.ReLU(), (torch.ones(1),)).module())
    True
    """
    exported = isinstance(model, fx.GraphModule) and getattr(model.graph._codegen, "pytree_info", None) is not None
    return exported and any(n.op == "call_function" and str(n.target).startswith("aten.") for n in model.graph.nodes)


def from_program_module(module: fx.GraphModule) -> CapturedModule:
    """Return the functional form of the module of an exported program, as `from_program` does, and modify `module`."""
    inputs = [n for n in module.graph.nodes if n.op == "placeholder"]
    decomposed = is_decomposed(module.graph)
    return _functional_form(
        module, inputs, form_of(module.graph, decomposed, "the module of an ExportedProgram"), None, decomposed
    )


def _functional_form(
    module: fx.GraphModule, inputs: list[fx.Node], form: tuple[bool, str], modes_of: nn.Module | None, decomposed: bool
) -> CapturedModule:
    axes, sizes = _axes(inputs), _sizes(inputs)
    inline_regions(module)
    omit_empty_tensors(module.graph)
    bound = modes_of is None or any(_resizes_to_numbers(n) for n in module.graph.nodes)
    if decomposed:
        recompose(module.graph)
    graph, owner = module.graph, _tensors_of(module)
    _read_by_first_names(graph, owner)
    expand_recurrent(graph)
    for node in reversed(graph.nodes):
        name = getattr(node.target, "__name__", "")
        if node.op == "call_module" and str(node.target).startswith("_guards"):
            graph.erase_node(node)
        elif node.op == "call_function" and not node.users and ("_assert" in name or "sym_constrain" in name):
            graph.erase_node(node)  # torch.export's assumptions about symbolic sizes
    _bind_inputs_first(graph)
    counted = take_counters(graph)
    trains, fixes = form
    norms_as_modules(owner, module, counted, modes_of)
    fold_constant_writes(graph, owner, module)
    fold_created_constants(graph, owner, module)
    captured = functionalize(owner, graph, take_dropouts(graph) if trains else None)
    record = record_of(captured)
    assert record is not None
    attach(captured, evolve(record, axes=axes, evaluated=fixes, sizes=sizes if bound else ()))
    for path, submodule in captured.named_modules():
        frozen = isinstance(submodule, _BATCH_NORMS) and path not in counted
        submodule.training = trains and not frozen if modes_of is None else _mode(modes_of, path)
    return captured


def _axes(inputs: list[fx.Node]) -> tuple[tuple[str | None, ...], ...]:
    # Return the names of the inputs' dynamic axes; a dynamic first axis is the batch.
    names, axes = dict[str, str](), []
    for node in inputs:
        value = node.meta.get("val")
        if not isinstance(value, torch.Tensor):
            continue
        for axis, size in enumerate(value.shape):
            if _is_dynamic(size):
                names.setdefault(str(size), f"{node.target}_{axis}" if axis else "batch")
        axes.append(tuple(names[str(n)] if _is_dynamic(n) else None for n in value.shape))
    return tuple(axes)


def _sizes(inputs: list[fx.Node]) -> tuple[tuple[str, tuple[int | None, ...]], ...]:
    # Return the name and the sizes of each tensor input; a dynamic size is None.
    values = [(str(node.target), node.meta.get("val")) for node in inputs]
    shapes = [(name, value.shape) for name, value in values if isinstance(value, torch.Tensor)]
    return tuple((name, tuple(None if _is_dynamic(n) else int(n) for n in shape)) for name, shape in shapes)


def _resizes_to_numbers(node: fx.Node) -> bool:
    # True if an op resizes to numbers, as with `size=x.shape[-2:]` of an x whose sizes the export fixed: with an x of other
    # sizes the program would run, and return what the model does not.
    size = node.args[1] if "upsample_" in getattr(node.target, "__name__", "") and len(node.args) > 1 else None
    return isinstance(size, list | tuple) and any(isinstance(n, int) for n in size)


def _is_dynamic(size: Any) -> bool:
    # A symbol that torch.export specialized later stays a SymInt and prints as a number.
    return isinstance(size, torch.SymInt) and not str(size).isdigit()


def _mode(model: nn.Module | None, path: str) -> bool:
    # A submodule that the model lacks takes the mode of its parent.
    while model is not None and path:
        try:
            return model.get_submodule(path).training
        except AttributeError:
            path = path.rpartition(".")[0]
    return model is not None and model.training


def _tensors_of(module: fx.GraphModule) -> nn.Module:
    # Return the tensors without the graph, as copies: the ExportedProgram may belong to the caller.
    bare = nn.Module()
    memo: dict[int, torch.Tensor] = {}

    def owned(tensor: torch.Tensor) -> torch.Tensor:
        if id(tensor) not in memo:
            copied = tensor.detach().clone()
            memo[id(tensor)] = nn.Parameter(copied, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else copied
        return memo[id(tensor)]

    for path, source in module.named_modules(remove_duplicate=False):
        holder = ensure_submodule(bare, path)
        for name, tensor in {**source._parameters, **source._buffers, **vars(source)}.items():
            if isinstance(tensor, nn.Parameter):
                holder.register_parameter(name, owned(tensor))  # type: ignore[arg-type]
            elif isinstance(tensor, torch.Tensor):
                persistent = name in source._buffers and name not in source._non_persistent_buffers_set
                holder.register_buffer(name, owned(tensor), persistent=persistent)
    return bare


def _bind_inputs_first(graph: fx.Graph) -> None:
    # A parameter with the name of an argument would take it before the code gives the argument another name.
    inputs = [n for n in graph.nodes if n.op == "placeholder"]
    named = {str(n.target).replace(".", "_") for n in graph.nodes if n.op == "get_attr"}
    if named.isdisjoint(str(n.target) for n in inputs):
        return
    first = next(iter(graph.nodes))
    for node in inputs:
        if node is not first:
            first.prepend(node)


def _read_by_first_names(graph: fx.Graph, owner: nn.Module) -> None:
    # torch.export reads a tied parameter by its last name; state_dicts, checkpoints and torch.fx have the first.
    named = [*owner.named_parameters(remove_duplicate=False)]
    first = {id(parameter): name for name, parameter in reversed(named)}
    name_of = {name: first[id(parameter)] for name, parameter in named}
    for node in graph.nodes:
        if node.op == "get_attr":
            node.target = name_of.get(node.target, node.target)

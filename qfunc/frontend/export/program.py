"""The torch.export road: an ExportedProgram becomes the same functional form."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from attrs import evolve
from torch import fx, nn

from qfunc.errors import CaptureError
from qfunc.frontend.export.constant_writes import fold_constant_writes
from qfunc.frontend.export.inline_regions import inline_regions
from qfunc.frontend.export.norms import form_of, is_decomposed, norms_as_modules, take_counters, take_dropouts
from qfunc.frontend.export.recompose import recompose
from qfunc.frontend.export.recurrent import expand_recurrent
from qfunc.frontend.functionalize import functionalize
from qfunc.frontend.fx.tracer import packed_sequence_error
from qfunc.frontend.source_location import packs_sequences, user_line
from qfunc.graph.module import CapturedModule, ensure_submodule
from qfunc.graph.record import attach, record_of

_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


def program_of(model: nn.Module, example_inputs: Any) -> tuple[torch.export.ExportedProgram, int | None]:
    """The model, which is put in evaluation mode, exported; first axis of every tensor dynamic where it can be.

    The number is the size of the first input's first axis if the program computes something for that size alone, as one
    that loops over a batch does.

    Args:
        model: A copy that may be written to.
        example_inputs: A tuple of positional arguments.
    Raises:
        CaptureError: torch.export refused the model; the message carries its reason and the user's line.
    """
    model.eval()
    failures: list[Exception] = []
    given, loops = example_inputs if isinstance(example_inputs, tuple) else (example_inputs,), False
    for args, dynamic in _attempts(given):
        try:
            program = torch.export.export(model, args, dynamic_shapes=dynamic, strict=False)
        except Exception as e:
            failures.append(e)
            continue
        asked, size = _first(dynamic, args), _first_of(program)
        fixed = size is not None and not _varies(size)
        loops = loops or (asked and fixed)
        if not loops or args is given:  # of a batch of one that was doubled, the program would be that of two
            return program, None if size is None or not (loops and fixed) else int(size)
    raise _refused(model, failures[-1]) from failures[-1]


def _refused(model: nn.Module, error: Exception) -> CaptureError:
    first = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    on_values, wanted = "data-dependent" in str(error), "a model that torch.export takes with these inputs"
    do = "Check that model(*example_inputs) runs; quantize submodules where the whole cannot be captured."
    if on_values:
        wanted = "a forward whose path does not depend on data"
        do = "Use torch.where, or keep the module that decides as one op, without example_inputs: leaves=MyModule."
    elif "register a pytree" in str(error):
        first = first.partition(". ")[0]
        do = "Register a dataclass by torch.export.register_dataclass(MyClass), or return a dict or a named tuple."
    if packs_sequences(error.__traceback__):
        return packed_sequence_error(user_line(error.__traceback__) or f"torch.export of {type(model).__name__}")
    return CaptureError(
        where=user_line(error.__traceback__) or f"torch.export of {type(model).__name__}",
        found="control flow on the values of a tensor" if on_values else f"{type(error).__name__}: {first}",
        wanted=wanted,
        do=do,
    )


def _first(dynamic: Any, args: tuple[Any, ...]) -> bool:
    # Whether the first axis of the first tensor was to be dynamic.
    asked: list[bool] = []
    _each(args, lambda t: asked.append(dynamic is not None and t.ndim > 0 and t.shape[0] > 1))
    return bool(asked) and asked[0]


def _first_of(program: torch.export.ExportedProgram) -> Any:
    # The size of the first axis of the first input that is a tensor: a number if torch.export fixed it.
    ours = set(program.graph_signature.user_inputs)
    values = [n.meta.get("val") for n in program.graph.nodes if n.op == "placeholder" and n.name in ours]
    first = next((v for v in values if isinstance(v, torch.Tensor)), None)
    return first.shape[0] if first is not None and first.ndim else None


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


def from_program(program: torch.export.ExportedProgram, modes_of: nn.Module | None = None) -> CapturedModule:
    """The functional form of an exported program: weights are attributes again, norms and dropouts modules.

    Guards on the inputs' shapes are left out: they would fix what may vary.  The modes are those of
    `modes_of`, submodule by submodule; without it those in which the program was exported.
    """
    module: Any = program.module(check_guards=False)
    ours = set(program.graph_signature.user_inputs)
    inputs = [n for n in program.graph.nodes if n.op == "placeholder" and n.name in ours]
    decomposed = program.dialect != "TRAINING"
    form = form_of(program.graph, decomposed, "an ExportedProgram")
    return _opened(module, inputs, (False, "") if modes_of is not None else form, modes_of, decomposed)


def is_module_of_a_program(model: Any) -> bool:
    """Whether a module is what `ExportedProgram.module()` makes.

    >>> is_module_of_a_program(torch.export.export(nn.ReLU(), (torch.ones(1),)).module())
    True
    """
    exported = isinstance(model, fx.GraphModule) and getattr(model.graph._codegen, "pytree_info", None) is not None
    return exported and any(n.op == "call_function" and str(n.target).startswith("aten.") for n in model.graph.nodes)


def from_program_module(module: fx.GraphModule) -> CapturedModule:
    """The module of an exported program as `from_program` opens the program; it may be written to."""
    inputs = [n for n in module.graph.nodes if n.op == "placeholder"]
    decomposed = is_decomposed(module.graph)
    return _opened(module, inputs, form_of(module.graph, decomposed, "the module of an ExportedProgram"), None, decomposed)


def _opened(
    module: fx.GraphModule, inputs: list[fx.Node], form: tuple[bool, str], modes_of: nn.Module | None, decomposed: bool
) -> CapturedModule:
    axes, sizes = _axes(inputs), _sizes(inputs)
    inline_regions(module)
    if decomposed:
        recompose(module.graph)
    graph, owner = module.graph, _tensors_of(module)
    expand_recurrent(graph)
    for node in reversed(graph.nodes):
        name = getattr(node.target, "__name__", "")
        if node.op == "call_module" and str(node.target).startswith("_guards"):
            graph.erase_node(node)
        elif node.op == "call_function" and not node.users and ("_assert" in name or "sym_constrain" in name):
            graph.erase_node(node)  # what export assumed of symbolic sizes
    counted = take_counters(graph)
    trains, fixes = form
    norms_as_modules(owner, module, counted, modes_of)
    fold_constant_writes(graph, owner, module)
    captured = functionalize(owner, graph, take_dropouts(graph) if trains else None)
    record = record_of(captured)
    assert record is not None
    attach(captured, evolve(record, axes=axes, evaluated=fixes, sizes=sizes if modes_of is None else ()))
    for path, submodule in captured.named_modules():
        frozen = isinstance(submodule, _BATCH_NORMS) and path not in counted
        submodule.training = trains and not frozen if modes_of is None else _mode(modes_of, path)
    return captured


def _axes(inputs: list[fx.Node]) -> tuple[tuple[str | None, ...], ...]:
    # The names of the inputs' axes that may vary; what varies on first axes is the batch.
    names, found = dict[str, str](), []
    for node in inputs:
        value = node.meta.get("val")
        if not isinstance(value, torch.Tensor):
            continue
        for axis, size in enumerate(value.shape):
            if _varies(size):
                names.setdefault(str(size), f"{node.target}_{axis}" if axis else "batch")
        found.append(tuple(names[str(n)] if _varies(n) else None for n in value.shape))
    return tuple(found)


def _sizes(inputs: list[fx.Node]) -> tuple[tuple[str, tuple[int | None, ...]], ...]:
    # The name of each input that is a tensor, and its sizes, None for those that may vary.
    values = [(str(node.target), node.meta.get("val")) for node in inputs]
    shapes = [(name, value.shape) for name, value in values if isinstance(value, torch.Tensor)]
    return tuple((name, tuple(None if _varies(n) else int(n) for n in shape)) for name, shape in shapes)


def _varies(size: Any) -> bool:
    # Symbols that torch.export fixed in the end stay symbols that print as numbers.
    return isinstance(size, torch.SymInt) and not str(size).isdigit()


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
        holder = ensure_submodule(bare, path)
        for name, tensor in {**source._parameters, **source._buffers, **vars(source)}.items():
            if isinstance(tensor, nn.Parameter):
                holder.register_parameter(name, owned(tensor))  # type: ignore[arg-type]
            elif isinstance(tensor, torch.Tensor):
                persistent = name in source._buffers and name not in source._non_persistent_buffers_set
                holder.register_buffer(name, owned(tensor), persistent=persistent)
    return bare

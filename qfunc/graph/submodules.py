"""Outer modules: the unquantized modules around quantized submodules."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, fx, nn

from qfunc.errors import SpecError
from qfunc.graph.copying import own_copy
from qfunc.graph.hooks import transfer_hooks
from qfunc.graph.record import record_of
from qfunc.graph.stages import require_stage, require_unwrapped, unwrap


def quantized_submodules(model: Any) -> dict[str, fx.GraphModule]:
    """Return the outermost quantized submodules of a module by path; {"": model} if the model itself is quantized.

    >>> quantized_submodules(nn.Sequential(nn.ReLU()))
    {}
    """
    if _is_quantized(model):
        return {"": model}
    outermost: dict[str, fx.GraphModule] = {}
    for path, module in model.named_modules() if isinstance(model, nn.Module) else ():
        if (
            isinstance(module, fx.GraphModule)
            and _is_quantized(module)
            and not any(path.startswith(f"{p}.") for p in outermost)
        ):
            outermost[path] = module
    return outermost


def _is_quantized(model: Any) -> bool:
    record = record_of(model) if isinstance(model, fx.GraphModule) else None
    return record is not None and record.target is not None and record.stage != "captured"


def require_submodules(model: Any, stage: str, step: str) -> dict[str, fx.GraphModule]:
    """Return the `quantized_submodules`, each of which has reached `stage` ("quantized" or "calibrated").

    Raises:
        CalibrationError: a submodule has not reached the stage, or no submodule is quantized.
    """
    require_unwrapped(model, stage, step)
    submodules = quantized_submodules(model)
    for part in submodules.values() or [model]:
        require_stage(part, stage, step)
    return submodules


def with_submodules(outer: nn.Module, new: Mapping[str, nn.Module], where: str = "") -> nn.Module:
    """Return a copy of an outer module with some submodules replaced, wherever it refers to them.

    Hooks on the replaced submodules move to the new modules.  If `where` names the current step, tensors that the
    submodules share with each other or with the rest stay shared.

    Raises:
        SpecError: a new module lacks a shared tensor, or has it with other values.
    """
    if "" in new:
        return new[""]
    memo: dict[int, Any] = _shared_tensors(outer, new, where) if where else {}
    for path, module in new.items():
        old = outer.get_submodule(path)
        memo[id(old)] = memo[id(unwrap(old))] = module
    copied = own_copy(outer, memo)
    for path, module in new.items():
        transfer_hooks(unwrap(outer.get_submodule(path)), module, memo)
    return copied


def _shared_tensors(outer: nn.Module, new: Mapping[str, nn.Module], where: str) -> dict[int, Any]:
    # Map each outer tensor to the tensor of the new modules that replaces it, so that shared tensors stay shared.
    everywhere = dict(outer.named_modules(remove_duplicate=False))
    inside = [path for path, m in everywhere.items() if any(m is everywhere[one] for one in new)]
    rest = {path: m for path, m in everywhere.items() if not _is_inside(path, inside)}
    outside = {id(t): ("", f"{path}.{name}".lstrip(".")) for path, m in rest.items() for name, t in _direct_tensors(m)}
    memo: dict[int, Any] = {}
    for path, module in new.items():
        for name, tensor in _tensors(unwrap(outer.get_submodule(path))):
            replacement = _get(module, name)
            owner, other = outside.get(id(tensor), (path, name))
            # Tensors that are shared within one module may change.
            if owner != path and (replacement is None or not _equal(replacement, tensor)):
                raise SpecError(
                    where=where,
                    found=f"tensor {path}.{name}, which is shared with {other} and would change in one place only",
                    wanted="shared tensors that do not change",
                    do="Name a submodule that contains both, or give one of them a copy.",
                )
            if replacement is None:
                continue
            if id(tensor) in memo and _equal(replacement, memo[id(tensor)]):
                _set(module, name, memo[id(tensor)])
            outside.setdefault(id(tensor), (path, f"{path}.{name}"))
            memo.setdefault(id(tensor), replacement)
    return memo


def _is_inside(path: str, inside: Iterable[str]) -> bool:
    return any(path == part or path.startswith(f"{part}.") for part in inside)


def _direct_tensors(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    for name, tensor in (*module._parameters.items(), *module._buffers.items()):
        if tensor is not None:
            yield name, tensor


def _tensors(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from module.named_parameters(remove_duplicate=False)
    yield from module.named_buffers(remove_duplicate=False)


def _get(module: nn.Module, name: str) -> Tensor | None:
    path, _, last = name.rpartition(".")
    try:
        value = getattr(module.get_submodule(path), last, None)
    except AttributeError:
        return None
    return value if isinstance(value, Tensor) else None


def _set(module: nn.Module, name: str, tensor: Tensor) -> None:
    path, _, last = name.rpartition(".")
    holder = module.get_submodule(path)
    tensors: Any = holder._parameters if last in holder._parameters else holder._buffers
    tensors[last] = tensor


def _equal(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and a.dtype == b.dtype and torch.equal(a, b)


def same_outer_model(a: nn.Module, b: nn.Module) -> bool:
    """Return True if two modules have equal classes and tensors outside their quantized submodules."""
    if a is b:
        return True
    left, right = outer_model(a), outer_model(b)
    if [(path, type(m)) for path, m in left] != [(path, type(m)) for path, m in right]:
        return False
    pairs = [(dict(_direct_tensors(x)), dict(_direct_tensors(y))) for (_, x), (_, y) in zip(left, right, strict=True)]
    return all(x.keys() == y.keys() and all(_equal(x[k], y[k]) for k in x) for x, y in pairs)


def outer_model(outer: nn.Module) -> list[tuple[str, nn.Module]]:
    """Return the modules outside the quantized submodules, each with its path."""
    inside = quantized_submodules(outer)
    return [] if "" in inside else [(path, m) for path, m in outer.named_modules() if not _is_inside(path, inside)]


def run_submodules(outer: nn.Module, steps: Mapping[str, Callable[..., Any]]) -> nn.Module:
    """Return a copy in evaluation mode with other forwards for the submodules at some paths; it shares the parameters."""
    copied = own_copy(outer, {id(p): p for p in outer.parameters()}).eval()
    for path, step in steps.items():
        vars(copied.get_submodule(path))["forward"] = step
    return copied

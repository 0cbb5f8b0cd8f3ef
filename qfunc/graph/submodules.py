"""Outer modules: what is around quantized submodules, and stays as it is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, fx, nn

from qfunc.errors import SpecError
from qfunc.graph.copying import own_copy
from qfunc.graph.hooks import transfer_hooks
from qfunc.graph.record import record_of
from qfunc.graph.stages import require_stage, require_unwrapped
from qfunc.graph.wrappers import unwrap


def quantized_submodules(model: Any) -> dict[str, fx.GraphModule]:
    """The quantized submodules of a module by path, the outermost; {"": model} if the model itself is quantized.

    >>> quantized_submodules(nn.Sequential(nn.ReLU()))
    {}
    """
    if _is_quantized(model):
        return {"": model}
    found: dict[str, fx.GraphModule] = {}
    for path, module in model.named_modules() if isinstance(model, nn.Module) else ():
        if isinstance(module, fx.GraphModule) and _is_quantized(module) and not any(path.startswith(f"{p}.") for p in found):
            found[path] = module
    return found


def _is_quantized(model: Any) -> bool:
    record = record_of(model) if isinstance(model, fx.GraphModule) else None
    return record is not None and record.target is not None and record.stage != "captured"


def require_submodules(model: Any, stage: str, step: str) -> dict[str, fx.GraphModule]:
    """As `quantized_submodules`, each of which has reached `stage` ("quantized" or "calibrated").

    Raises:
        CalibrationError: one has not, or there is none.
    """
    require_unwrapped(model, stage, step)
    found = quantized_submodules(model)
    for part in found.values() or [model]:
        require_stage(part, stage, step)
    return found


def with_submodules(outer: nn.Module, new: Mapping[str, nn.Module], where: str = "") -> nn.Module:
    """A copy of an outer module with other modules in place of some submodules, wherever it refers to them.

    What the copy has of hooks on those submodules, the other modules get.  Tensors that the submodules share with each
    other or with the rest stay shared, if `where` says in which step.

    Raises:
        SpecError: a shared tensor that the other modules do not have, or have with other values.
    """
    if "" in new:
        return new[""]
    memo: dict[int, Any] = _ties(outer, new, where) if where else {}
    for path, module in new.items():
        old = outer.get_submodule(path)
        memo[id(old)] = memo[id(unwrap(old))] = module
    made = own_copy(outer, memo)
    for path, module in new.items():
        transfer_hooks(unwrap(outer.get_submodule(path)), module, memo)
    return made


def _ties(outer: nn.Module, new: Mapping[str, nn.Module], where: str) -> dict[int, Any]:
    # The tensors of the new modules by those that they replace outside: one that is shared stays one.
    everywhere = dict(outer.named_modules(remove_duplicate=False))
    inside = [path for path, m in everywhere.items() if any(m is everywhere[one] for one in new)]
    rest = {path: m for path, m in everywhere.items() if not _under(path, inside)}
    outside = {id(t): ("", f"{path}.{name}".lstrip(".")) for path, m in rest.items() for name, t in _own(m)}
    memo: dict[int, Any] = {}
    for path, module in new.items():
        for name, tensor in _tensors(unwrap(outer.get_submodule(path))):
            twin = _get(module, name)
            owner, other = outside.get(id(tensor), (path, name))
            if owner != path and (twin is None or not _equal(twin, tensor)):  # one module's ties change with it
                raise SpecError(
                    where=where,
                    found=f"tensor {path}.{name}, which is also {other} and would change on one side only",
                    wanted="shared tensors that stay what they are",
                    do="Name a submodule that holds both, or give one of them a copy.",
                )
            if twin is None:
                continue
            if id(tensor) in memo and _equal(twin, memo[id(tensor)]):
                _set(module, name, memo[id(tensor)])
            outside.setdefault(id(tensor), (path, f"{path}.{name}"))
            memo.setdefault(id(tensor), twin)
    return memo


def _under(path: str, inside: Iterable[str]) -> bool:
    return any(path == part or path.startswith(f"{part}.") for part in inside)


def _own(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    for name, tensor in (*module._parameters.items(), *module._buffers.items()):
        if tensor is not None:
            yield name, tensor


def _tensors(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from module.named_parameters(remove_duplicate=False)
    yield from module.named_buffers(remove_duplicate=False)


def _get(module: nn.Module, name: str) -> Tensor | None:
    path, _, last = name.rpartition(".")
    try:
        found = getattr(module.get_submodule(path), last, None)
    except AttributeError:
        return None
    return found if isinstance(found, Tensor) else None


def _set(module: nn.Module, name: str, tensor: Tensor) -> None:
    path, _, last = name.rpartition(".")
    holder = module.get_submodule(path)
    held: Any = holder._parameters if last in holder._parameters else holder._buffers
    held[last] = tensor


def _equal(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and a.dtype == b.dtype and torch.equal(a, b)


def same_outer_model(a: nn.Module, b: nn.Module) -> bool:
    """Whether two modules have equal classes and tensors outside of their quantized submodules."""
    if a is b:
        return True
    left, right = outer_model(a), outer_model(b)
    if [(path, type(m)) for path, m in left] != [(path, type(m)) for path, m in right]:
        return False
    pairs = [(dict(_own(x)), dict(_own(y))) for (_, x), (_, y) in zip(left, right, strict=True)]
    return all(x.keys() == y.keys() and all(_equal(x[k], y[k]) for k in x) for x, y in pairs)


def outer_model(outer: nn.Module) -> list[tuple[str, nn.Module]]:
    """The modules outside of the quantized submodules, each with its path."""
    inside = quantized_submodules(outer)
    return [] if "" in inside else [(path, m) for path, m in outer.named_modules() if not _under(path, inside)]


def run_submodules(outer: nn.Module, steps: Mapping[str, Callable[..., Any]]) -> nn.Module:
    """A copy in evaluation mode, which shares the parameters, and whose submodules at some paths do something else."""
    copied = own_copy(outer, {id(p): p for p in outer.parameters()}).eval()
    for path, step in steps.items():
        vars(copied.get_submodule(path))["forward"] = step
    return copied


__all__ = ["outer_model", "quantized_submodules", "with_submodules", "require_submodules", "run_submodules", "same_outer_model"]

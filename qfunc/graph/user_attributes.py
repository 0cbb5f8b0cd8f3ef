"""Copy the user's attributes, class attributes, properties and methods to a captured model."""

from __future__ import annotations

import copy
from collections.abc import Set
from typing import Any

from attrs import evolve
from torch import Tensor, fx, nn

from qfunc.graph.module_shells import OF_MODULES, ORIGIN, ModuleShell, Origin, add_user_members, module_shell, origin_of


def copy_user_attributes(captured: fx.GraphModule, owner: nn.Module, op_paths: Set[str] = frozenset()) -> fx.GraphModule:
    """Copy the attributes and methods of `owner` to a new captured model, in place, and return the model.

    Attributes are copied deeply, as `copy.deepcopy(owner)` does; a reference to a tensor or submodule
    of `owner`, or to `owner`, becomes a reference to its counterpart in `captured`.  Methods and properties are those of
    the class, bound to `captured`; class attributes are read through the class.  Special methods and members that
    `nn.Module` or `fx.GraphModule` define (`train`, `graph`, `state_dict`) are not replaced.

    Args:
        captured: The captured model; no other instance shares its class.
        owner: The user's model, or the captured one from which `captured` was built.
        op_paths: Paths of the user's modules with ops in the graph.  A submodule without tensors and without ops (a loss)
            is copied as an attribute, unless `op_paths` is empty.
    """
    memo: dict[int, Any] = {}
    pairs: list[tuple[nn.Module, nn.Module]] = []
    unused_modules: list[tuple[str, nn.Module]] = []
    for path, module in owner.named_modules(remove_duplicate=False):
        counterpart, origin = _get(captured, path), origin_of(module)
        if ORIGIN not in vars(module):
            origin = evolve(origin, path=path)
        if counterpart is captured:
            vars(captured)[ORIGIN] = origin
            add_user_members(captured)
        elif counterpart is None and op_paths and _is_unused(path, module, op_paths):
            unused_modules.append((path, module))
            continue
        elif counterpart is None or type(counterpart) in (nn.Module, ModuleShell):
            counterpart = _insert_shell(captured, path, counterpart, origin)
        memo.setdefault(id(module), counterpart)
        for name, tensor in {**module._parameters, **module._buffers}.items():
            if tensor is not None and isinstance(getattr(counterpart, name, None), Tensor):
                memo.setdefault(id(tensor), getattr(counterpart, name))
        if isinstance(counterpart, ModuleShell) or (counterpart is not None and counterpart is captured):
            pairs.append((module, counterpart))
    for path, unused in unused_modules:  # last, because they may refer to any other module
        parent, _, name = path.rpartition(".")
        _copy_unused(unused, memo[id(owner.get_submodule(parent))], name, memo)
    for module, counterpart in pairs:
        for name in origin_of(counterpart).attributes:
            exists = (
                name in vars(counterpart)
                or name in counterpart._parameters
                or name in counterpart._buffers
                or name in counterpart._modules
            )
            # A tensor that a forward computed and stored is not part of the model, and cannot be copied.
            computed = isinstance(vars(module).get(name), Tensor) and not vars(module)[name].is_leaf
            if name in vars(module) and not exists and not computed:
                vars(counterpart)[name] = copy.deepcopy(vars(module)[name], memo)
    return captured


def _copy_unused(unused: nn.Module, parent: nn.Module, name: str, memo: dict[int, Any]) -> None:
    copied = copy.deepcopy(unused, memo)
    if ORIGIN in vars(parent) and name not in OF_MODULES:
        origin = origin_of(parent)
        vars(parent)[ORIGIN] = evolve(origin, attributes=(*origin.attributes, name))
        vars(parent)[name] = copied


def _is_unused(path: str, module: nn.Module, op_paths: Set[str]) -> bool:
    # Unused in the forward and without tensors, so it is not a float copy of a part of the graph.
    used = any(one == path or one.startswith(f"{path}.") for one in op_paths)
    return not used and not any(True for _ in module.parameters()) and not any(True for _ in module.buffers())


def _insert_shell(captured: nn.Module, path: str, old: nn.Module | None, origin: Origin) -> nn.Module:
    # Registered where the graph reads tensors; otherwise only attributes refer to it.
    new = module_shell(origin)
    if old is not None:
        vars(new).update(vars(old))
        parent, _, name = path.rpartition(".")
        captured.get_submodule(parent)._modules[name] = new
    vars(new)[ORIGIN] = origin
    return new


def _get(root: nn.Module, path: str) -> nn.Module | None:
    try:
        return root.get_submodule(path)
    except AttributeError:
        return None

"""What a captured model keeps of the user's own: attributes, class attributes, properties and methods, by path."""

from __future__ import annotations

import copy
from collections.abc import Set
from typing import Any

from attrs import evolve
from torch import Tensor, fx, nn

from qfunc.graph.module_shells import OF_MODULES, ORIGIN, ModuleShell, Origin, add_user_members, module_shell, origin_of


def copy_user_attributes(made: fx.GraphModule, owner: nn.Module, ran: Set[str] = frozenset()) -> fx.GraphModule:
    """Gives a (new) captured model what `owner`, of which it is a form, has of attributes and methods.

    Attributes are copied deeply, as `copy.deepcopy(owner)` would; where one refers to a tensor or submodule
    of `owner`, or to itself, the copy refers to that of `made`.  Methods and properties are those of the
    class, bound to `made`; class attributes are read through the class.  What `nn.Module` or
    `fx.GraphModule` define themselves (`train`, `graph`, `state_dict`) and special methods stay theirs.

    Args:
        made: The captured model, whose class is its own.
        owner: The user's model, or the captured one from which `made` was built.
        ran: Paths of the user's modules that left ops in the graph.  A submodule without tensors that left
            none (a loss) is an attribute like others; none is if nothing is known to have run.
    """
    memo: dict[int, Any] = {}
    pairs: list[tuple[nn.Module, nn.Module]] = []
    asides: list[tuple[str, nn.Module]] = []
    for path, module in owner.named_modules(remove_duplicate=False):
        twin, origin = _get(made, path), origin_of(module)
        if ORIGIN not in vars(module):
            origin = evolve(origin, path=path)
        if twin is made:
            vars(made)[ORIGIN] = origin
            add_user_members(made)
        elif twin is None and ran and _is_aside(path, module, ran):
            asides.append((path, module))
            continue
        elif twin is None or type(twin) in (nn.Module, ModuleShell):
            twin = _stand_in(made, path, twin, origin)
        memo.setdefault(id(module), twin)
        for name, tensor in {**module._parameters, **module._buffers}.items():
            if tensor is not None and isinstance(getattr(twin, name, None), Tensor):
                memo.setdefault(id(tensor), getattr(twin, name))
        if isinstance(twin, ModuleShell) or (twin is not None and twin is made):
            pairs.append((module, twin))
    for path, aside in asides:  # when all that they may refer to is known
        above, _, name = path.rpartition(".")
        _keep_aside(aside, memo[id(owner.get_submodule(above))], name, memo)
    for module, twin in pairs:
        for name in origin_of(twin).attributes:
            taken = name in vars(twin) or name in twin._parameters or name in twin._buffers or name in twin._modules
            # What a forward computed and left behind is none of the model's own, and cannot be copied.
            computed = isinstance(vars(module).get(name), Tensor) and not vars(module)[name].is_leaf
            if name in vars(module) and not taken and not computed:
                vars(twin)[name] = copy.deepcopy(vars(module)[name], memo)
    return made


def _keep_aside(aside: nn.Module, holder: nn.Module, name: str, memo: dict[int, Any]) -> None:
    copied = copy.deepcopy(aside, memo)
    if ORIGIN in vars(holder) and name not in OF_MODULES:
        origin = origin_of(holder)
        vars(holder)[ORIGIN] = evolve(origin, attributes=(*origin.attributes, name))
        vars(holder)[name] = copied


def _is_aside(path: str, module: nn.Module, ran: Set[str]) -> bool:
    # It takes no part in the forward and holds nothing that trains: it is no float copy of what the graph computes.
    used = any(one == path or one.startswith(f"{path}.") for one in ran)
    return not used and not any(True for _ in module.parameters()) and not any(True for _ in module.buffers())


def _stand_in(made: nn.Module, path: str, twin: nn.Module | None, origin: Origin) -> nn.Module:
    # Registered where the graph reads tensors; otherwise it only answers for what attributes refer to.
    new = module_shell(origin)
    if twin is not None:
        vars(new).update(vars(twin))
        holder, _, name = path.rpartition(".")
        made.get_submodule(holder)._modules[name] = new
    vars(new)[ORIGIN] = origin
    return new


def _get(root: nn.Module, path: str) -> nn.Module | None:
    try:
        return root.get_submodule(path)
    except AttributeError:
        return None

"""Placeholder for an inlined float module: keeps its tensors, attributes and methods; calling it raises."""

from __future__ import annotations

import copy
import functools
import io
import pickle
import sys
import types
from collections.abc import Callable, Hashable, Mapping
from typing import Any

from attrs import evolve, frozen
from torch import Tensor, fx, nn

from qfunc.errors import CaptureError

ORIGIN = "qfunc_origin"
"""The attribute that holds a module's origin."""
OF_MODULES = frozenset((*dir(fx.GraphModule), *vars(fx.GraphModule(nn.Module(), fx.Graph())), "qfunc_record", "quantizers"))
"""Names that nn.Module, GraphModule or qfunc define."""
_FLOAT_MODULE_USE = "a use of the float module {path!r}, whose ops are part of the graph"
_WANTED = "a method that uses no float submodule"
_DO = "Call the whole model, call this method of the float model, or keep the module as one op: leaves=({kind!r},)."


@frozen(eq=False)
class Origin:
    """The user's module that a placeholder replaces: class, path, submodules and the names of kept attributes."""

    kind: type[nn.Module] | None
    path: str = ""
    children: tuple[str, ...] = ()
    attributes: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()


class ModuleShell(nn.Module):
    """Placeholder for a float module with ops inlined in the graph: its tensors, attributes and methods.

    It prints as that module.

    >>> from qfunc.frontend.capture import capture
    >>> net = capture()(nn.Sequential(nn.Linear(2, 3)))
    >>> net.get_submodule("0"), net.get_submodule("0").in_features
    (Linear(weight [3, 2], bias [3]; computed in the graph), 2)
    """

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Raise: the module's ops are part of the graph.

        Raises:
            CaptureError: always; the message names the module and the user's method that called it.
        """
        raise _call_error(self)

    def __iter__(self) -> Any:
        raise _call_error(self)

    def __getitem__(self, index: Any) -> Any:
        raise _call_error(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> ModuleShell:
        copied = memo[id(self)] = module_shell(origin_of(self))
        vars(copied).update(copy.deepcopy(vars(self), memo))
        return copied

    def __reduce__(self) -> tuple[Any, ...]:
        return module_shell, (pack_shells(origin_of(self)),), pack_state(vars(self))

    def _get_name(self) -> str:
        kind = origin_of(self).kind
        return "Module" if kind is None else kind.__name__

    def extra_repr(self) -> str:
        """Return the shapes of its own tensors, and that the graph computes its ops."""
        tensors = {**self._parameters, **self._buffers}
        shapes = ", ".join(f"{name} {list(t.shape)}" for name, t in tensors.items() if t is not None)
        computed = "computed in the graph" if shapes or not self._modules else ""
        return "; ".join(filter(None, (shapes, computed)))


class _FloatModuleUsed(CaptureError):
    """A float module was called; a kept method that called it adds its own name."""


def _call_error(module: nn.Module) -> CaptureError:
    origin = origin_of(module)
    return _use_error(origin.path, "MyBlock" if origin.kind is None else origin.kind.__name__)


def _use_error(path: str, kind: str) -> CaptureError:
    return _FloatModuleUsed(
        where="captured model", found=_FLOAT_MODULE_USE.format(path=path), wanted=_WANTED, do=_DO.format(kind=kind)
    )


def origin_of(module: nn.Module) -> Origin:
    """Return the stored origin of a module, or an origin that describes the user's module itself."""
    origin = vars(module).get(ORIGIN)
    if isinstance(origin, Origin):
        return origin
    children = {k: m for k, m in module._modules.items() if m is not None}
    attributes = [k for k in vars(module) if k not in OF_MODULES and not (isinstance(module, fx.GraphModule) and k[0] == "_")]
    return Origin(type(module), "", tuple(children), tuple(attributes), tuple(type(m).__name__ for m in children.values()))


def add_user_members(model: fx.GraphModule) -> None:
    """Add the members of the user's class to the GraphModule's class, which no other instance shares."""
    kind: Any = origin_of(model).kind
    for name, member in _members(kind).items():
        setattr(type(model), name, member)


@functools.lru_cache(256)
def _class_of(kind: Hashable) -> type[ModuleShell]:
    return type("ModuleShell", (ModuleShell,), {**_members(kind), "__module__": __name__})


def module_shell(origin: Origin) -> ModuleShell:
    """Return the placeholder for a float submodule with ops inlined in the graph."""
    kind: Any = origin.kind
    shell = _class_of(kind)()
    vars(shell)[ORIGIN] = origin
    return shell


@functools.lru_cache(256)
def _members(kind: Hashable) -> Mapping[str, Any]:
    members: dict[str, Any] = {}
    for base in reversed(kind.__mro__ if isinstance(kind, type) else ()):
        if not issubclass(nn.Module, base) and not issubclass(base, fx.GraphModule):
            members |= {name: _bind(value, kind) for name, value in vars(base).items() if _is_kept(name, value)}
    return members


def _is_kept(name: str, value: Any) -> bool:
    special = name.startswith("__") and name.endswith("__")
    return not special and name not in OF_MODULES and not isinstance(value, types.MemberDescriptorType)


def _bind(value: Any, kind: Any) -> Any:
    if isinstance(value, types.FunctionType):
        return _with_error_context(value)
    if isinstance(value, property):
        return property(value.fget and _with_error_context(value.fget), value.fset, value.fdel, value.__doc__)
    return staticmethod(value.__get__(None, kind)) if isinstance(value, classmethod) else value


def _with_error_context(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a user's method: if it calls an inlined module, the error names the method and the module."""
    name = getattr(function, "__qualname__", "method").rpartition("<locals>.")[2]

    @functools.wraps(function)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return function(self, *args, **kwargs)
        except _FloatModuleUsed as e:
            raise CaptureError(where=f"method {name!r}", found=e.found, wanted=e.wanted, do=e.do) from None
        except AttributeError as e:
            if (error := _missing_submodule_error(e)) is None:
                raise
            raise CaptureError(where=f"method {name!r}", found=error.found, wanted=error.wanted, do=error.do) from None
        except TypeError as e:
            if not str(e).startswith("super(type, obj)"):
                raise
            do = "Name the parent's method: Parent.method(self, ...)."
            wanted = "a method that can be bound to the captured model"
            found = "super() without arguments, which requires the original class"
            raise CaptureError(where=f"method {name!r}", found=found, wanted=wanted, do=do) from e

    return method


def _missing_submodule_error(error: AttributeError) -> CaptureError | None:
    # Return the error for a submodule that is not in the captured model: it had no tensors, or they were folded.
    origin = vars(error.obj).get(ORIGIN) if isinstance(error.obj, nn.Module) else None
    if not isinstance(origin, Origin) or error.name not in origin.children:
        return None
    return _use_error(f"{origin.path}.{error.name}".lstrip("."), origin.kinds[origin.children.index(error.name)])


def pack_shells(origin: Origin | None) -> Origin | None:
    """Return an origin that pickle accepts: without the class if it cannot be imported by its name."""
    if origin is None or origin.kind is None:
        return origin
    importable: Any = sys.modules.get(origin.kind.__module__)
    for part in origin.kind.__qualname__.split("."):
        importable = getattr(importable, part, None)
    return origin if importable is origin.kind else evolve(origin, kind=None)


def pack_state(state: dict[str, Any]) -> dict[str, Any]:
    """Return a module's `__dict__` without the kept attributes that pickle refuses."""
    origin = state.get(ORIGIN)
    if not isinstance(origin, Origin):
        return state
    refused = [k for k in origin.attributes if k in state and not _is_picklable(state[k])]
    return {k: v for k, v in state.items() if k not in refused} | {ORIGIN: pack_shells(origin)}


class _DryRunPickler(pickle.Pickler):
    """A pickler that skips modules and tensors."""

    def persistent_id(self, obj: Any) -> Any:
        return "seen" if isinstance(obj, nn.Module | Tensor) else None


def _is_picklable(value: Any) -> bool:
    try:
        _DryRunPickler(io.BytesIO()).dump(value)
    except Exception:
        return False
    return True

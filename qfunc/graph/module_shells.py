"""What stands where a float module was: its tensors, attributes and methods, and errors where its ops would run."""

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
"""Names that are nn.Module's, GraphModule's or ours."""
_RAN = "a use of the float module {path!r}, whose ops are part of the graph"
_WANTED = "a method that reaches no float submodule"
_DO = "Call the whole model, call this method of the float model, or keep the module as one op: leaves=({kind!r},)."


@frozen(eq=False)
class Origin:
    """The module of the user's that a module stands for: its class, path, submodules, and the names it keeps."""

    kind: type[nn.Module] | None
    path: str = ""
    children: tuple[str, ...] = ()
    attributes: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()


class ModuleShell(nn.Module):
    """Stands where a float module was whose ops are in the graph now: its tensors, attributes and methods.

    It prints as that module.

    >>> from qfunc.frontend.capture import capture
    >>> net = capture()(nn.Sequential(nn.Linear(2, 3)))
    >>> net.get_submodule("0"), net.get_submodule("0").in_features
    (Linear(weight [3, 2], bias [3]; computed in the graph), 2)
    """

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Refused: the module's ops are part of the graph.

        Raises:
            CaptureError: names the module, and the method of the user's that reached it.
        """
        raise _reached(self)

    def __iter__(self) -> Any:
        raise _reached(self)

    def __getitem__(self, index: Any) -> Any:
        raise _reached(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> ModuleShell:
        made = memo[id(self)] = module_shell(origin_of(self))
        vars(made).update(copy.deepcopy(vars(self), memo))
        return made

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


class _Reached(CaptureError):
    """A float module was called; the kept method on the way adds its own name."""


def _reached(module: nn.Module) -> CaptureError:
    origin = origin_of(module)
    return _refusal(origin.path, "MyBlock" if origin.kind is None else origin.kind.__name__)


def _refusal(path: str, kind: str) -> CaptureError:
    return _Reached(where="captured model", found=_RAN.format(path=path), wanted=_WANTED, do=_DO.format(kind=kind))


def origin_of(module: nn.Module) -> Origin:
    """The origin that a module carries; of a module of the user's, what it is itself."""
    found = vars(module).get(ORIGIN)
    if isinstance(found, Origin):
        return found
    children = {k: m for k, m in module._modules.items() if m is not None}
    own = [k for k in vars(module) if k not in OF_MODULES and not (isinstance(module, fx.GraphModule) and k[0] == "_")]
    return Origin(type(module), "", tuple(children), tuple(own), tuple(type(m).__name__ for m in children.values()))


def add_user_members(made: fx.GraphModule) -> None:
    """Gives the class of a GraphModule, which is its own, the members of the user's class."""
    kind: Any = origin_of(made).kind
    for name, member in _members(kind).items():
        setattr(type(made), name, member)


@functools.lru_cache(256)
def _class_of(kind: Hashable) -> type[ModuleShell]:
    return type("ModuleShell", (ModuleShell,), {**_members(kind), "__module__": __name__})


def module_shell(origin: Origin) -> ModuleShell:
    """What stands for a float submodule whose ops are part of the graph."""
    kind: Any = origin.kind
    made = _class_of(kind)()
    vars(made)[ORIGIN] = origin
    return made


@functools.lru_cache(256)
def _members(kind: Hashable) -> Mapping[str, Any]:
    found: dict[str, Any] = {}
    for base in reversed(kind.__mro__ if isinstance(kind, type) else ()):
        if not issubclass(nn.Module, base) and not issubclass(base, fx.GraphModule):
            found |= {name: _bound(value, kind) for name, value in vars(base).items() if _is_kept(name, value)}
    return found


def _is_kept(name: str, value: Any) -> bool:
    special = name.startswith("__") and name.endswith("__")
    return not special and name not in OF_MODULES and not isinstance(value, types.MemberDescriptorType)


def _bound(value: Any, kind: Any) -> Any:
    if isinstance(value, types.FunctionType):
        return _explained(value)
    if isinstance(value, property):
        return property(value.fget and _explained(value.fget), value.fset, value.fdel, value.__doc__)
    return staticmethod(value.__get__(None, kind)) if isinstance(value, classmethod) else value


def _explained(function: Callable[..., Any]) -> Callable[..., Any]:
    """A method of the user's whose errors, where it reaches what capture took apart, name the module and itself."""
    name = getattr(function, "__qualname__", "method").rpartition("<locals>.")[2]

    @functools.wraps(function)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return function(self, *args, **kwargs)
        except _Reached as e:
            raise CaptureError(where=f"method {name!r}", found=e.found, wanted=e.wanted, do=e.do) from None
        except AttributeError as e:
            if (gone := _gone(e)) is None:
                raise
            raise CaptureError(where=f"method {name!r}", found=gone.found, wanted=gone.wanted, do=gone.do) from None
        except TypeError as e:
            if not str(e).startswith("super(type, obj)"):
                raise
            do = "Name the parent's method: Parent.method(self, ...)."
            wanted = "a method that can be bound to the captured model"
            raise CaptureError(where=f"method {name!r}", found="super(), which asks for the class", wanted=wanted, do=do) from e

    return method


def _gone(error: AttributeError) -> CaptureError | None:
    # A submodule that the captured model does not hold: it had no tensors, or they were folded away.
    origin = vars(error.obj).get(ORIGIN) if isinstance(error.obj, nn.Module) else None
    if not isinstance(origin, Origin) or error.name not in origin.children:
        return None
    return _refusal(f"{origin.path}.{error.name}".lstrip("."), origin.kinds[origin.children.index(error.name)])


def pack_shells(origin: Origin | None) -> Origin | None:
    """An origin that pickle takes: a class that cannot be imported by its name is left out."""
    if origin is None or origin.kind is None:
        return origin
    found: Any = sys.modules.get(origin.kind.__module__)
    for part in origin.kind.__qualname__.split("."):
        found = getattr(found, part, None)
    return origin if found is origin.kind else evolve(origin, kind=None)


def pack_state(state: dict[str, Any]) -> dict[str, Any]:
    """A module's `__dict__` without the kept attributes that pickle refuses."""
    origin = state.get(ORIGIN)
    if not isinstance(origin, Origin):
        return state
    left_out = [k for k in origin.attributes if k in state and not _pickles(state[k])]
    return {k: v for k, v in state.items() if k not in left_out} | {ORIGIN: pack_shells(origin)}


class _Dry(pickle.Pickler):
    """Pickles nothing but what is between modules and tensors."""

    def persistent_id(self, obj: Any) -> Any:
        return "seen" if isinstance(obj, nn.Module | Tensor) else None


def _pickles(value: Any) -> bool:
    try:
        _Dry(io.BytesIO()).dump(value)
    except Exception:
        return False
    return True

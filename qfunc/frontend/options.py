"""Options of a capture: leaf modules, arguments with fixed values, a custom tracer."""

from __future__ import annotations

import copy
import difflib
import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from attrs import frozen
from torch import fx, nn

from qfunc.errors import CaptureError, a_or_an
from qfunc.frontend.fx.mappings import is_user_mapping, rebuild_mapping
from qfunc.frontend.fx.module_forwards import forward_of
from qfunc.frontend.fx.tracer import Proxy

_PLACEHOLDER: Any = type(vars(fx)["PH"])
Leaves = str | type[nn.Module] | Iterable[str | type[nn.Module]]


def _name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def require_leaves(leaves: Any) -> tuple[str | type[nn.Module], ...]:
    """Return the leaves as a tuple.

    Raises:
        CaptureError: a leaf is neither a class nor a name.
    """
    single = isinstance(leaves, str | type | nn.Module) or not isinstance(leaves, Iterable)
    given: tuple[Any, ...] = (leaves,) if single else tuple(leaves)  # pyright: ignore[reportArgumentType]
    for one in given:
        if not isinstance(one, str) and not (isinstance(one, type) and issubclass(one, nn.Module)):
            raise CaptureError(
                where="capture, leaves",
                found=a_or_an(type(one)) if isinstance(one, nn.Module) else repr(one),
                wanted="classes of modules, or their names",
                do=f"Write leaves=({type(one).__name__},)." if isinstance(one, nn.Module) else "Write leaves=(MyBlock,).",
            )
    return given


def require_inputs(example_inputs: Any, step: str) -> None:
    """Refuse example inputs of a wrong type.

    Raises:
        CaptureError: a model, a string, a dict or a callable.
    """
    if isinstance(example_inputs, nn.Module | str | Mapping | torch.export.ExportedProgram) or callable(example_inputs):
        model = isinstance(example_inputs, nn.Module | torch.export.ExportedProgram)
        raise CaptureError(
            where=f"{step}, example_inputs",
            found=a_or_an(type(example_inputs)),
            wanted="a tuple of the positional inputs of one call",
            do=f"Write qfunc.{step}({'target' if step == 'quantize' else ''})(model)." if model else "Write (x,) or (x, y).",
        )


def leaf_classes(leaves: Leaves, model: nn.Module) -> frozenset[type[nn.Module]]:
    """Return the classes of the model's submodules that are given by class, by name or by qualified name.

    Raises:
        CaptureError: no submodule has such a class; the message lists similar names.

    >>> leaf_classes("ReLU", nn.Sequential(nn.ReLU()))
    frozenset({<class 'torch.nn.modules.activation.ReLU'>})
    """
    kinds = {type(m) for m in model.modules() if m is not model}
    selected: set[type[nn.Module]] = set()
    for leaf in require_leaves(leaves):
        matches = {k for k in kinds if k is leaf or (isinstance(leaf, str) and leaf in (k.__name__, k.__qualname__, _name(k)))}
        if not matches:
            names = sorted({k.__name__ for k in kinds})
            word = leaf.rpartition(".")[2] if isinstance(leaf, str) else getattr(leaf, "__name__", str(leaf))
            near = difflib.get_close_matches(word, names, 3, 0.4) or names[:6]
            raise CaptureError(
                where="capture, leaves",
                found=f"{leaf if isinstance(leaf, str) else word!r}, which is not the class of any submodule",
                wanted="classes of the model's submodules",
                do=f"Use one of: {', '.join(near)}." if near else "Omit leaves, because the model has no submodules.",
            )
        selected |= matches
    return frozenset(selected)


def present_arguments(spellings: Iterable[str], model: object) -> tuple[str, ...]:
    """Return the qualified names that are classes of the model's submodules.

    >>> present_arguments(("torch.relu", "torch.nn.modules.activation.ReLU"), nn.Sequential(nn.ReLU()))
    ('torch.nn.modules.activation.ReLU',)
    """
    present = {_name(type(m)) for m in model.modules() if m is not model} if isinstance(model, nn.Module) else set()
    return tuple(s for s in spellings if s in present)


def require_mapping(concrete: Any) -> dict[str, Any]:
    """Return the values of arguments by name, as a dict.

    Raises:
        CaptureError: the value is not a mapping with strings as keys.
    """
    if concrete is not None and not (isinstance(concrete, Mapping) and all(isinstance(k, str) for k in concrete)):
        do = "Write concrete_args={'gain': 2.0}."
        raise CaptureError(
            where="capture, concrete_args", found=repr(concrete), wanted="a dict of values by argument's name", do=do
        )
    return dict(concrete or {})


def require_arguments(concrete: Mapping[str, Any], model: nn.Module) -> None:
    """Refuse values for arguments that the model's forward does not have.

    Raises:
        CaptureError: the message lists the arguments that it has.
    """
    names = [
        k for k, p in inspect.signature(model.forward).parameters.items() if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    ]
    for name, value in concrete.items():
        if name not in names:
            raise CaptureError(
                where="capture, concrete_args",
                found=f"{name!r}, which is not an argument of {type(model).__name__}.forward",
                wanted="names of its arguments",
                do=f"Use one of: {', '.join(names)}.",
            )
        if isinstance(value, _PLACEHOLDER):
            raise CaptureError(
                where="capture, concrete_args",
                found=f"a placeholder for {name!r}",
                wanted="a fixed value",
                do="Give example_inputs=(...,) with the structure of the inputs.",
            )


def with_forward_bound(model: nn.Module, concrete: Mapping[str, Any]) -> nn.Module:
    """Fix some arguments of the model's forward, in place, and return the model; they are no longer inputs."""
    if not concrete:
        return model
    forward, signature = model.forward, inspect.signature(model.forward)
    free = [p for name, p in signature.parameters.items() if name not in concrete]

    @functools.wraps(forward)
    def bound(*args: Any, **kwargs: Any) -> Any:
        given = signature.replace(parameters=free).bind(*args, **kwargs)
        return forward(**given.arguments, **concrete)

    vars(bound)["__signature__"] = signature.replace(parameters=free)
    model.forward = bound
    return model


@frozen
class _Bound:
    value: Any = None


def bind(tracer: fx.Tracer, concrete: Mapping[str, Any]) -> fx.Tracer:
    """Make the tracer bind values to arguments of the root's forward instead of placeholders, and return the tracer.

    While it traces, the tracer raises CaptureError for an argument that defaults to a tensor and has no value.
    """
    proxy, arguments = tracer.create_proxy, tracer.create_args_for_root

    def create_proxy(kind: str, target: Any, *rest: Any, **more: Any) -> Any:
        if kind == "placeholder" and target in concrete:
            return _Bound(concrete[target])
        default = rest[0][0] if kind == "placeholder" and rest and rest[0] else _Bound()
        if isinstance(default, torch.Tensor):
            raise _tensor_default_error(tracer.root, str(target), default)
        if default is None or isinstance(default, bool | str):
            return default
        return proxy(kind, target, *rest, **more)

    def create_args_for_root(*rest: Any, **more: Any) -> Any:
        function, given = arguments(*rest, **more)
        return function, [v.value if isinstance(v, _Bound) else v for v in given]

    tracer.create_proxy = create_proxy  # type: ignore[method-assign]
    tracer.create_args_for_root = create_args_for_root  # type: ignore[method-assign]
    return tracer


def _tensor_default_error(root: nn.Module, name: str, default: torch.Tensor) -> CaptureError:
    return CaptureError(
        where=f"capture, argument {name!r} of {type(root).__name__}.forward",
        found=f"a Tensor of shape {list(default.shape)} as its default",
        wanted="None, a number, a bool or a string: a traced graph holds no tensor as a default",
        do=f"Register the tensor as a buffer, or fix the argument by qfunc.capture(concrete_args={{{name!r}: ...}}).",
    )


def custom_tracer(given: Any, is_leaf: Callable[[nn.Module, str], bool]) -> fx.Tracer:
    """Return a new tracer of the user's class; modules of torch.nn stay leaves, so that their weights are visible.

    Raises:
        CaptureError: `given` is not a `torch.fx.Tracer`, or is a class that needs arguments.
    """
    kind = given if isinstance(given, type) else type(given)
    if not issubclass(kind, fx.Tracer):
        do = "Derive it from torch.fx.Tracer."
        raise CaptureError(where="capture, tracer", found=a_or_an(kind), wanted="a torch.fx.Tracer", do=do)
    try:
        tracer: fx.Tracer = given() if isinstance(given, type) else copy.copy(given)
    except TypeError as e:
        do = "Pass an instance."
        raise CaptureError(
            where="capture, tracer", found=f"{kind.__name__}: {e}", wanted="a class without arguments", do=do
        ) from e
    user_is_leaf = tracer.is_leaf_module

    def is_leaf_module(m: nn.Module, module_qualified_name: str) -> bool:
        # torch.fx keeps all of torch.nn as leaves but nn.Sequential, which is a leaf only if the user's class says so.
        asks = isinstance(m, nn.Sequential) or not type(m).__module__.startswith("torch.nn")
        return is_leaf(m, module_qualified_name) or (asks and user_is_leaf(m, module_qualified_name))

    call_module = tracer.call_module

    def call(m: nn.Module, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        return call_module(m, forward_of(m) or forward, args, kwargs)

    create_arg = tracer.create_arg

    def argument(a: Any) -> Any:
        return rebuild_mapping(tracer, a) if is_user_mapping(a) else create_arg(a)

    if type(tracer).proxy is fx.Tracer.proxy:  # so that x += y is recorded as a write
        tracer.proxy = lambda node: Proxy(node, tracer)  # type: ignore[method-assign]
    tracer.create_arg = argument  # type: ignore[method-assign]
    tracer.is_leaf_module = is_leaf_module  # type: ignore[method-assign]
    tracer.call_module = call  # type: ignore[method-assign]
    tracer.record_stack_traces = True
    return tracer

"""What the caller says about a capture: modules that stay one op, arguments with fixed values, another tracer."""

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
from qfunc.frontend.fx.proxy import Proxy

_PLACEHOLDER: Any = type(vars(fx)["PH"])
Leaves = str | type[nn.Module] | Iterable[str | type[nn.Module]]


def _name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def require_leaves(leaves: Any) -> tuple[str | type[nn.Module], ...]:
    """The leaves one by one.

    Raises:
        CaptureError: something else than classes and names.
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
    """Refuses example inputs that are none.

    Raises:
        CaptureError: a model, a text, a dict.
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
    """The classes of the model's submodules that are given by class, by name or by qualified name.

    Raises:
        CaptureError: one that no submodule has; lists near names.

    >>> leaf_classes("ReLU", nn.Sequential(nn.ReLU()))
    frozenset({<class 'torch.nn.modules.activation.ReLU'>})
    """
    kinds = {type(m) for m in model.modules() if m is not model}
    found: set[type[nn.Module]] = set()
    for leaf in require_leaves(leaves):
        mine = {k for k in kinds if k is leaf or (isinstance(leaf, str) and leaf in (k.__name__, k.__qualname__, _name(k)))}
        if not mine:
            names = sorted({k.__name__ for k in kinds})
            word = leaf.rpartition(".")[2] if isinstance(leaf, str) else getattr(leaf, "__name__", str(leaf))
            near = difflib.get_close_matches(word, names, 3, 0.4) or names[:6]
            raise CaptureError(
                where="capture, leaves",
                found=f"{leaf if isinstance(leaf, str) else word!r}, the class of no submodule",
                wanted="classes of the model's submodules",
                do=f"Near names: {', '.join(near) or 'none, the model has no submodules'}.",
            )
        found |= mine
    return frozenset(found)


def present_arguments(spellings: Iterable[str], model: object) -> tuple[str, ...]:
    """Those of some qualified names that are classes of the model's submodules.

    >>> present_arguments(("torch.relu", "torch.nn.modules.activation.ReLU"), nn.Sequential(nn.ReLU()))
    ('torch.nn.modules.activation.ReLU',)
    """
    have = {_name(type(m)) for m in model.modules() if m is not model} if isinstance(model, nn.Module) else set()
    return tuple(s for s in spellings if s in have)


def require_mapping(concrete: Any) -> dict[str, Any]:
    """Values of arguments by name.

    Raises:
        CaptureError: something else.
    """
    if concrete is not None and not (isinstance(concrete, Mapping) and all(isinstance(k, str) for k in concrete)):
        do = "Write concrete_args={'gain': 2.0}."
        raise CaptureError(
            where="capture, concrete_args", found=repr(concrete), wanted="a dict of values by argument's name", do=do
        )
    return dict(concrete or {})


def require_arguments(concrete: Mapping[str, Any], model: nn.Module) -> None:
    """Refuses values for arguments that the model's forward does not have.

    Raises:
        CaptureError: lists those that it has.
    """
    names = [
        k for k, p in inspect.signature(model.forward).parameters.items() if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    ]
    for name, value in concrete.items():
        if name not in names:
            raise CaptureError(
                where="capture, concrete_args",
                found=f"{name!r}, which is no argument of {type(model).__name__}.forward",
                wanted="names of its arguments",
                do=f"They are: {', '.join(names)}.",
            )
        if isinstance(value, _PLACEHOLDER):
            raise CaptureError(
                where="capture, concrete_args",
                found=f"a placeholder for {name!r}",
                wanted="a value that stays",
                do="Give example_inputs=(...,), whose structure is that of the inputs.",
            )


def with_forward_bound(model: nn.Module, concrete: Mapping[str, Any]) -> nn.Module:
    """The (own) model with some arguments of its forward fixed: they are no inputs any more."""
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
    """The (own) tracer, which gives some arguments of the root's forward their values instead of placeholders."""
    proxy, arguments = tracer.create_proxy, tracer.create_args_for_root

    def create_proxy(kind: str, target: Any, *rest: Any, **more: Any) -> Any:
        if kind == "placeholder" and target in concrete:
            return _Bound(concrete[target])
        default = rest[0][0] if kind == "placeholder" and rest and rest[0] else _Bound()
        if default is None or isinstance(default, bool | str):
            return default
        return proxy(kind, target, *rest, **more)

    def create_args_for_root(*rest: Any, **more: Any) -> Any:
        function, given = arguments(*rest, **more)
        return function, [v.value if isinstance(v, _Bound) else v for v in given]

    tracer.create_proxy = create_proxy  # type: ignore[method-assign]
    tracer.create_args_for_root = create_args_for_root  # type: ignore[method-assign]
    return tracer


def own_tracer(given: Any, is_leaf: Callable[[nn.Module, str], bool]) -> fx.Tracer:
    """A new tracer of the user's kind; modules of torch.nn, whose weights must be seen, are leaves as ever.

    Raises:
        CaptureError: no `torch.fx.Tracer`, neither a class nor an instance, or one that needs arguments.
    """
    kind = given if isinstance(given, type) else type(given)
    if not issubclass(kind, fx.Tracer):
        do = "Derive it from torch.fx.Tracer."
        raise CaptureError(where="capture, tracer", found=a_or_an(kind), wanted="a torch.fx.Tracer", do=do)
    try:
        made: fx.Tracer = given() if isinstance(given, type) else copy.copy(given)
    except TypeError as e:
        do = "Pass an instance."
        raise CaptureError(
            where="capture, tracer", found=f"{kind.__name__}: {e}", wanted="a class without arguments", do=do
        ) from e
    theirs = made.is_leaf_module

    def is_leaf_module(m: nn.Module, module_qualified_name: str) -> bool:
        ours = is_leaf(m, module_qualified_name)
        return ours or (not type(m).__module__.startswith("torch.nn") and theirs(m, module_qualified_name))

    call_module = made.call_module

    def call(m: nn.Module, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        return call_module(m, forward_of(m) or forward, args, kwargs)

    create_arg = made.create_arg

    def argument(a: Any) -> Any:
        return rebuild_mapping(made, a) if is_user_mapping(a) else create_arg(a)

    if type(made).proxy is fx.Tracer.proxy:  # x += y writes, for this tracer too
        made.proxy = lambda node: Proxy(node, made)  # type: ignore[method-assign]
    made.create_arg = argument  # type: ignore[method-assign]
    made.is_leaf_module = is_leaf_module  # type: ignore[method-assign]
    made.call_module = call  # type: ignore[method-assign]
    made.record_stack_traces = True
    return made

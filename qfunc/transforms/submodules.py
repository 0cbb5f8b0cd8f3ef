"""Select the submodules of an outer module that are quantized, and find the inputs with which each is captured."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from attrs import evolve
from torch import fx, nn

from qfunc.errors import CalibrationError, CaptureError, QfuncError, SpecError, a_or_an, first_line
from qfunc.execution.feed import positional
from qfunc.frontend.options import leaf_classes, require_arguments
from qfunc.frontend.source_location import has_module_name, qualified_name
from qfunc.graph.hooks import without_hooks
from qfunc.graph.record import attach, record_of, within_module
from qfunc.graph.selectors import Context, matches
from qfunc.graph.stages import unwrap
from qfunc.graph.submodules import quantized_submodules, run_submodules
from qfunc.placement.rules import near_rule
from qfunc.quantizers.fake_quantize import FakeQuantize
from qfunc.specs import KeepFloat, Target

_WHERE = "quantize, submodules"


def require_names(submodules: Any) -> tuple[str, ...]:
    """Return the paths and patterns of `submodules`.

    Raises:
        SpecError: `submodules` is not a string or a non-empty tuple of strings.
    """
    names = (submodules,) if isinstance(submodules, str) else submodules
    if not isinstance(names, tuple | list) or not names or not all(isinstance(n, str) for n in names):
        do = "Write submodules='backbone' or submodules=('encoder', 'decoder.layers.*')."
        raise SpecError(where=_WHERE, found=repr(submodules), wanted="a path of a submodule, or a tuple of them", do=do)
    return tuple(names)


def select_submodules(outer: nn.Module, names: tuple[str, ...]) -> dict[str, nn.Module]:
    """Return the submodules that match some paths and patterns; of a pattern the outermost.

    Raises:
        SpecError: a name matches nothing or a container without a forward, or submodules are nested or repeated.
        CalibrationError: a submodule is already quantized.
    """
    modules = {path: m for path, m in outer.named_modules(remove_duplicate=False) if path}
    chosen: dict[str, nn.Module] = {}
    for name in names:
        matching = [path for path in modules if fnmatchcase(path, name)]
        found = [path for path in matching if not any(_inside(path, other) for other in matching)]
        if not found:
            raise SpecError(
                where=_WHERE,
                found=f"{name!r}, which is not the path of any submodule",
                wanted=f"paths of submodules of the {type(outer).__name__}",
                do=_use_one_of(name, outer),
            )
        for path in found:
            duplicate = next((other for other in chosen if chosen[other] is modules[path]), None)
            if duplicate is None:
                chosen[path] = modules[path]
            elif path in (duplicate, name):  # a pattern may match a shared module twice
                do = "Name it once: it is replaced wherever the model refers to it."
                found_ = f"{path!r} and {duplicate!r}, which are the same module" if path != duplicate else f"{path!r} twice"
                raise SpecError(where=_WHERE, found=found_, wanted="each submodule once", do=do)
    for path, module in chosen.items():
        enclosing = next((other for other in chosen if _inside(path, other)), None)
        if enclosing is not None:
            do = f"Name one of them: {enclosing!r} contains the other."
            raise SpecError(
                where=_WHERE, found=f"{path!r} inside {enclosing!r}", wanted="submodules that are not nested", do=do
            )
        if type(module).forward is nn.Module.forward and "forward" not in vars(module):
            raise SpecError(
                where=_WHERE,
                found=f"{path!r}, {a_or_an(type(module))} without a forward",
                wanted="submodules with a forward",
                do=f"Name its entries: '{path}.*'.",
            )
    _require_float(outer, chosen)
    return chosen


def _inside(path: str, other: str) -> bool:
    return path.startswith(f"{other}.")


def _use_one_of(name: str, outer: nn.Module) -> str:
    # List similar paths of submodules with parameters, because only these have weights to quantize.
    paths = [path for path, m in outer.named_modules() if path not in ("", name) and any(True for _ in m.parameters())]
    near = difflib.get_close_matches(name.strip("*."), paths, 3, 0.4) or [path for path in paths if "." not in path][:6]
    return f"Use one of: {', '.join(near)}." if near else "Choose another model, because no submodule has parameters."


def _require_float(outer: nn.Module, chosen: Mapping[str, nn.Module]) -> None:
    for done in quantized_submodules(outer):
        hit = next((path for path in chosen if path == done or _inside(path, done) or _inside(done, path)), None)
        if hit is not None:
            do = "Quantize the float model that it came from."
            found = f"{done!r}, which is already quantized"
            raise CalibrationError(where=f"quantize, submodules={hit!r}", found=found, wanted="a float submodule", do=do)


class SubmoduleCall(NamedTuple):
    """Positional arguments of a call, and the defaults of the omitted arguments."""

    inputs: tuple[Any, ...] | None = None
    omitted: Mapping[str, Any] = MappingProxyType({})


def inputs_of(outer: nn.Module, chosen: Mapping[str, nn.Module], example_inputs: Any) -> dict[str, SubmoduleCall]:
    """Return the first call of each submodule when the outer module runs on the example inputs; {} without them.

    Raises:
        CaptureError: the outer module does not run, or does not call a submodule.
    """
    if example_inputs is None:
        return {}
    calls: dict[str, SubmoduleCall] = {}
    forwards = {path: unwrap(module).forward for path, module in chosen.items()}

    def watching(path: str) -> Callable[..., Any]:
        signature = inspect.signature(forwards[path])

        def forward(*args: Any, **kwargs: Any) -> Any:
            if path not in calls:
                bound = signature.bind(*args, **kwargs)
                omitted = [p for p in signature.parameters.values() if p.name not in bound.arguments]
                free = signature.replace(parameters=[p for p in signature.parameters.values() if p not in omitted])
                calls[path] = SubmoduleCall(positional(free, args, kwargs), {p.name: p.default for p in omitted})
            return copied_forwards[path](*args, **kwargs)

        return forward

    copied = run_submodules(outer, {})
    copied_forwards = {path: unwrap(copied.get_submodule(path)).forward for path in chosen}
    for path in chosen:
        vars(copied.get_submodule(path))["forward"] = watching(path)
    where = "quantize, example_inputs"
    try:
        with torch.no_grad():
            copied(*(example_inputs if isinstance(example_inputs, tuple) else (example_inputs,)))
    except QfuncError:
        raise
    except Exception as e:
        do = f"Pass the positional inputs of the {type(outer).__name__}, not the inputs of the submodules."
        raise CaptureError(where=where, found=first_line(e), wanted="inputs on which the model runs", do=do) from e
    for path in chosen:
        if path not in calls:
            do = "Pass inputs for which it runs, or leave it out of `submodules`."
            raise CaptureError(where=where, found=f"no call of {path!r}", wanted="a run of every submodule", do=do)
    return calls


def leaves_of(part: nn.Module, given: tuple[Any, ...], chosen: Mapping[str, nn.Module]) -> tuple[Any, ...]:
    """Return the leaves that this submodule contains; each leaf must be in one of the chosen submodules."""
    leaf_classes(given, nn.ModuleList(chosen.values()))
    kinds = {type(m) for m in part.modules() if m is not part}
    return tuple(leaf for leaf in given if leaf_classes((leaf,), nn.ModuleList(chosen.values())) & kinds)


def arguments_of(part: nn.Module, concrete: Mapping[str, Any], chosen: Mapping[str, nn.Module]) -> dict[str, Any]:
    """Return the fixed arguments of this submodule's forward; each must belong to one of the chosen submodules."""
    each = [set(inspect.signature(unwrap(m).forward).parameters) for m in chosen.values()]
    for name in concrete:
        if not any(name in names for names in each):
            require_arguments({name: concrete[name]}, unwrap(part))
    parameters = inspect.signature(unwrap(part).forward).parameters
    return {name: value for name, value in concrete.items() if name in parameters}


def _has_float_rule(module: Any, target: Target) -> bool:
    context = Context(module, target.ops)
    keeping = [r for r in target.rules if any(isinstance(v, KeepFloat) for v in (r.input, r.weight, r.bias, r.output))]
    return any(matches(rule.select, node, context) for rule in keeping for node in module.graph.nodes)


def _near(module: Any, target: Target) -> str:
    # The first op of a kind that a rule names, and the reason why that rule does not select it, as a sentence.
    context = Context(module, target.ops)
    found = ((context.fact(node).path, near_rule(node, target, context)) for node in module.graph.nodes)
    return next((f"Of op {path!r}: {reason}." for path, reason in found if reason), "")


def require_sites(outer: Any, made: Mapping[str, nn.Module], target: Target) -> None:
    """Refuse a model or submodules in which the target quantizes nothing.

    Raises:
        SpecError: nothing is quantized; the message lists similar names.
    """
    for path, module in made.items():
        if not any(isinstance(m, FakeQuantize) for m in module.modules()):
            if _has_float_rule(module, target):
                continue  # edit.skip left it in float
            if not path:
                near = _near(module, target)
                do = near or "Print the target: python -m qfunc show; edit.add puts quantizers on more kinds of ops."
                found, wanted = f"{a_or_an(type(outer))} in which the target quantizes nothing", "ops that it quantizes"
                raise SpecError(where="quantize", found=found, wanted=wanted, do=do)
            raise SpecError(
                where=f"quantize, submodules={path!r}",
                found=f"{a_or_an(type(unwrap(outer.get_submodule(path))))} in which the target quantizes nothing",
                wanted="submodules with ops that it quantizes",
                do=_use_one_of(path, outer),
            )


def enclosing_classes(outer: nn.Module, path: str) -> tuple[str, ...]:
    """Return the classes of the modules around a submodule, the outermost first.

    >>> enclosing_classes(nn.Sequential(nn.Sequential(nn.ReLU())), "0.0")
    ('torch.nn.modules.container.Sequential', 'torch.nn.modules.container.Sequential')
    """
    words = path.split(".")
    return tuple(qualified_name(type(outer.get_submodule(".".join(words[:i])))) for i in range(len(words)))


def capture_submodule(
    path: str, road: Callable[[nn.Module], fx.GraphModule], part: nn.Module, classes: tuple[str, ...]
) -> fx.GraphModule:
    """Capture a submodule; name its tensors by their paths in the outer module.  `classes` enclose it."""
    try:
        captured = road(without_hooks(unwrap(part)))
    except QfuncError as e:
        e.add_note(f"in submodule {path!r}")
        raise
    record = record_of(captured)
    assert record is not None
    fact = record.facts.get(getattr(captured.graph.output_node().args[0], "name", ""))
    inside = fact.modules if fact is not None else ()
    bare = fact.path if fact is not None and len(inside) == 1 and has_module_name(inside[0]) else ""
    return within_module(attach(captured, evolve(record, within=path, around=classes, bare=bare)), classes)

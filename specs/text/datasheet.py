"""The text of a target for people: every part of it, one entry a line."""

from __future__ import annotations

from collections.abc import Iterable
from textwrap import wrap
from typing import Any

from qfunc.ops.traits import Trait
from qfunc.specs._check import SLOTS
from qfunc.specs._values import one_line
from qfunc.specs.legality import Refuse, RequireSizes, RequireUnit
from qfunc.specs.selectors import AllOf, AnyOf, Attr, Everything, ModuleType, Multiple, Name, Not, Op, Selector

_WIDTH = 116

_COUNTED = {
    "rules": "rule", "fusions": "fusion", "ties": "tie", "limits": "limit", "kernels": "kernel",
    "legality": "constraint", "ops": "op kind", "overrides": "override",
}  # fmt: skip
"""The parts of a target that its summary counts, and the word for one of them."""


def summary(target: Any) -> str:
    """Return a target in one line: its name, and how many entries each part has.

    >>> from qfunc import targets
    >>> summary(targets.qdq)
    "Target('qdq', 4 rules)"
    """
    counts = {word: len(getattr(target, part)) for part, word in _COUNTED.items()}
    words = [f"{n} {word}" if n == 1 else f"{n} {word}s" for word, n in counts.items() if n]
    return f"Target({', '.join([repr(target.name), *words])})"


def datasheet(target: Any) -> str:
    """Return a target as text: sources, runtime, placement, arithmetic, then the algorithms."""
    runtime = target.runtime
    words = (runtime.name, runtime.version, runtime.kernels and f"kernels {runtime.kernels}", runtime.cpu and str(runtime.cpu))
    lines = [
        target.name,
        *_field("source", target.source),
        *_field("runtime", (" ".join(filter(None, words)),)),
        *_field("runner", () if runtime.runner is None else (one_line(runtime.runner),)),
        *_field("lowering", () if target.lowering is None else (one_line(target.lowering),)),
        *_field("weight", (_algorithm(target.weight),)),
        *_field("activation", (_algorithm(target.activation),)),
        *_field("bias", () if target.bias is None else (_algorithm(target.bias),)),
    ]
    lines += _part("rules, the first that matches applies", (_rule(rule) for rule in target.rules))
    lines += _part("fusions, optional steps with ?", ([_fusion(fusion)] for fusion in target.fusions))
    lines += _part("kernels", (_kernel(kernel) for kernel in target.kernels))
    slower = f"slower on integers on {runtime.cpu}, so that rules leave it in float"
    lines += _part(slower, map(_slower, runtime.slower))
    lines += _part("builds for other processors", (_build(build) for build in runtime.builds if build.cpu != runtime.cpu))
    lines += _part("ties", ([one_line(tie)] for tie in target.ties))
    if target.fused_readers is not None:
        lines += _part("one product where they read the same tensor", [[one_line(target.fused_readers)]])
    lines += _part("limits", ([one_line(limit)] for limit in target.limits))
    if target.commuting is not None:
        lines += _part("commute with quantization", [[selected(target.commuting)]])
    lines += _part("constraints", (_constraint(rule) for rule in target.legality))
    if target.host is not None:
        lines += _part(f"run by the host, {target.host.name}, with all after them", map(_constraint, target.host.refuses))
        lines += _part("kernels of the host", map(_kernel, target.host.kernels))
    lines += _part("op kinds", ([one_line(kind)] for kind in target.ops))
    lines += _part("overrides", ([one_line(override)] for override in target.overrides))
    return "\n".join(lines)


def _field(name: str, values: Iterable[str]) -> list[str]:
    return [f"  {'' if i else name:<11} {value}" for i, value in enumerate(values)]


def _part(title: str, entries: Iterable[list[str]]) -> list[str]:
    lines = [part for entry in entries for line in entry for part in _wrapped(line)]
    return ["", f"  {title}", *lines] if lines else []


def _wrapped(line: str) -> list[str]:
    indent = " " * (len(line) - len(line.lstrip()) + 4)
    return wrap(line, _WIDTH, initial_indent="    ", subsequent_indent=f"{indent}    ", break_long_words=False)


def selected(select: Any, inner: bool = False) -> str:
    """Return a selector in words: kinds, and what must or must not hold; `inner` puts several into parentheses.

    >>> selected(Op("conv") & ~Attr("groups", 1))
    'conv and not groups = 1'
    """
    if type(select) is Op:
        kinds = ", ".join(kind if isinstance(kind, str) else _traits(kind) for kind in select.kinds)
        several = len(select.kinds) > 1 or " and " in kinds
        return f"({kinds})" if inner and several else kinds
    if type(select) is Name:
        return f"named {select.glob!r}"
    if type(select) is ModuleType:
        return f"in {select.name}"
    if type(select) is Attr and select == Attr(select.name, equals=select.equals):
        return f"{select.name} = {select.equals!r}"
    if type(select) is Multiple:
        return f"{select.name} a multiple of {select.of}"
    if type(select) is Not:
        return f"not {selected(select.of, True)}"
    if type(select) is AnyOf:
        kinds_of_all = tuple(kind for one in select.of if type(one) is Op for kind in one.kinds)
        others = tuple(one for one in select.of if type(one) is not Op)
        if kinds_of_all and len(others) < len(select.of) - 1:  # several lists of kinds are one
            return selected(AnyOf((Op(kinds_of_all), *others)) if others else Op(kinds_of_all), inner)
    if isinstance(select, AllOf | AnyOf):
        word = " and " if isinstance(select, AllOf) else " or "
        text = word.join(selected(one, True) for one in select.of)
        return f"({text})" if inner else text
    return "all ops" if type(select) is Everything else one_line(select)


def _traits(trait: Trait) -> str:
    return " and ".join(str(one.name).lower().replace("_", " ") for one in trait)


def _constraint(rule: Any) -> list[str]:
    if type(rule) is Refuse:
        return [f"refused: {selected(rule.select)}", f"    because {rule.because}", f"    {rule.do}"]
    if type(rule) is RequireUnit:
        unit = selected(rule.unit) if isinstance(rule.unit, Selector) else f"of {one_line(rule.unit)}"
        return [f"a unit {unit}", f"    because {rule.because}", f"    {rule.do}"]
    if type(rule) is RequireSizes:
        sizes = [("axes", rule.rank), ("elements", rule.elements), *((f"along axis {axis}", span) for axis, span in rule.axes)]
        lines = [f"    {span.words()} {what}" for what, span in sizes if span is not None]
        return [
            f"sizes of {', '.join(rule.slots)} of {selected(rule.select)}",
            *lines,
            f"    because {rule.because}",
            f"    {rule.do}",
        ]
    formats, shared = (" or ".join(map(one_line, values)) for values in (rule.formats, rule.shared))
    held = [
        formats and f"format {formats}{'' if rule.narrower else ', all of its codes'}",
        shared and f"scales {shared}",
        "scales that are powers of two" if rule.power_of_two else "",
        {None: "", False: "no zero point", True: "a zero point"}[rule.zero_point],
    ]
    given = [f"    {text}" for text in held if text]
    return [f"{', '.join(rule.slots)} of {selected(rule.select)}", *given, f"    because {rule.because}"]


def _algorithm(algorithm: Any) -> str:
    return f"{one_line(algorithm.estimator)}, {one_line(algorithm.function)}"


def _rule(rule: Any) -> list[str]:
    slots = [(slot, getattr(rule, slot)) for slot in SLOTS]
    edges = [] if rule.edges is None else [f"    {'edges':<7} {selected(rule.edges)}"]
    beside = ["    only    beside ops that run on integers"] if rule.beside_integers else []
    return [selected(rule.select), *beside, *edges, *(f"    {slot:<7} {one_line(v)}" for slot, v in slots if v is not None)]


def _fusion(fusion: Any) -> str:
    steps = (selected(step.op, True) + ("?" if step.optional else "") for step in fusion.then)
    where = "" if fusion.when is None else f", where {selected(fusion.when)}"
    integer = "".join(f", on integers if {one_line(condition)}" for condition in fusion.integer_if)
    return " -> ".join([selected(fusion.root, True), *steps]) + where + integer


def _build(build: Any) -> list[str]:
    slower = (f"    in float {line}" for row in build.slower for line in _slower(row))
    return [str(build.cpu), *(f"    {line}" for _, kernel in build.replaces for line in _kernel(kernel)), *slower]


def _slower(row: Any) -> list[str]:
    return [f"{selected(row.select)}: {row.ratio} times as slow, {row.because}"]


def _kernel(kernel: Any) -> list[str]:
    formats = [f"    {slot:<7} {', '.join(map(one_line, taken))}" for slot, taken in kernel.formats]
    conditions = [f"    if      {one_line(condition)}" for condition in kernel.integer_if]
    bounds = [] if kernel.bounds is None else [f"    bounds  {one_line(kernel.bounds)}"]
    return [f"{selected(kernel.unit)}: {one_line(kernel.arithmetic)}", *formats, *conditions, *bounds]

"""Selectors of the user's that match nothing are errors, which list near names."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Any

from qfunc.errors import SpecError
from qfunc.graph.select import Context, is_personal, selects
from qfunc.graph.vocabulary import MODULE_KINDS, OPS
from qfunc.specs import Target
from qfunc.specs import selectors as s

KINDS = frozenset((*(op.kind for op in OPS), *MODULE_KINDS.values(), "input", "constant", "output", "size", "unknown"))
"""Every kind of op that selectors can name."""


def require_match(selector: s.Selector, contexts: Sequence[Context], where: str, constants: bool = True) -> None:
    """A selector that matches nothing in any of a model's graphs is an error; unless `constants`, a weight is nothing.

    Raises:
        SpecError: lists the names nearest to each pattern.
    """
    nodes = [(n, c) for c in contexts for n in c.model.graph.nodes if n.op != "output"]
    if any(selects(selector, n, context) for n, context in nodes if constants or n.op != "get_attr"):
        return
    paths = sorted({context.fact(n).path for n, context in nodes if n.op != "get_attr"})
    classes = sorted({kind.rpartition(".")[2] for n, context in nodes for kind in context.fact(n).modules})
    near = [p for word in _words(selector, s.Name) for p in _near(word.strip("*."), paths)]
    near += [p for word in _words(selector, s.ModuleType) for p in _near(word.rpartition(".")[2], classes)]
    every = paths if _words(selector, s.Name) or not _words(selector, s.ModuleType) else classes
    alone = not constants and any(selects(selector, n, context) for n, context in nodes)
    raise SpecError(
        where=where,
        found=f"{selector!r}, which matches {'weights alone' if alone else 'nothing in the model'}",
        wanted="a selector that matches an op" if alone else "a selector that matches an op or a tensor",
        do=f"Near names: {', '.join(near or every[:6])}.",
    )


def require_matches(target: Target, contexts: Sequence[Context]) -> None:
    """Each selector of the user's in a target matches in one of a model's graphs: those of rules, overrides, legality.

    Raises:
        SpecError: one does not.
    """
    for part, rules in (("rules", target.rules), ("legality", target.legality)):
        for rule in rules:
            _require_kinds(rule.select, target, part)
            if is_personal(rule.select):
                require_match(rule.select, contexts, f"target {target.name!r}, {part}", constants=part != "rules")
    for fusion in target.fusions:
        for selector in (fusion.root, *(step.op for step in fusion.then)):
            _require_kinds(selector, target, "fusions")
    for change in target.overrides:
        _require_kinds(change.select, target, "overrides")
        require_match(change.select, contexts, f"target {target.name!r}, overrides")


def _require_kinds(selector: Any, target: Target, part: str) -> None:
    known = KINDS | {own.name for own in target.ops}
    for kind in _kinds(selector):
        if kind not in known:
            near = difflib.get_close_matches(kind, sorted(known), 3, 0.4)
            do = f"Near names: {', '.join(near)}." if near else "An op of your own needs its OpKind in the target's ops."
            wanted = "a kind of the vocabulary or of the target's ops"
            raise SpecError(
                where=f"target {target.name!r}, {part}", found=f"{kind!r}, which is no kind of op", wanted=wanted, do=do
            )


def _kinds(selector: Any) -> tuple[str, ...]:
    match selector:
        case s.Op(kinds):
            return tuple(kinds)
        case s.AllOf(of) | s.AnyOf(of):
            return tuple(kind for one in of for kind in _kinds(one))
        case s.Not(of) | s.From(of) | s.AnyInput(of):
            return _kinds(of)
    return ()


def _near(word: str, words: Sequence[str]) -> list[str]:
    return difflib.get_close_matches(word, words, 3, 0.4)


def _words(selector: Any, kind: type[s.Name] | type[s.ModuleType]) -> list[str]:
    match selector:
        case s.Name(word) | s.ModuleType(word):
            return [word] if isinstance(selector, kind) else []
        case s.AllOf(of) | s.AnyOf(of):
            return [w for one in of for w in _words(one, kind)]
        case s.Not(of):
            return _words(of, kind)
    return []


__all__ = ["KINDS", "require_match", "require_matches"]

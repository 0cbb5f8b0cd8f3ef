"""Refuse user selectors that match nothing; the errors list similar names."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from typing import Any

from attrs import fields, has

from qfunc.errors import SpecError
from qfunc.graph.selectors import Context, matches, names_one_op
from qfunc.ops.opset import MODULE_KINDS, OPS
from qfunc.specs import Target
from qfunc.specs import selectors as s

KINDS = frozenset((*(op.kind for op in OPS), *MODULE_KINDS.values(), "input", "constant", "output", "size", "unknown"))
"""All kinds of op that selectors can name."""

_DERIVED = (
    "kernel", "depthwise", "in_channels", "out_channels", "multiplier", "spatial", "constant", "square", "number", "created",
    "mixes", "selects", "batch_axis", "in_features", "out_features",
)  # fmt: skip
ATTRIBUTES = frozenset((*(name for op in OPS for name in op.parameters), *_DERIVED))
"""All attributes of an op that selectors can name."""

_NAMING = s.Name, s.NodeName, s.ModuleType
"""The selectors that refer to parts of one model by a name, which must exist."""


def require_match(selector: s.Selector, contexts: Sequence[Context], where: str, constants: bool = True) -> None:
    """Refuse a selector that matches nothing in any of a model's graphs; without `constants`, weights do not count.

    A name, node or class in a composed selector must also match something.

    Raises:
        SpecError: nothing matches; the message lists the names closest to each pattern.
    """
    named = [leaf for leaf in atoms(selector) if leaf is not selector and isinstance(leaf, _NAMING)]
    for leaf in named:
        require_match(leaf, contexts, where)
    nodes = [(n, c) for c in contexts for n in c.model.graph.nodes if n.op != "output"]
    if any(matches(selector, n, context) for n, context in nodes if constants or n.op != "get_attr"):
        return
    names: dict[type, list[str]] = {
        s.Name: sorted({context.fact(n).path for n, context in nodes if n.op != "get_attr"}),
        s.NodeName: sorted({n.name for n, _ in nodes if n.op != "get_attr"}),
        s.ModuleType: sorted({kind.rpartition(".")[2] for n, context in nodes for kind in context.fact(n).modules}),
    }
    words = {kind: _words(selector, kind) for kind in names}
    similar = [near for kind, known in names.items() for word in words[kind] for near in _similar(word, known)]
    candidates = next((names[kind] for kind in names if words[kind]), names[s.Name])
    only_weights = not constants and any(matches(selector, n, context) for n, context in nodes)
    raise SpecError(
        where=where,
        found=f"{selector!r}, which matches {'only weights' if only_weights else 'nothing in the model'}",
        wanted="a selector that matches an op" if only_weights else "a selector that matches an op or a tensor",
        do=f"Use one of: {', '.join(similar or candidates[:6])}.",
    )


def require_matches(target: Target, contexts: Sequence[Context], unfolded: Sequence[Context] = ()) -> None:
    """Refuse a target with a user selector that matches in no graph of a model, or with an unknown kind or attribute.

    Fusions may name ops that are folded: they are also matched in the `unfolded` graphs.

    Raises:
        SpecError: a selector matches nothing, or a kind or attribute does not exist.
    """
    for part in _PARTS:
        where, graphs = f"target {target.name!r}, {part}", [*contexts, *unfolded] if part == "fusions" else contexts
        for value in getattr(target, part):
            for selector in _selectors(value):
                _require_kinds(selector, target, where)
                for leaf in atoms(selector):
                    if isinstance(leaf, _NAMING):
                        require_match(leaf, graphs, where)
            select: Any = getattr(value, "select", None)  # a RequireUnit has none
            if part == "overrides" or (part in ("rules", "legality") and names_one_op(select)):
                require_match(select, contexts, where, constants=part != "rules")


_PARTS = ("rules", "fusions", "ties", "limits", "legality", "overrides")


def _selectors(value: Any) -> Iterator[s.Selector]:
    # Yield the outermost selectors in a rule, a fusion or another part of a target.
    if isinstance(value, s.Selector):
        yield value
    elif isinstance(value, tuple):
        for one in value:
            yield from _selectors(one)
    elif has(type(value)):
        for each in fields(type(value)):
            yield from _selectors(getattr(value, each.name))


def atoms(selector: Any) -> tuple[s.Selector, ...]:
    """Return the selectors from which a selector is composed.

    >>> atoms(s.Op("conv") & ~s.Name("head.*"))
    (Op('conv'), Name('head.*'))
    """
    match selector:
        case s.AllOf(of) | s.AnyOf(of):
            return tuple(leaf for one in of for leaf in atoms(one))
        case s.Not(of) | s.From(of) | s.AnyInput(of) | s.ReadBy(of):
            return atoms(of)
        case _:
            return (selector,)


def _require_kinds(selector: s.Selector, target: Target, where: str) -> None:
    known = KINDS | {own.kind for own in target.ops}
    for leaf in atoms(selector):
        for kind in leaf.kinds if isinstance(leaf, s.Op) else ():
            if isinstance(kind, str) and kind not in known:
                wanted, do = (
                    "a kind of the vocabulary or of the target's ops",
                    "Add an OpKind for a user-defined op to the target's ops.",
                )
                raise _unknown_word_error(kind, "kind of op", wanted, known, do, where)
        if isinstance(leaf, s.Attr | s.Multiple | s.AtMost) and leaf.name not in ATTRIBUTES:
            raise _unknown_word_error(
                leaf.name, "attribute of an op", "an attribute of the vocabulary", ATTRIBUTES, "Use edit.where.", where
            )


def _unknown_word_error(word: str, what: str, wanted: str, known: frozenset[str], otherwise: str, where: str) -> SpecError:
    near = _similar(word, sorted(known))
    do = f"Use one of: {', '.join(near)}." if near else otherwise
    return SpecError(where=where, found=f"{word!r}, which is not a known {what}", wanted=wanted, do=do)


def _similar(word: str, words: Sequence[str]) -> list[str]:
    return difflib.get_close_matches(word, words, 3, 0.4)


def _words(selector: s.Selector, kind: type) -> list[str]:
    # Return the names in a selector's patterns of one kind, without wildcards at their ends and without packages.
    named: list[Any] = [leaf for leaf in atoms(selector) if isinstance(leaf, kind)]
    return [leaf.name.rpartition(".")[2] if kind is s.ModuleType else leaf.glob.strip("*.") for leaf in named]

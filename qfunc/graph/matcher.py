"""The matcher of patterns, and rewrites: a match replaces nodes, a near miss has a reason."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

from attrs import field, frozen
from torch import fx

from qfunc.graph.patterns import Either, Match, OpPattern, Through, Var, same, words
from qfunc.ops.node import kind_of, op_of


class Reader(Protocol):
    """How the nodes of a graph are read."""

    def kind(self, node: fx.Node) -> str:
        """Return the kind that patterns know a node by."""
        ...

    def operands(self, node: fx.Node) -> dict[str, Any]:
        """Return the operands of an op by name, in order."""
        ...


class CanonicalReader:
    """Reads captured graphs: kinds and parameters of the op vocabulary."""

    def kind(self, node: fx.Node) -> str:
        """Return the kind in the vocabulary."""
        return kind_of(node)

    def operands(self, node: fx.Node) -> dict[str, Any]:
        """Return the operands by their canonical names; of a module its input."""
        found = op_of(node)
        names = ("input",) if found is None else found.parameters
        return dict(zip(names, node.args, strict=False))


CANONICAL = CanonicalReader()


@frozen(eq=False)
class NearMiss:
    """An attempt that failed: the rewrite, what matched before, and why the next operand did not."""

    rewrite: str
    reached: Match
    reason: str

    @property
    def node(self) -> fx.Node:
        """The node at which the attempt began."""
        return self.reached.root


@frozen
class Call:
    """A call that takes the place of others."""

    target: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any] = field(factory=dict)


@frozen(eq=False)
class Rewrite:
    """What replaces the nodes that match a pattern.

    Args:
        name: What the pattern is, for near misses.
        pattern: The pattern of the last op.
        replace: The `Call`, or the node, that gives the same value; None where there is none.
        check: A further condition: why a match is none, or "".
        at: The name of the op that is replaced; without it the last op is.
        private: No other op may read what is computed between.
    """

    name: str
    pattern: OpPattern
    replace: Callable[[Match], Any]
    check: Callable[[Match], str] | None = field(default=None, kw_only=True)
    at: str = field(default="", kw_only=True)
    private: bool = field(default=True, kw_only=True)

    def top(self, found: Match) -> fx.Node:
        """Return the node that is replaced."""
        top: fx.Node = found[self.at] if self.at else found.root
        return top


class _Attempt:
    # The search for one pattern at one node; it remembers the failure that had matched the most.
    def __init__(self, rewrite: Rewrite, reader: Reader) -> None:
        self.rewrite, self.reader = rewrite, reader
        self.furthest: NearMiss | None = None

    def further(self, state: Match) -> bool:
        return self.furthest is None or state.extent > self.furthest.reached.extent

    def fail(self, state: Match, reason: str) -> None:
        if self.further(state):
            self.furthest = NearMiss(self.rewrite.name, state, reason)

    def other(self, pattern: Any, value: Any, state: Match, place: str) -> None:
        if not self.further(state):
            return
        shown = f"{value.name!r} ({self.reader.kind(value)})" if isinstance(value, fx.Node) else repr(value)
        wanted = words(pattern)
        if isinstance(pattern, Var) and pattern.name in state.values:
            bound = state[pattern.name]
            wanted = repr(bound.name if isinstance(bound, fx.Node) else bound)
        state = state if state.nodes else state.reach(value)
        self.fail(state, f"{place} is {shown}, where {wanted} is wanted")

    def begins(self, pattern: Any, value: Any) -> bool:
        # Whether a value is an op of the kind that a pattern begins with.
        if isinstance(pattern, OpPattern):
            return isinstance(value, fx.Node) and self.reader.kind(value) in pattern.kinds
        return True

    def solve(self, pattern: Any, value: Any, state: Match, place: str) -> Iterator[Match]:
        """Yield each way in which a value matches a pattern."""
        match pattern:
            case OpPattern():
                bound = state.get(pattern.name, value)
                if not self.begins(pattern, value) or bound is not value or (pattern.where and not pattern.where(value)):
                    self.other(pattern, value, state, place)
                    return
                state = state.reach(value, pattern.key).bind(pattern.name, value)
                for operands in pattern.orders:
                    yield from self.operands(operands, value, state, pattern.commutative)
            case Var():
                known = pattern.name in state.values
                fits = same(state[pattern.name], value) if known else pattern.where is None or pattern.where(value)
                if fits:
                    yield state.bind(pattern.name, value)
                else:
                    self.other(pattern, value, state, place)
            case Either(patterns):
                fitting = [p for p in patterns if self.begins(p, value)]
                if not fitting:
                    self.other(pattern, value, state, place)
                for each in fitting:
                    yield from self.solve(each, value, state, place)
            case Through(kinds, inner):
                if isinstance(value, fx.Node) and self.reader.kind(value) in kinds:
                    yield from self.solve(pattern, value.args[0], state.reach(value), place)
                yield from self.solve(inner, value, state, place)
            case _ if isinstance(value, fx.Node) or not same(pattern, value):
                self.other(pattern, value, state, place)
            case _:
                yield state

    def operands(self, patterns: Any, node: fx.Node, state: Match, commutative: bool) -> Iterator[Match]:
        """Yield each way in which the operands of an op match."""
        if not patterns:
            yield state
            return
        (place, pattern), *rest = patterns
        given = self.reader.operands(node)
        name = place if isinstance(place, str) else dict(enumerate(given)).get(place, "")
        if name not in given:
            self.fail(state, f"{node.name!r} has no operand {place!r}")
            return
        place = f"an operand of {node.name!r}" if commutative else f"operand {name!r} of {node.name!r}"
        for found in self.solve(pattern, given[name], state, place):
            yield from self.operands(rest, node, found, commutative)


def match_rewrite(rewrite: Rewrite, node: fx.Node, reader: Reader = CANONICAL) -> Match | NearMiss:
    """Return how a pattern matches at a node, or where the attempt failed that came furthest."""
    attempt = _Attempt(rewrite, reader)
    for found in attempt.solve(rewrite.pattern, node, Match(()), "the op"):
        reason = rewrite.check(found) if rewrite.check else ""
        if reason := reason or (_other_reader(found, rewrite.top(found)) if rewrite.private else ""):
            attempt.fail(found.reach(node), reason)
            continue
        return found
    assert attempt.furthest is not None
    return attempt.furthest


def _other_reader(found: Match, top: fx.Node) -> str:
    inner = found.below(top)
    for node in (n for n in found.nodes if n in inner and n is not top):
        if others := [user.name for user in node.users if user not in inner]:
            return f"{node.name!r} is read by {others[0]!r} too, and a rewritten op may have no other reader"
    return ""


def calls(target: Any, *operands: Any) -> Callable[[Match], Call]:
    """Return the replacement by a call: a string is the value of that name, None where the match did not bind it.

    >>> calls(abs, "x", 2)(Match((), {"x": 1}))
    Call(target=<built-in function abs>, args=(1, 2), kwargs={})
    """
    return lambda found: Call(target, tuple(found.get(v) if isinstance(v, str) else v for v in operands))


def put_in_place(node: fx.Node, made: Call) -> None:
    """Make a node the call that replaces it, under its own name."""
    node.target, node.args, node.kwargs = made.target, made.args, made.kwargs


def apply_rewrites(
    graph: fx.Graph,
    *stages: tuple[Rewrite, ...],
    reader: Reader = CANONICAL,
    put: Callable[[fx.Node, Any], None] = put_in_place,
    nodes: Iterable[fx.Node] | None = None,
) -> tuple[int, tuple[NearMiss, ...]]:
    """Rewrite the (own) graph, stage after stage, each in topological order; a node takes the first rewrite that matches.

    Args:
        graph: The graph; what is not read any more stays in it.
        stages: The rewrites of each stage.
        reader: How nodes are read.
        put: How the replacement takes a node's place.
        nodes: The nodes at which a match may begin; all without it.
    Returns:
        The number of matches, and the near misses that reached the op that is characteristic of their pattern.
    """
    changed, misses, count = set[fx.Node](), list[NearMiss](), 0
    allowed = None if nodes is None else tuple(nodes)
    for rewrites in stages:
        by_kind: dict[str, list[Rewrite]] = {}
        for rewrite in rewrites:
            for kind in rewrite.pattern.kinds:
                by_kind.setdefault(kind, []).append(rewrite)
        for node in tuple(graph.nodes) if allowed is None else allowed:
            for rewrite in by_kind.get(reader.kind(node), ()):
                found = match_rewrite(rewrite, node, reader)
                if isinstance(found, NearMiss):
                    misses.append(found)
                elif (made := rewrite.replace(found)) is not None:
                    changed.update(found.nodes)
                    put(rewrite.top(found), made)
                    count += 1
                    break
    return count, _worthwhile(misses, changed)


def _worthwhile(misses: list[NearMiss], changed: set[fx.Node]) -> tuple[NearMiss, ...]:
    # For each op that is characteristic of a pattern the attempt that came furthest, unless one succeeded there.
    best: dict[fx.Node, NearMiss] = {}
    for miss in misses:
        for key in miss.reached.keys:
            known = best.get(key)
            if changed.isdisjoint(miss.reached.nodes) and (known is None or miss.reached.extent > known.reached.extent):
                best[key] = miss
    return tuple(dict.fromkeys(best.values()))


__all__ = ["CANONICAL", "Call", "NearMiss", "Reader", "Rewrite", "apply_rewrites", "calls", "match_rewrite", "put_in_place"]

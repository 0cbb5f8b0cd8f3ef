"""Match patterns against the nodes of a graph, and apply rewrites.  A failed attempt is a near miss with a reason.

A new rewrite is one `Rewrite` in a tuple, and the tuple in `qfunc.passes.pipeline`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from attrs import field, frozen
from torch import fx

from qfunc.graph.patterns import CANONICAL, Either, Match, OpPattern, Reader, Through, Var, same, words


@frozen(eq=False)
class NearMiss:
    """A failed attempt: the name of the rewrite, the part of the pattern that matched, and why the next part did not."""

    rewrite: str
    reached: Match
    reason: str

    @property
    def node(self) -> fx.Node:
        """The node at which the attempt began."""
        return self.reached.root


@frozen
class Call:
    """A call that replaces the matched ops."""

    target: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any] = field(factory=dict)


@frozen(eq=False)
class Rewrite:
    """A pattern and its replacement.

    Args:
        name: The name of the result, for near misses.
        pattern: The pattern; its root is the last op in the graph.
        replace: Returns the `Call` or the node with the same value, or None to leave the match unchanged.
        check: Returns the reason why a match is not valid, or "".
        at: The name of the op that is replaced.  By default this is the root.
        private: Whether ops outside of the match must not read its intermediate results.
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
    # The search for one pattern at one node.  It stores the failure after the largest matched part.
    def __init__(self, rewrite: Rewrite, reader: Reader) -> None:
        self.rewrite, self.reader = rewrite, reader
        self.furthest: NearMiss | None = None

    def is_further(self, state: Match) -> bool:
        return self.furthest is None or state.extent > self.furthest.reached.extent

    def fail(self, state: Match, reason: str) -> None:
        if self.is_further(state):
            self.furthest = NearMiss(self.rewrite.name, state, reason)

    def mismatch(self, pattern: Any, value: Any, state: Match, place: str) -> None:
        if not self.is_further(state):
            return
        description = f"{value.name!r} ({self.reader.kind(value)})" if isinstance(value, fx.Node) else repr(value)
        wanted = words(pattern)
        if isinstance(pattern, Var) and pattern.name in state.values:
            bound = state[pattern.name]
            wanted = repr(bound.name if isinstance(bound, fx.Node) else bound)
        state = state if state.nodes else state.reach(value)
        self.fail(state, f"{place} is {description}, where {wanted} is wanted")

    def may_match(self, pattern: Any, value: Any) -> bool:
        # Return True if a value may match, by its kind alone.
        if isinstance(pattern, OpPattern):
            return isinstance(value, fx.Node) and self.reader.kind(value) in pattern.kinds
        return True

    def solve(self, pattern: Any, value: Any, state: Match, place: str) -> Iterator[Match]:
        """Yield each way in which a value matches a pattern."""
        match pattern:
            case OpPattern():
                bound = state.get(pattern.name, value)
                if not self.may_match(pattern, value) or bound is not value or (pattern.where and not pattern.where(value)):
                    self.mismatch(pattern, value, state, place)
                    return
                state = state.reach(value, pattern.key).bind(pattern.name, value)
                for operands in pattern.orders:
                    yield from self.operands(operands, value, state, pattern.commutative)
            case Var():
                known = pattern.name in state.values
                is_match = same(state[pattern.name], value) if known else pattern.where is None or pattern.where(value)
                if is_match:
                    yield state.bind(pattern.name, value)
                else:
                    self.mismatch(pattern, value, state, place)
            case Either(patterns):
                candidates = [p for p in patterns if self.may_match(p, value)]
                if not candidates:
                    self.mismatch(pattern, value, state, place)
                for each in candidates:
                    yield from self.solve(each, value, state, place)
            case Through(kinds, inner):
                if isinstance(value, fx.Node) and self.reader.kind(value) in kinds:
                    yield from self.solve(pattern, value.args[0], state.reach(value), place)
                yield from self.solve(inner, value, state, place)
            case _ if isinstance(value, fx.Node) or not same(pattern, value):
                self.mismatch(pattern, value, state, place)
            case _:
                yield state

    def operands(self, patterns: Any, node: fx.Node, state: Match, commutative: bool) -> Iterator[Match]:
        """Yield each way in which the operands of an op match."""
        if not patterns:
            yield state
            return
        (place, pattern), *rest = patterns
        by_name = self.reader.operands(node)
        name = place if isinstance(place, str) else dict(enumerate(by_name)).get(place, "")
        if name not in by_name:
            self.fail(state, f"{node.name!r} has no operand {place!r}")
            return
        place = f"an operand of {node.name!r}" if commutative else f"operand {name!r} of {node.name!r}"
        for found in self.solve(pattern, by_name[name], state, place):
            yield from self.operands(rest, node, found, commutative)


def match_rewrite(rewrite: Rewrite, node: fx.Node, reader: Reader = CANONICAL) -> Match | NearMiss:
    """Return the match of a pattern at a node, or the near miss of the attempt that matched the largest part."""
    attempt = _Attempt(rewrite, reader)
    for found in attempt.solve(rewrite.pattern, node, Match(()), "the op"):
        reason = rewrite.check(found) if rewrite.check else ""
        if reason := reason or (_other_reader(found, rewrite.top(found)) if rewrite.private else ""):
            attempt.fail(found.reach(node, key=True), reason)
            continue
        return found
    assert attempt.furthest is not None
    return attempt.furthest


def _other_reader(found: Match, top: fx.Node) -> str:
    inner = found.between(top)
    for node in (n for n in found.nodes if n in inner and n is not top):
        if others := [user.name for user in node.users if user not in inner]:
            return f"{node.name!r} is read by {others[0]!r} too, and a rewritten op may have no other reader"
    return ""


def calls(target: Any, *operands: Any) -> Callable[[Match], Call]:
    """Return a replacement by a call.  A string is a name of the match, None where it is not bound; other operands are literal.

    >>> calls(abs, "x", 2)(Match((), {"x": 1}))
    Call(target=<built-in function abs>, args=(1, 2), kwargs={})
    """
    return lambda found: Call(target, tuple(found.get(v) if isinstance(v, str) else v for v in operands))


def put_in_place(node: fx.Node, call: Call) -> None:
    """Replace the target and the arguments of a node by a call's; its name stays."""
    node.target, node.args, node.kwargs = call.target, call.args, call.kwargs


def apply_rewrites(
    graph: fx.Graph,
    *stages: tuple[Rewrite, ...],
    reader: Reader = CANONICAL,
    put: Callable[[fx.Node, Any], None] = put_in_place,
    nodes: Iterable[fx.Node] | None = None,
) -> tuple[int, tuple[NearMiss, ...]]:
    """Rewrite a graph in place, stage by stage, each in topological order.  At a node the first matching rewrite applies.

    Args:
        graph: The graph.  Dead code stays in it.
        stages: The rewrites of each stage.
        reader: The reader of nodes.
        put: Replaces a node by what `Rewrite.replace` returned.
        nodes: The nodes at which a match may begin; by default all.
    Returns:
        The number of matches, and the near misses that reached the characteristic op of their pattern or failed a check.
    """
    changed, misses, count = set[fx.Node](), list[NearMiss](), 0
    allowed = None if nodes is None else tuple(nodes)
    kinds: dict[fx.Node, str] = {}
    for rewrites in stages:
        by_kind: dict[str, list[Rewrite]] = {}
        for rewrite in rewrites:
            for kind in rewrite.pattern.kinds:
                by_kind.setdefault(kind, []).append(rewrite)
        for node in tuple(graph.nodes) if allowed is None else allowed:
            if not node.op.startswith("call"):  # a match begins at an op
                continue
            if node not in kinds:
                kinds[node] = reader.kind(node)
            for rewrite in by_kind.get(kinds[node], ()):
                found = match_rewrite(rewrite, node, reader)
                if isinstance(found, NearMiss):
                    misses.append(found)
                elif (replacement := rewrite.replace(found)) is not None:
                    top = rewrite.top(found)
                    changed.update(n for n in found.nodes if n is not top)
                    misses = [m for m in misses if top not in m.reached.nodes]
                    put(top, replacement)
                    kinds.pop(top, None)  # it may be another op now
                    count += 1
                    break
    return count, _best_misses(misses, changed)


def _best_misses(misses: list[NearMiss], changed: set[fx.Node]) -> tuple[NearMiss, ...]:
    # Return for each characteristic op the attempt that matched the largest part, unless another rewrite matched there.
    best: dict[fx.Node, NearMiss] = {}
    for miss in misses:
        for key in miss.reached.keys:
            known = best.get(key)
            if changed.isdisjoint(miss.reached.nodes) and (known is None or miss.reached.extent > known.reached.extent):
                best[key] = miss
    return tuple(dict.fromkeys(best.values()))

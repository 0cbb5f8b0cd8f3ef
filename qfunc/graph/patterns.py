"""Patterns of graphs as frozen values (ops, variables, literals, alternatives), and readers of the nodes to match."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from attrs import field, frozen
from torch import fx

from qfunc.ops.node import kind_of, op_of

Condition = Callable[[Any], bool]


@frozen
class OpPattern:
    """An op of one of these kinds with matching operands; `op` is the short constructor.

    Operands are matched in the given order.  `key` marks the characteristic op of the pattern: a near miss is reported
    only if the attempt reached that op.
    """

    kinds: tuple[str, ...]
    operands: tuple[tuple[int | str, Any], ...] = ()
    name: str = ""
    commutative: bool = False
    key: bool = False
    where: Condition | None = None
    wanted: str = ""

    @property
    def orders(self) -> tuple[tuple[tuple[int | str, Any], ...], ...]:
        """The orders in which operands may match."""
        if not self.commutative:
            return (self.operands,)
        (first, a), (second, b), *rest = self.operands
        return (self.operands, ((second, a), (first, b), *rest))


@frozen
class Var:
    """A named value.  Where the name occurs again, the value must be the same node or an equal literal."""

    name: str
    where: Condition | None = None
    wanted: str = "a value"


@frozen
class Either:
    """A value that matches one of several patterns."""

    patterns: tuple[Any, ...]


@frozen
class Through:
    """A value that matches, perhaps after ops of these kinds, which do not change it."""

    kinds: tuple[str, ...]
    pattern: Any


@frozen(eq=False)
class Match:
    """The matched nodes, the root first, and the values of the names."""

    nodes: tuple[fx.Node, ...]
    values: dict[str, Any] = field(factory=dict)
    keys: tuple[fx.Node, ...] = ()

    @property
    def root(self) -> fx.Node:
        """The node at which the match began."""
        return self.nodes[0]

    @property
    def extent(self) -> int:
        """The number of nodes and names that matched."""
        return len(self.nodes) + len(self.values)

    def __getitem__(self, name: str) -> Any:
        return self.values[name]

    def get(self, name: str, default: Any = None) -> Any:
        """Return the value of a name, or the default if it is not bound."""
        return self.values.get(name, default)

    def bind(self, name: str, value: Any) -> Match:
        """Return the match with one more named value."""
        return Match(self.nodes, {**self.values, name: value}, self.keys) if name else self

    def reach(self, node: fx.Node, key: bool = False) -> Match:
        """Return the match with one more node."""
        return Match((*self.nodes, node), self.values, (*self.keys, node) if key else self.keys)

    def between(self, top: fx.Node) -> set[fx.Node]:
        """Return the matched nodes from which `top` is computed, and `top`."""
        matched, found, left = set(self.nodes), set[fx.Node](), [top]
        while left:
            node = left.pop()
            if node in matched and node not in found:
                found.add(node)
                left += node.all_input_nodes
        return found


def op(
    kinds: str | tuple[str, ...],
    *operands: Any,
    name: str = "",
    commutative: bool = False,
    key: bool = False,
    where: Condition | None = None,
    wanted: str = "",
    **named: Any,
) -> OpPattern:
    """Return the pattern of an op, with operands by position or by canonical name.

    Args:
        kinds: The kind, or several.
        operands: A pattern for each operand, in order.  Other values are literals, and must be equal.
        name: The name of the op itself.
        commutative: The first two operands may be exchanged.
        key: The op is characteristic of the pattern.
        where: A condition on the node.
        wanted: The condition in words, for near misses.
        named: Further operands by name.

    >>> op("div", Var("x"), op("exp", Var("x"))).kinds
    ('div',)
    """
    kinds = (kinds,) if isinstance(kinds, str) else kinds
    return OpPattern(kinds, (*enumerate(operands), *named.items()), name, commutative, key, where, wanted)


def either(*patterns: Any) -> Either:
    """Return the pattern of a value that matches one of these patterns."""
    return Either(patterns)


def tensor(name: str, where: Condition | None = None, wanted: str = "a tensor") -> Var:
    """Return a variable for a tensor, perhaps with a condition on its node."""
    return Var(name, lambda v: isinstance(v, fx.Node) and (where is None or where(v)), wanted)


def number(name: str, where: Condition | None = None, wanted: str = "a number") -> Var:
    """Return a variable for a Python number, perhaps with a condition on it."""
    return Var(name, lambda v: is_number(v) and (where is None or where(v)), wanted)


def is_number(value: object) -> bool:
    """Return True for an int or float that is not a bool.

    >>> is_number(2), is_number(True)
    (True, False)
    """
    return isinstance(value, int | float) and not isinstance(value, bool)


def same(a: object, b: object) -> bool:
    """Return True if two operands are the same node, or equal values."""
    if isinstance(a, fx.Node) or isinstance(b, fx.Node) or isinstance(a, bool) != isinstance(b, bool):
        return a is b
    return bool(a == b)


def words(pattern: Any) -> str:
    """Return a description of a pattern, for messages.

    >>> words(either(op("sqrt"), op("square"))), words(number("eps"))
    ('sqrt or square', 'a number')
    """
    match pattern:
        case OpPattern():
            return " or ".join(pattern.kinds) + (f" {pattern.wanted}" if pattern.wanted else "")
        case Var():
            return pattern.wanted
        case Either(patterns):
            return " or ".join(dict.fromkeys(map(words, patterns)))
        case Through(_, inner):
            return words(inner)
    return repr(pattern)


class Reader(Protocol):
    """The kinds and operands of the nodes of a graph."""

    def kind(self, node: fx.Node) -> str:
        """Return the kind of a node, as patterns name it."""
        ...

    def operands(self, node: fx.Node) -> dict[str, Any]:
        """Return the operands of an op by name, in order."""
        ...


class CanonicalReader:
    """Reads captured graphs with the kinds and parameter names of the op vocabulary."""

    kind = staticmethod(kind_of)
    """The kind in the vocabulary."""

    def operands(self, node: fx.Node) -> dict[str, Any]:
        """Return the operands by their canonical names; a module has one, "input"."""
        found = op_of(node)
        names = ("input",) if found is None else found.parameters
        return dict(zip(names, node.args, strict=False))


CANONICAL = CanonicalReader()

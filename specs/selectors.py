"""Selectors: one closed algebra of frozen values that says which ops, edges or tensors are meant.

`a & b`, `a | b` and `~a` combine them.  `qfunc.graph.select` decides them on a graph.
"""

from __future__ import annotations

from collections.abc import Callable

from attrs import field, frozen

from qfunc.specs._check import as_tuple, instance_of, refuse, tuple_of


class Selector:
    """What all selectors share: the operators of the algebra.

    >>> Op("conv") & ~Name("head.*")
    AllOf(of=(Op(kinds=('conv',)), Not(of=Name(glob='head.*'))))
    """

    __slots__ = ()

    def __and__(self, other: Selector) -> AllOf:
        return AllOf((*_flat(self, AllOf), *_flat(other, AllOf)))

    def __or__(self, other: Selector) -> AnyOf:
        return AnyOf((*_flat(self, AnyOf), *_flat(other, AnyOf)))

    def __invert__(self) -> Selector:
        return self.of if isinstance(self, Not) else Not(self)


def _flat(selector: Selector, kind: type) -> tuple[Selector, ...]:
    if not isinstance(selector, Selector):
        raise refuse(selector, "&, |", selector, "a selector", "Use edit.name, edit.op, edit.module or edit.where.")
    return selector.of if isinstance(selector, kind) else (selector,)  # type: ignore[attr-defined]


@frozen
class Op(Selector):
    """Ops of these kinds, by their names in the op vocabulary: `Op("conv")`, `Op(("add", "mul"))`."""

    kinds: tuple[str, ...] = field(converter=as_tuple, validator=tuple_of(str, at_least=1))


@frozen
class Name(Selector):
    """Ops and tensors whose path matches a shell-style pattern: `Name("layer4.*")`."""

    glob: str = field(validator=instance_of(str))


@frozen
class ModuleType(Selector):
    """Ops inside a module whose class has this name, bare or qualified: `ModuleType("Bottleneck")`."""

    name: str = field(validator=instance_of(str))


@frozen
class Attr(Selector):
    """Ops with an attribute of this value: `Attr("groups", 1)`, `Attr("depthwise", True)`."""

    name: str = field(validator=instance_of(str))
    equals: bool | int | float | str | tuple[object, ...] | None = field()

    @equals.validator
    def _(self, attribute: object, value: object) -> None:
        if not isinstance(value, bool | int | float | str | tuple | None):
            raise refuse(self, "equals", value, "a plain value or a tuple of them", "Use edit.where for more.")


@frozen
class From(Selector):
    """Edges and tensors whose producer (the root of its fused group) is selected."""

    producer: Selector = field(validator=instance_of(Selector))


@frozen
class AnyInput(Selector):
    """Ops one of whose inputs is produced by a selected op."""

    producer: Selector = field(validator=instance_of(Selector))


@frozen
class First(Selector):
    """Ops with no op of the same kinds of rule between them and the graph's inputs."""


@frozen
class Last(Selector):
    """Ops with no op of the same kinds of rule between them and the graph's outputs."""


@frozen
class NonNegative(Selector):
    """Tensors that the graph proves to be at least 0: relu, sigmoid, softmax and what preserves it."""


@frozen
class GraphInput(Selector):
    """The inputs of the graph."""


@frozen
class GraphOutput(Selector):
    """Tensors that the graph returns."""


@frozen
class Constant(Selector):
    """Parameters, buffers and other tensors known before the model runs."""


@frozen
class Everything(Selector):
    """Everything."""


@frozen
class Where(Selector):
    """Whatever `predicate(op)` accepts; a module-level function or a frozen callable value.

    `op` has `kind`, `path`, `attributes` and `module_types`.  A lambda is refused: it can neither be
    compared nor serialised.
    """

    predicate: Callable[..., bool] = field()

    @predicate.validator
    def _(self, attribute: object, value: object) -> None:
        name = getattr(value, "__qualname__", "")
        hidden = "<lambda>" in name or "<locals>" in name
        if not callable(value) or hidden or isinstance(value, type) or getattr(type(value), "__hash__", None) is None:
            raise refuse(self, "predicate", value, "a module-level function or a frozen value", "Give it a name.")


@frozen
class AllOf(Selector):
    """What all of them select."""

    of: tuple[Selector, ...] = field(validator=tuple_of(Selector, at_least=1))


@frozen
class AnyOf(Selector):
    """What any of them selects."""

    of: tuple[Selector, ...] = field(validator=tuple_of(Selector, at_least=1))


@frozen
class Not(Selector):
    """What it does not select."""

    of: Selector = field(validator=instance_of(Selector))

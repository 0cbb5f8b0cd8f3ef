"""Selectors: a closed algebra of frozen values that select ops, edges or tensors.

`a & b`, `a | b` and `~a` combine them.  `qfunc.graph.selectors` evaluates them on a graph.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from attrs import field, frozen

from qfunc.errors import SpecError
from qfunc.ops.traits import NONE, Trait
from qfunc.specs._check import Validator, as_tuple, frozen_callable, frozen_value, integer, refuse, text, tuple_of
from qfunc.specs._values import readable, short


class Selector:
    """The base class of all selectors, with the operators of the algebra.

    Raises:
        SpecError: an operand that is not a selector, or `and`, `or`, `not`, which would drop one of the two.

    >>> Op("conv") & ~Name("head.*")
    AllOf((Op('conv'), Not(Name('head.*'))))
    """

    __slots__ = ()

    def __and__(self, other: Selector) -> AllOf:
        return AllOf((*_flat(self, AllOf), *_flat(other, AllOf)))

    def __or__(self, other: Selector) -> AnyOf:
        return AnyOf((*_flat(self, AnyOf), *_flat(other, AnyOf)))

    def __invert__(self) -> Selector:
        return self.of if isinstance(self, Not) else Not(self)

    def __rand__(self, other: Any) -> AllOf:
        return AllOf((*_flat(other, AllOf), self))

    def __ror__(self, other: Any) -> AnyOf:
        return AnyOf((*_flat(other, AnyOf), self))

    def __bool__(self) -> bool:
        found = f"{short(self)} used as a truth value"
        raise SpecError(where="selector", found=found, wanted="&, | or ~", do="Write them in place of and, or, not.")


def _flat(selector: Any, kind: type[AllOf] | type[AnyOf]) -> tuple[Selector, ...]:
    require_selector("&, |", selector)
    of: tuple[Selector, ...] = selector.of if type(selector) is kind else (selector,)
    return of


def require_selector(where: str, value: Any) -> None:
    """Raise an error if `value` is not one of the selectors of this file.

    Raises:
        SpecError: `value` is not a selector.
    """
    if type(value) not in SELECTORS:
        do = "Use edit.name, edit.op, edit.module or edit.where, or combine them with &, | and ~."
        raise SpecError(where=where, found=short(value), wanted="a selector", do=do)


def selector(*, optional: bool = False) -> Validator:
    """Return a validator that accepts the selectors of this file; the set is closed."""

    def check(instance: Any, attribute: Any, value: Any) -> None:
        if not (optional and value is None):
            require_selector(f"{type(instance).__name__}.{attribute.name}", value)

    return check


def _each_selector(instance: Any, attribute: Any, value: Any) -> None:
    if type(value) is not tuple or not value:
        raise refuse(instance, attribute.name, value, "a tuple of selectors, at least 1", "Give a tuple of selectors.")
    for one in value:
        require_selector(f"{type(instance).__name__}.{attribute.name}", one)


def _kinds(instance: Any, attribute: Any, value: Any) -> None:
    tuple_of(str, Trait, at_least=1)(instance, attribute, value)
    if NONE in value:
        raise refuse(instance, attribute.name, NONE, "a trait", "Name one, such as Trait.CLAMPS.")


@readable
@frozen
class Op(Selector):
    """Ops of these kinds, by their names in the op vocabulary or by a trait of theirs.

    `Op("conv")` selects convolutions, `Op(("add", "mul"))` additions and products, and `Op(Trait.CLAMPS)` the ops that are
    clamps for all arguments, `OpKind` values with this trait among them.  Of several traits in one, `A | B`, an op has all.

    Raises:
        SpecError: no kind, or one that is neither a str nor a trait.

    >>> Op("conv") | Op("linear")
    AnyOf((Op('conv'), Op('linear')))
    >>> Op(Trait.CLAMPS), Op((Trait.CLAMPS, "tanh"))
    (Op(Trait.CLAMPS), Op((Trait.CLAMPS, 'tanh')))
    """

    kinds: tuple[str | Trait, ...] = field(converter=as_tuple, validator=_kinds)


@readable
@frozen
class Name(Selector):
    """Ops and tensors whose path matches a shell-style pattern: `Name("layer4.*")`.

    >>> Name("layer4.*")
    Name('layer4.*')
    """

    glob: str = field(validator=text())


@readable
@frozen
class NodeName(Selector):
    """Ops and tensors whose node in the captured graph has a name that matches a pattern: `NodeName("add_1")`.

    `print(qfunc.capture()(model).graph)` shows the names.

    >>> NodeName("add_1")
    NodeName('add_1')
    """

    glob: str = field(validator=text())


@readable
@frozen
class ModuleType(Selector):
    """Ops inside a module whose class has this name, bare or qualified: `ModuleType("Bottleneck")`.

    >>> ModuleType("Bottleneck")
    ModuleType('Bottleneck')
    """

    name: str = field(validator=text())


@readable
@frozen
class Attr(Selector):
    """Ops with an attribute of this value: `Attr("groups", 1)`, `Attr("depthwise", True)`.

    Raises:
        SpecError: a value that is neither a bool, number or str, nor None, nor a tuple.

    >>> Attr("depthwise", True)
    Attr('depthwise', equals=True)
    """

    name: str = field(validator=text())
    equals: bool | int | float | str | tuple[object, ...] | None = field(validator=frozen_value)

    def __attrs_post_init__(self) -> None:
        if type(self.equals) not in (bool, int, float, str, tuple, type(None)):
            raise refuse(self, "equals", self.equals, "a plain value or a tuple of them", "Use edit.where for more.")


@readable
@frozen
class Multiple(Selector):
    """Ops with an attribute that is a multiple of a number: `Multiple("in_features", 32)`.

    >>> Op("linear") & Multiple("in_features", 32)
    AllOf((Op('linear'), Multiple('in_features', of=32)))
    """

    name: str = field(validator=text())
    of: int = field(validator=integer(1))


@readable
@frozen
class AtMost(Selector):
    """Ops with an attribute that is a number up to a bound: `AtMost("in_channels", 4)`.

    >>> Op("conv") & AtMost("in_channels", 4)
    AllOf((Op('conv'), AtMost('in_channels', bound=4)))
    """

    name: str = field(validator=text())
    bound: int = field(validator=integer())


@readable
@frozen
class From(Selector):
    """Edges and tensors whose producer (the root of its fused group) is selected.

    >>> From(Op("softmax"))
    From(Op('softmax'))
    """

    producer: Selector = field(validator=selector())


@readable
@frozen
class AnyInput(Selector):
    """Ops one of whose inputs is produced by a selected op.

    >>> AnyInput(Op("embedding"))
    AnyInput(Op('embedding'))
    """

    producer: Selector = field(validator=selector())


@readable
@frozen
class ReadBy(Selector):
    """Ops whose result a selected op reads, directly or after ops that are fused with them and clamps.

    >>> Op("conv") & ~ReadBy(Op("max_pool"))
    AllOf((Op('conv'), Not(ReadBy(Op('max_pool')))))
    """

    reader: Selector = field(validator=selector())


@readable
@frozen
class First(Selector):
    """Ops with no op that has weights between them and the graph's inputs.

    >>> First()
    First()
    """


@readable
@frozen
class Last(Selector):
    """Ops with no op that has weights between them and the graph's outputs.

    >>> Last()
    Last()
    """


@readable
@frozen
class NonNegative(Selector):
    """Tensors without negative values: results of relu, sigmoid, softmax and others, and of ops that keep the sign.

    >>> NonNegative()
    NonNegative()
    """


@readable
@frozen
class GraphInput(Selector):
    """The inputs of the graph.

    >>> GraphInput()
    GraphInput()
    """


@readable
@frozen
class GraphOutput(Selector):
    """Tensors that the graph returns.

    >>> GraphOutput()
    GraphOutput()
    """


@readable
@frozen
class Constant(Selector):
    """Parameters, buffers and other tensors known before the model runs.

    >>> Constant()
    Constant()
    """


@readable
@frozen
class Everything(Selector):
    """All ops and tensors; `Everything() & s` selects what s selects, and may match nothing, unlike s alone.

    >>> Everything() & GraphInput()
    AllOf((Everything(), GraphInput()))
    """


@readable
@frozen
class Where(Selector):
    """Ops for which `predicate(op)` is True.

    Args:
        predicate: A module-level function or a frozen callable value. Its argument has `kind`, `path`, `attributes` and
            `module_types`. A lambda is refused, because it can neither be compared nor serialised.
    Raises:
        SpecError: a lambda, a local function, a class or a value that can change.

    >>> Where(refuse).predicate.__name__  # any function at the top of its module
    'refuse'
    """

    predicate: Callable[..., bool] = field(validator=frozen_callable("Write a function of the op."))


@readable
@frozen
class AllOf(Selector):
    """The intersection of selectors.

    >>> Op("conv") & Name("head.*")
    AllOf((Op('conv'), Name('head.*')))
    """

    of: tuple[Selector, ...] = field(validator=_each_selector)


@readable
@frozen
class AnyOf(Selector):
    """The union of selectors.

    >>> Op("conv") | Name("head.*")
    AnyOf((Op('conv'), Name('head.*')))
    """

    of: tuple[Selector, ...] = field(validator=_each_selector)


@readable
@frozen
class Not(Selector):
    """The complement of a selector.

    >>> ~Name("head.*")
    Not(Name('head.*'))
    """

    of: Selector = field(validator=selector())


SELECTORS = (
    AllOf, AnyInput, AnyOf, AtMost, Attr, Constant, Everything, First, From, GraphInput, GraphOutput, Last, ModuleType,
    Multiple, Name, NodeName, NonNegative, Not, Op, ReadBy, Where,
)  # fmt: skip

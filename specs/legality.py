"""Legality: what a chip or its toolchain refuses, so that `quantize` refuses it before the vendor's tool does."""

from __future__ import annotations

from itertools import combinations
from typing import Any

from attrs import field, frozen

from qfunc.specs._check import SLOTS, as_tuple, instance_of, refuse, slots_among, text, tuple_of
from qfunc.specs._values import readable
from qfunc.specs.formats import Float, Format, Int, Levels, Log
from qfunc.specs.scheme import Granularity, PerBlock, PerChannel, PerTensor, PerToken
from qfunc.specs.selectors import AllOf, AnyOf, Attr, Constant, Everything, From, GraphInput, Not, Op, Selector, selector


def _of_ops(instance: Any, attribute: Any, value: Any) -> None:
    selector()(instance, attribute, value)
    if never_an_op(value):
        raise refuse(instance, attribute.name, value, "a selector that some op can match", "Select ops, e.g. by edit.op.")


@readable
@frozen
class Require:
    """The chip accepts the named slots of the selected ops only in this form.

    A slot in float is not checked.  Arguments that are not given require nothing.

    Args:
        select: The ops.
        slots: The slots.
        formats: The formats that the chip accepts. A constant may use fewer codes than its format, because it is written
            offline. An activation may not, because the chip clamps it.
        narrower: False if a constant may not use fewer codes either, because the vendor's tool computes its codes again.
        zero_point: False if the zero point is always 0, True if there is one.
        power_of_two: True if scales are powers of two.
        shared: The granularities that the chip accepts; `PerChannel()` is one scale per output channel.
        because: A quotation from the vendor, with its place.
    Raises:
        SpecError: nothing is required, a selector that no op can match, a zero point for formats without one, or
            `narrower` without formats.

    >>> from qfunc.specs import Op
    >>> Require(Op("conv"), "weight", shared=PerTensor(), because="per-layer (guide, 2)")
    Require(Op('conv'), slots=('weight',), shared=(PerTensor(),), because='per-layer (guide, 2)')
    """

    select: Selector = field(validator=_of_ops)
    slots: tuple[str, ...] = field(converter=as_tuple, validator=slots_among(*SLOTS))
    formats: tuple[Format, ...] = field(
        default=(), kw_only=True, converter=as_tuple, validator=tuple_of(Int, Float, Log, Levels)
    )
    narrower: bool = field(default=True, kw_only=True, validator=instance_of(bool))
    zero_point: bool | None = field(default=None, kw_only=True, validator=instance_of(bool, optional=True))
    power_of_two: bool = field(default=False, kw_only=True, validator=instance_of(bool))
    shared: tuple[Granularity, ...] = field(
        default=(), kw_only=True, converter=as_tuple, validator=tuple_of(PerTensor, PerChannel, PerBlock, PerToken)
    )
    because: str = field(kw_only=True, validator=text())

    def __attrs_post_init__(self) -> None:
        if not (self.formats or self.shared or self.power_of_two) and self.zero_point is None:
            names = "formats, zero_point, power_of_two, shared"
            raise refuse(self, names, None, "at least one of them", "Give a requirement of the chip.")
        if self.zero_point and self.formats and not any(isinstance(f, Int) for f in self.formats):
            raise refuse(self, "zero_point", True, "None or False, for only Int has one", "Drop it.")
        if not self.narrower and not self.formats:
            raise refuse(self, "narrower", False, "formats beside it", "Give the formats that the chip accepts.")


@readable
@frozen
class Refuse:
    """The chip cannot run the selected ops at all.

    An op that a rule keeps in float on purpose (`edit.skip`) runs elsewhere and is not checked.

    Args:
        select: The ops.
        because: A quotation from the vendor, with its place.
        do: What users can do, as a sentence of the error.
    Raises:
        SpecError: a selector that no op can match, or an empty text.

    >>> from qfunc.specs import Op
    >>> Refuse(Op("gelu"), because="no such layer (user guide 3.1)", do="Use relu.").do
    'Use relu.'
    """

    select: Selector = field(validator=_of_ops)
    because: str = field(kw_only=True, validator=text())
    do: str = field(kw_only=True, validator=text())


Legality = Require | Refuse


def never_an_op(value: Selector) -> bool:
    """Return True if a selector contradicts itself, or selects graph inputs or constants, which are not ops.

    >>> never_an_op(Op("conv") & Op("linear")), never_an_op(Op("conv") & ~Op("linear"))
    (True, False)
    """
    match value:
        case Constant() | GraphInput():
            return True
        case From(producer):
            return never_an_op(producer)
        case AnyOf(of):
            return all(map(never_an_op, of))
        case AllOf(of):
            return any(map(never_an_op, of)) or any(_exclude(a, b) for a, b in combinations(of, 2))
        case Not(of):
            return _always(of)
    return False


def _always(value: Selector) -> bool:
    match value:
        case Everything():
            return True
        case AnyOf(of):
            return any(map(_always, of)) or any(_opposite(a, b) for a, b in combinations(of, 2))
        case AllOf(of):
            return all(map(_always, of))
        case Not(of):
            return never_an_op(of)
    return False


def _opposite(a: Selector, b: Selector) -> bool:
    return (isinstance(a, Not) and a.of == b) or (isinstance(b, Not) and b.of == a)


def _exclude(a: Selector, b: Selector) -> bool:
    # Two parts of an AllOf that no op has both: other kinds, other values of one attribute, a thing and its opposite.
    match a, b:
        case Op(ours), Op(theirs):
            return not set(ours) & set(theirs)
        case (Op(kinds), Not(Op(barred))) | (Not(Op(barred)), Op(kinds)):
            return set(kinds) <= set(barred)
        case Attr(name, value), Attr(other, equals):
            return name == other and bool(value != equals)
    return _opposite(a, b)

"""Legality: what a chip or its toolchain refuses, so that `quantize` refuses it before the vendor's tool does."""

from __future__ import annotations

from itertools import combinations
from typing import Any

from attrs import field, frozen

from qfunc.specs._check import SLOTS, as_tuple, instance_of, integer, refuse, slots_among, text, tuple_of
from qfunc.specs._values import readable
from qfunc.specs.arithmetic.kernel import is_arithmetic
from qfunc.specs.number_format import Float, Format, Int, Levels, Log
from qfunc.specs.protocols import Arithmetic
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


@readable
@frozen
class Span:
    """The integers from `low` to `high` that are multiples of `multiple`; without `high` there is no upper end.

    Raises:
        SpecError: no integer is in the span.

    >>> Span(4, 512), Span(1, 16_000)
    (Span(4, high=512), Span(high=16000))
    """

    low: int = field(default=1, validator=integer(0))
    high: int | None = field(default=None, validator=integer(0, optional=True))
    multiple: int = field(default=1, kw_only=True, validator=integer(1))

    def __attrs_post_init__(self) -> None:
        if self.high is not None and -(-self.low // self.multiple) * self.multiple > self.high:
            wanted = "a span with a multiple of it" if self.multiple > 1 else "low <= high"
            raise refuse(self, "low, high", (self.low, self.high), wanted, "Widen the span.")

    def words(self) -> str:
        """Return the span in words.

        >>> Span(4, 512).words(), Span(multiple=4).words(), Span(1, 1).words(), Span(1, 16000).words()
        ('4 to 512', 'a multiple of 4', '1', 'at most 16000')
        """
        low, high = self.low, self.high
        multiple = f"a multiple of {self.multiple}" if self.multiple > 1 else ""
        ends = f"{low}" if low == high else f"{low} to {high}" if low > 1 else f"at most {high}"
        ends = ends if high is not None else f"at least {low}" if low > 1 else ""
        return ", ".join(filter(None, (multiple, ends))) or "any number"


def _each_axis(instance: Any, attribute: Any, value: Any) -> None:
    tuple_of(tuple)(instance, attribute, value)
    for entry in value:
        if len(entry) != 2 or type(entry[0]) is not int or type(entry[1]) is not Span:
            raise refuse(instance, "axes", entry, "(axis, Span)", "Pair an axis with a Span.")
    if len({axis for axis, _ in value}) < len(value):
        raise refuse(instance, "axes", value, "each axis once", "Drop the repeated one.")


@readable
@frozen
class RequireSizes:
    """The chip accepts the selected ops only if tensors of the named slots have these sizes.

    `quantize` refuses other sizes of constants. It also refuses those of activations if it gets example inputs; else
    `calibrate` does. The first axis of an activation counts examples. So it is checked only if `axes` names axis 0, it is
    not among the `elements`, and no negative axis reaches it. An axis that a tensor lacks has size 1. An op that a rule
    keeps in float on purpose (`edit.skip`) runs elsewhere and is not checked.

    Args:
        select: The ops.
        slots: The slots.
        rank: The number of axes, the first included.
        elements: The number of elements of one example, or of a constant.
        axes: Pairs of an axis and its size. Negative axes count from the last.
        because: A quotation from the vendor, with its place.
        do: What users can do, as a sentence of the error.
    Raises:
        SpecError: nothing is required, a selector that no op can match, an axis twice, or an empty text.

    >>> from qfunc.specs import Op
    >>> RequireSizes(Op("softmax"), "input", elements=Span(1, 16_000), because="operators, 2", do="Split it.").elements
    Span(high=16000)
    """

    select: Selector = field(validator=_of_ops)
    slots: tuple[str, ...] = field(converter=as_tuple, validator=slots_among(*SLOTS))
    rank: Span | None = field(default=None, kw_only=True, validator=instance_of(Span, optional=True))
    elements: Span | None = field(default=None, kw_only=True, validator=instance_of(Span, optional=True))
    axes: tuple[tuple[int, Span], ...] = field(default=(), kw_only=True, converter=as_tuple, validator=_each_axis)
    because: str = field(kw_only=True, validator=text())
    do: str = field(kw_only=True, validator=text())

    def __attrs_post_init__(self) -> None:
        if self.rank is None and self.elements is None and not self.axes:
            raise refuse(self, "rank, elements, axes", None, "at least one of them", "Give a requirement of the chip.")


def _unit(instance: Any, attribute: Any, value: Any) -> None:
    (_of_ops if isinstance(value, Selector) else is_arithmetic)(instance, attribute, value)


@readable
@frozen
class RequireUnit:
    """The target has a setting for units of one kind, so that a model without such a unit is refused.

    A model that is quantized in parts needs one unit in any of them.  `qfunc.testing` draws networks without it.

    Args:
        unit: The arithmetic of the units, of a kernel or of mixtures of experts; or a selector of their ops.
        because: Which units the runtime computes so, with its place.
        do: What users can do, as a sentence of the error.
    Raises:
        SpecError: another value than an arithmetic or a selector, or an empty text.

    >>> from qfunc.specs import CachedAttention
    >>> RequireUnit(CachedAttention(), because="attention to a cache (the operator's page)", do="Drop it.").do
    'Drop it.'
    """

    unit: Arithmetic | Selector = field(validator=_unit)
    because: str = field(kw_only=True, validator=text())
    do: str = field(kw_only=True, validator=text())


Legality = Require | Refuse | RequireSizes | RequireUnit


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
        case Op(ours), Op(theirs) if all(isinstance(kind, str) for kind in (*ours, *theirs)):
            return not set(ours) & set(theirs)
        case (Op(kinds), Not(Op(barred))) | (Not(Op(barred)), Op(kinds)):
            return set(kinds) <= set(barred)
        case Attr(name, value), Attr(other, equals):
            return name == other and bool(value != equals)
    return _opposite(a, b)

"""Targets: one hardware, described once.

The hardware half describes what the chip computes, the algorithm half how qparams are estimated.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from attrs import evolve, field, fields, frozen

from qfunc.ops.traits import NONE, Trait
from qfunc.specs._check import (
    as_tuple,
    frozen_callable,
    implements,
    instance_of,
    integer,
    number,
    one_of,
    refuse,
    text,
    tuple_of,
)
from qfunc.specs._values import as_code, one_line, readable
from qfunc.specs.arithmetic.kernel import Kernel
from qfunc.specs.datasheet import datasheet, summary
from qfunc.specs.legality import Legality, Refuse, Require
from qfunc.specs.placement import Fusion, Limit, Rule, Tie
from qfunc.specs.protocols import Estimator, Function, Lowering, Runner
from qfunc.specs.selectors import Selector, selector

ROLES = ("weight", "activation", "bias")


_OP_SLOTS = ("input", "weight", "bias", "operand")
_USER_TRAITS = (
    Trait.NON_NEGATIVE | Trait.KEEPS_SIGN | Trait.INTEGER_RESULT | Trait.INTEGER_IF_INPUTS | Trait.VIEW | Trait.COMMUTATIVE
    | Trait.WEIGHTED | Trait.RECURRENT | Trait.ARITHMETIC | Trait.CREATES | Trait.POSITION_IF_INPUTS
)  # fmt: skip
"""The traits that placement, the partition and the lowerings ask for.  Capture, corrections and reconstruction ask for the
others, of canonical ops alone; the bounds of a clamp follow from its canonical kind."""
_DEF = "Define it with def at the top of a module."


def _pairs(value: Any) -> Any:
    return tuple(value.items()) if isinstance(value, Mapping) else as_tuple(value)


@readable
@frozen
class OpKind:
    """The record of an op of the user's, with the fields of `qfunc.ops.definition.Op`, the record of a canonical op.

    Capture leaves the op as it is. So it has no canonical callable, and the fields `call`, `signature`, `rewrites`,
    `ignored` and `inplace_at` of a canonical op have no meaning for it. `results` follows from the ONNX text.

    Args:
        kind: The name by which selectors and tables refer to it.
        spellings: Qualified names of functions, methods or module classes ("mylib.ops.fast_gelu").
        parameters: The names of its arguments, in order.
        behaves_like: The kind that it is written as, and whose traits it has too; None: `kind`, if it is a canonical one.
        slots: Pairs of a parameter and "input", "weight", "bias" or "operand", which is a weight if it is constant, else an
            input. The other parameters carry no qparams. (): "weight" and "bias" by name, all others are inputs.
        weight_axis: The axis of the weight that runs over output channels.
        spatial: The number of axes along which the op slides, as in `Attr("spatial", 2)`, or None.
        neutral: The number y for which op(x, y) = x, or None; a runtime may leave out such an op.
        traits: What is true of it for all arguments. Only traits that a stage with a target asks for are accepted.
        example: One call, a function of a tensor of shape [2, 3, 5, 6]. `check_target` checks the op by it.
        onnx: A function in ONNX's text form, of its tensors in order; None: the ONNX of `behaves_like`.
    Raises:
        SpecError: no kind or spelling, a slot of no parameter, or a trait that no stage with a target asks for.

    >>> from qfunc.specs import Trait
    >>> positive = Trait.NON_NEGATIVE | Trait.KEEPS_SIGN
    >>> OpKind("energy", "mylib.energy", slots={"input": "input"}, traits=positive).slots
    (('input', 'input'),)
    """

    kind: str = field(validator=text())
    spellings: tuple[str, ...] = field(converter=as_tuple, validator=tuple_of(str, at_least=1))
    parameters: tuple[str, ...] = field(default=("input",), converter=as_tuple, validator=tuple_of(str, at_least=1))
    behaves_like: str | None = field(default=None, validator=text(optional=True))
    slots: tuple[tuple[str, str], ...] = field(default=(), kw_only=True, converter=_pairs, validator=tuple_of(tuple))
    weight_axis: int = field(default=0, kw_only=True, validator=integer())
    spatial: int | None = field(default=None, kw_only=True, validator=integer(1, optional=True))
    neutral: float | None = field(default=None, kw_only=True, validator=number(optional=True))
    traits: Trait = field(default=NONE, kw_only=True, validator=instance_of(Trait))
    example: Callable[[Any], Any] | None = field(default=None, kw_only=True, validator=frozen_callable(_DEF, optional=True))
    onnx: str | None = field(default=None, kw_only=True, validator=text(optional=True))

    def __attrs_post_init__(self) -> None:
        for entry in self.slots:
            if len(entry) != 2 or entry[0] not in self.parameters or entry[1] not in _OP_SLOTS:
                wanted = f"a parameter among {self.parameters} and a slot among {_OP_SLOTS}"
                raise refuse(self, "slots", entry, wanted, "Name the parameter in `parameters` too.")
        if unread := self.traits & ~_USER_TRAITS:
            do = f"Leave out {one_line(unread)}."
            raise refuse(self, "traits", one_line(unread), f"traits among {one_line(_USER_TRAITS)}", do)

    def slot(self, parameter: str) -> str | None:
        """Return the slot of a parameter, or None if it carries no qparams.

        >>> OpKind("scale", "mylib.scale", ("input", "gamma", "bias")).slot("bias")
        'bias'
        """
        if self.slots:
            return dict(self.slots).get(parameter)
        return parameter if parameter in ("weight", "bias") else "input"


@readable
@frozen
class Algorithm:
    """The estimator of qparams and the quantize function of one role.

    Raises:
        SpecError: a class instead of a value, a missing method, or a value that can change.

    >>> from qfunc import estimators, functions
    >>> Algorithm(estimators.MinMax(), functions.Fixed()).estimator
    MinMax()
    """

    estimator: Estimator = field(validator=implements(Estimator))
    function: Function = field(validator=implements(Function))


@readable
@frozen
class Override:
    """Another estimator, another function, or narrower weight codes for the selected tensors of a role.

    Args:
        select: The ops or tensors.
        role: "weight", "activation" or "bias".
        estimator: Finds the qparams.
        function: The quantize function.
        bits: The width of the codes of weights.
    Raises:
        SpecError: nothing to override, or bits for a role other than "weight".

    >>> from qfunc.specs.selectors import Name
    >>> Override(Name("layer4.*"), "weight", bits=8)
    Override(Name('layer4.*'), role='weight', bits=8)
    """

    select: Selector = field(validator=selector())
    role: str = field(validator=one_of(ROLES))
    estimator: Estimator | None = field(default=None, kw_only=True, validator=implements(Estimator, optional=True))
    function: Function | None = field(default=None, kw_only=True, validator=implements(Function, optional=True))
    bits: int | None = field(default=None, kw_only=True, validator=integer(2, 16, optional=True))

    def __attrs_post_init__(self) -> None:
        if self.estimator is None and self.function is None and self.bits is None:
            wanted = "one of them"
            raise refuse(self, "estimator, function, bits", None, wanted, "Give an estimator, a function or bits.")
        if self.bits is not None and self.role != "weight":
            wanted = "None unless role is 'weight', for the hardware clamps activations to its own codes"
            do = "Use edit.activations(bits=...), which describes other hardware."
            raise refuse(self, "bits", self.bits, wanted, do)


@readable
@frozen
class Runtime:
    """The software that executes the artifact, named as precisely as its arithmetic requires.

    Args:
        name: The name of the software.
        version: Its versions, such as ">=1.31".
        cpu: The processors.
        kernels: The kernels.
        runner: Runs artifacts on this machine; None if nothing does.

    >>> Runtime("onnxruntime", ">=1.31", kernels="MLAS").runner is None
    True
    """

    name: str = field(validator=text())
    version: str = field(default="", validator=text(empty=True))
    cpu: str = field(default="", validator=text(empty=True))
    kernels: str = field(default="", validator=text(empty=True))
    runner: Runner | None = field(default=None, validator=implements(Runner, optional=True))


_HARDWARE = (
    "name", "rules", "fusions", "ties", "limits", "kernels", "commuting", "legality", "ops", "runtime", "lowering",
    "source",
)  # fmt: skip


@frozen(kw_only=True, repr=False)
class Target:
    """A description of hardware, with the algorithms that estimate qparams for it.

    The hardware half is everything up to `source`, the algorithm half `weight`, `activation`, `bias` and `overrides`.
    `repr` is one line, `print` shows every part, and `code()` is the Python text that builds the value.

    Args:
        name: The name, for reports and errors.
        rules: Which slots of which ops have qparams, and their schemes.
        fusions: Ops that run as one unit.
        ties: Slots that share qparams.
        limits: Bounds of sums of scale positions.
        kernels: The arithmetic of units.
        commuting: Kinds of ops that only move codes.
        legality: Schemes and ops that the chip refuses.
        ops: User-defined kinds of ops.
        runtime: The software that executes the artifact.
        lowering: Writes the artifact; None for simulation only.
        source: The documents and measurements that the description follows.
        weight, activation, bias: The algorithms of the roles; bias may be None.
        overrides: Other algorithms for some tensors.
    Raises:
        SpecError: a field of the wrong kind, no rules, no source, or two ops of one name.

    >>> from qfunc import targets
    >>> targets.qdq
    Target('qdq', 4 rules)
    """

    _writes_code: ClassVar[bool] = True

    name: str = field(validator=text())
    rules: tuple[Rule, ...] = field(converter=as_tuple, validator=tuple_of(Rule, at_least=1))
    fusions: tuple[Fusion, ...] = field(default=(), converter=as_tuple, validator=tuple_of(Fusion))
    ties: tuple[Tie, ...] = field(default=(), converter=as_tuple, validator=tuple_of(Tie))
    limits: tuple[Limit, ...] = field(default=(), converter=as_tuple, validator=tuple_of(Limit))
    kernels: tuple[Kernel, ...] = field(default=(), converter=as_tuple, validator=tuple_of(Kernel))
    commuting: tuple[str, ...] = field(default=(), converter=as_tuple, validator=tuple_of(str))
    legality: tuple[Legality, ...] = field(default=(), converter=as_tuple, validator=tuple_of(Require, Refuse))
    ops: tuple[OpKind, ...] = field(default=(), converter=as_tuple, validator=tuple_of(OpKind))
    runtime: Runtime = field(default=Runtime("none"), validator=instance_of(Runtime))
    lowering: Lowering | None = field(default=None, validator=implements(Lowering, optional=True))
    source: tuple[str, ...] = field(converter=as_tuple, validator=tuple_of(str, at_least=1))
    weight: Algorithm = field(validator=instance_of(Algorithm))
    activation: Algorithm = field(validator=instance_of(Algorithm))
    bias: Algorithm | None = field(default=None, validator=instance_of(Algorithm, optional=True))
    overrides: tuple[Override, ...] = field(default=(), converter=as_tuple, validator=tuple_of(Override))

    def __attrs_post_init__(self) -> None:
        names = [op.kind for op in self.ops]
        if len(set(names)) < len(names):
            raise refuse(self, "ops", tuple(names), "each name once", "Put all spellings of an op in one OpKind.")

    def __repr__(self) -> str:
        return summary(self)

    def __str__(self) -> str:
        return datasheet(self)

    def code(self) -> str:
        """Return the code that builds this target, without the fields that have their defaults.

        >>> from qfunc import targets
        >>> print(targets.qdq.code().partition(",")[0])
        Target(
            name='qdq'
        """
        return as_code(self)

    def hardware(self) -> tuple[Any, ...]:
        """Return the hardware half, as a value to compare."""
        return tuple(getattr(self, name) for name in _HARDWARE)

    def with_algorithm_of(self, other: Target) -> Target:
        """Return this hardware with the algorithms of `other`, so that `specs.diff` shows differences of hardware only."""
        names = (f.name for f in fields(Target) if f.name not in _HARDWARE)
        return evolve(self, **{name: getattr(other, name) for name in names})

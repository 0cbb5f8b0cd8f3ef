"""Targets: one hardware, described once.

The hardware half describes what the chip computes, the algorithm half how qparams are estimated.
"""

from __future__ import annotations

from typing import Any, ClassVar

from attrs import evolve, field, fields, frozen

from qfunc.specs._check import (
    as_tuple, implements, instance_of, integer, number, one_of, refuse, text, tuple_of,
)  # fmt: skip
from qfunc.specs._values import as_code, readable
from qfunc.specs.arithmetic.kernel import Kernel
from qfunc.specs.cpus import Cpu, of_text
from qfunc.specs.host import Host
from qfunc.specs.legality import Legality, Refuse, Require, RequireSizes, RequireUnit
from qfunc.specs.op_kind import OpKind
from qfunc.specs.placement import Fusion, Limit, Rule, Tie
from qfunc.specs.protocols import Estimator, Function, Lowering, Runner
from qfunc.specs.selectors import Op, Selector, selector
from qfunc.specs.text.datasheet import datasheet, summary

ROLES = ("weight", "activation", "bias")


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
            scheme = f"Scheme(Int({self.bits}, signed=False), zero_point=ZeroPoint())"
            ends = " and ".join(f"edit.{slot}({self.select!r}, {scheme})" for slot in ("inputs", "outputs"))
            do = f"For these ops alone, use {ends}. For all ops, use edit.activations(bits={self.bits})."
            raise refuse(self, "bits", self.bits, wanted, do)


@readable
@frozen
class Slower:
    """Ops that a processor computes slower on integers than in float, so that rules leave them in float.

    Products stay on integers if all products of a network are such ops, and so does what an edit names.

    Args:
        select: The ops.
        ratio: The time on integers by the time in float, as measured.
        because: What was measured.
    Raises:
        SpecError: a ratio of at most 1, or no reason.

    >>> from qfunc.specs import Op
    >>> Slower(Op("prelu"), 3.8, "litert 2.3: no XNNPACK kernel").ratio
    3.8
    """

    select: Selector = field(validator=selector())
    ratio: float = field(validator=number())
    because: str = field(validator=text())

    def __attrs_post_init__(self) -> None:
        if self.ratio <= 1:
            raise refuse(self, "ratio", self.ratio, "more than 1: the time on integers by that in float", "Drop the row.")


@readable
@frozen
class Build:
    """A build of a runtime for a processor, and the kernels that it has in place of those of the build that it starts from.

    Args:
        cpu: The processor; or its name.
        replaces: Pairs (kernel, kernel here), by which `edit.cpu` replaces those of `Target.kernels`.
        slower: What is slower on integers here.
    Raises:
        SpecError: a value that is no kernel, or one twice on a side of the pairs.

    >>> from qfunc.specs import Op, SumFma, SumScaled
    >>> Build("arm64", ((Kernel(Op("add"), SumFma()), Kernel(Op("add"), SumScaled("half_away", 22))),)).cpu
    Cpu('arm64')
    """

    cpu: Cpu = field(converter=of_text, validator=instance_of(Cpu))
    replaces: tuple[tuple[Kernel, Kernel], ...] = field(default=(), converter=as_tuple, validator=tuple_of(tuple))
    slower: tuple[Slower, ...] = field(default=(), converter=as_tuple, kw_only=True, validator=tuple_of(Slower))

    def __attrs_post_init__(self) -> None:
        for pair in self.replaces:
            if len(pair) != 2 or not all(type(one) is Kernel for one in pair):
                raise refuse(self, "replaces", pair, "a pair of kernels", "Give (Kernel(...), Kernel(...)).")
        for side in zip(*self.replaces, strict=True):
            if len(set(side)) < len(side):
                raise refuse(self, "replaces", side, "each kernel once", "Drop the repeated one.")


@readable
@frozen
class Runtime:
    """The software that executes the artifact, named as precisely as its arithmetic requires.

    Args:
        name: The name of the software.
        version: Its versions, such as ">=1.31".
        cpu: The processor whose arithmetic `Target.kernels` describe; or its name. None if it decides nothing.
        kernels: The kernels.
        runner: Runs artifacts on this machine; None if nothing does.
        builds: The processors that `edit.cpu` accepts.
    Raises:
        SpecError: builds without one for `cpu`, or two for one processor.

    >>> Runtime("onnxruntime", ">=1.31", kernels="MLAS").runner is None
    True
    """

    name: str = field(validator=text())
    version: str = field(default="", validator=text(empty=True))
    cpu: Cpu | None = field(default=None, converter=of_text, validator=instance_of(Cpu, optional=True))
    kernels: str = field(default="", validator=text(empty=True))
    runner: Runner | None = field(default=None, validator=implements(Runner, optional=True))
    builds: tuple[Build, ...] = field(default=(), converter=as_tuple, validator=tuple_of(Build))

    def __attrs_post_init__(self) -> None:
        names = [str(build.cpu) for build in self.builds]
        if names and (len(set(names)) < len(names) or str(self.cpu) not in names):
            wanted, do = f"each processor once, {self.cpu} among them", "Add or drop a Build."
            raise refuse(self, "builds", tuple(names), wanted, do)

    @property
    def slower(self) -> tuple[Slower, ...]:
        """What is slower on integers on the processor `cpu`."""
        return next((build.slower for build in self.builds if build.cpu == self.cpu), ())


def _selected(value: Any) -> Any:
    # Names of kinds, as texts of JSON have them, are a selector of these kinds.
    if isinstance(value, Selector) or value is None:
        return value
    kinds = as_tuple(value)
    return Op(kinds) if kinds else None


_HARDWARE = (
    "name", "rules", "fusions", "ties", "fused_readers", "limits", "kernels", "commuting", "legality", "host", "ops", "runtime",
    "lowering", "source",
)  # fmt: skip


@frozen(kw_only=True, repr=False)
class Target:
    """A description of hardware, with the algorithms that estimate qparams for it.

    The hardware half is everything up to `source`, the algorithm half `weight`, `activation`, `bias` and `overrides`.
    `repr` is one line, `print` shows every part, and `code()` is the Python text that builds the value.

    Args:
        name: The name, for reports and errors.
        rules: The slots that have qparams, and their schemes.
        fusions: Ops that run as one unit.
        ties: Slots that share qparams.
        fused_readers: Ops that the runtime computes as one product where they read the same tensor.  A scale of their whole
            weights is the same, the largest, as is an outer scale.
        limits: Bounds of sums of scale positions.
        kernels: The arithmetic of units.
        commuting: Ops that only move codes, or their kinds; None, or (), if there are none.
        legality: Schemes, ops and sizes that the chip refuses, and units for which the target has settings.
        host: The processor that runs what the chip refuses, and everything after it; None if nothing does.
        ops: User-defined kinds of ops.
        runtime: The software that executes the artifact.
        lowering: Writes the artifact; None for simulation only.
        source: The documents and measurements that the description follows.
        weight, activation, bias: The algorithms of the roles; bias may be None.
        overrides: Other algorithms for some tensors.
    Raises:
        SpecError: a field of the wrong kind, no rules, no source, or two ops of one name.

    >>> from attrs import evolve
    >>> from qfunc import targets
    >>> targets.qdq
    Target('qdq', 4 rules)
    >>> evolve(targets.qdq, commuting=("max_pool", "reshape")).commuting
    Op(('max_pool', 'reshape'))
    """

    _writes_code: ClassVar[bool] = True

    name: str = field(validator=text())
    rules: tuple[Rule, ...] = field(converter=as_tuple, validator=tuple_of(Rule, at_least=1))
    fusions: tuple[Fusion, ...] = field(default=(), converter=as_tuple, validator=tuple_of(Fusion))
    ties: tuple[Tie, ...] = field(default=(), converter=as_tuple, validator=tuple_of(Tie))
    fused_readers: Selector | None = field(default=None, validator=selector(optional=True))
    limits: tuple[Limit, ...] = field(default=(), converter=as_tuple, validator=tuple_of(Limit))
    kernels: tuple[Kernel, ...] = field(default=(), converter=as_tuple, validator=tuple_of(Kernel))
    commuting: Selector | None = field(default=None, converter=_selected, validator=selector(optional=True))
    legality: tuple[Legality, ...] = field(
        default=(), converter=as_tuple, validator=tuple_of(Require, Refuse, RequireSizes, RequireUnit)
    )
    host: Host | None = field(default=None, validator=instance_of(Host, optional=True))
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

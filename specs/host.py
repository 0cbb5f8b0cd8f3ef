"""The host of a chip: the processor that runs what the chip refuses, and everything after it."""

from __future__ import annotations

from attrs import field, frozen

from qfunc.specs._check import as_tuple, text, tuple_of
from qfunc.specs._values import readable
from qfunc.specs.arithmetic.kernel import Kernel
from qfunc.specs.legality import Refuse, RequireSizes


@readable
@frozen
class Host:
    """The processor that runs the first op which the chip refuses, and every op after it, in the order of the model.

    The compiler divides a model once: the chip runs the ops before the division. An op in float is refused, too. These
    refusals are no errors, unlike those of `Target.legality`.

    Args:
        name: The software of the host.
        refuses: The ops that the chip does not run, with the reasons.
        kernels: The arithmetic of units on the host; those on the chip have the kernels of the target.
    Raises:
        SpecError: nothing is refused, or an empty name.

    >>> from qfunc.specs import Op
    >>> Host("LiteRT", Refuse(Op("gelu"), because="operators, 2", do="Use relu.")).kernels
    ()
    """

    name: str = field(validator=text())
    refuses: tuple[Refuse | RequireSizes, ...] = field(converter=as_tuple, validator=tuple_of(Refuse, RequireSizes, at_least=1))
    kernels: tuple[Kernel, ...] = field(default=(), converter=as_tuple, validator=tuple_of(Kernel))

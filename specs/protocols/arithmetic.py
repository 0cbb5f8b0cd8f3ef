"""The methods of arithmetics, which compute the units of a runtime."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable


@runtime_checkable
class Arithmetic(Protocol):
    """An arithmetic: states which units it computes, and the function of codes that computes one.

    `unit` is a `qfunc.arithmetic.UnitSpec`: its kind, arguments, operands with their codings, and fused ops.

    >>> from qfunc.specs import Unknown
    >>> isinstance(Unknown("not in the manual"), Arithmetic)
    True
    """

    def refuses(self, unit: Any) -> str:
        """Return the reason why it does not compute a unit, or "".

        Placement calls this, also before calibration, so codings have formats but no qparams, and constants have shapes but no
        values.  A target states conditions on qparams by `Kernel.integer_if`.
        """
        ...

    def kernel(self, unit: Any) -> Any:
        """Return the `qfunc.arithmetic.Computation` of a calibrated unit: its codes, or its real values if `output` is None.

        Raise `unit.error(found, wanted, do)`, an EmulationError, for scales that the arithmetic does not take.
        """
        ...


@runtime_checkable
class Quantization(Protocol):
    """The arithmetic of Op("quantize"): of real values that become codes outside of kernels."""

    def codes(self, real: Any, scale: Any, zero_point: Any, scheme: Any, constant: bool) -> Any:
        """Return the `qfunc.arithmetic.Computation` of codes; `real`, `scale` and `zero_point` are arguments of its function.

        `scheme` is the `specs.Scheme` of the codes; `constant` is True for values that the file has.
        """
        ...


@runtime_checkable
class Dequantization(Protocol):
    """The arithmetic of Op("dequantize"): of codes that an output, or an op in float, reads."""

    def reals(self, codes: Any, scale: Any, zero_point: Any) -> Any:
        """Return the `qfunc.arithmetic.Computation` of real values; the arguments are arguments of its function."""
        ...


@runtime_checkable
class SummingArithmetic(Protocol):
    """An arithmetic of products whose sums have a limited number of bits."""

    @property
    def accumulator(self) -> Any:
        """The `specs.Accumulator`, or its number of bits."""
        ...


@runtime_checkable
class RoundingArithmetic(Protocol):
    """An arithmetic that rounds once.

    Without `Kernel.bounds`, the bounds of a fused activation are rounded in the same way.
    """

    @property
    def rounding(self) -> str:
        """The name of the rounding."""
        ...


@runtime_checkable
class BiasArithmetic(Protocol):
    """An arithmetic that declares whether it adds a bias as a real number; others need a bias with codes."""

    @property
    def float_bias(self) -> bool:
        """True if it does."""
        ...


@runtime_checkable
class FusingArithmetic(Protocol):
    """An arithmetic that computes ops fused with its unit besides clamps, such as an addition after a convolution."""

    @property
    def fuses(self) -> tuple[str, ...]:
        """The kinds of these ops; `refuses` decides about their number and order."""
        ...


@runtime_checkable
class AppendingArithmetic(Protocol):
    """An arithmetic of writes into a cache of codes that declares where new entries become codes."""

    @property
    def quantizes_new(self) -> bool:
        """True if the operator of the cache rounds them, so that it reads their real values."""
        ...


@runtime_checkable
class RealArithmetic(Protocol):
    """An arithmetic of real tensors that declares whether it dequantizes a weight with codes itself."""

    @property
    def reads_reals(self) -> bool:
        """True if it does: a `Kernel` may name the formats of such a weight, and the unit is one in float."""
        ...


@runtime_checkable
class RunTimeArithmetic(Protocol):
    """An arithmetic of products whose input arrives real and becomes codes inside, with qparams that it computes."""

    @property
    def run_time_input(self) -> Any:
        """The `specs.Scheme` of the input: a dynamic one.  The weight may have scales of blocks."""
        ...


@runtime_checkable
class MixtureArithmetic(Protocol):
    """An arithmetic of a mixture of experts, which computes their linear layers as one unit, from a real input.

    The kind of the unit is "experts".  Its arguments are `input`, `shares`, and the (weight, bias) of all layers `up` and
    `down` in the order of the experts.
    """

    def takes(self, arithmetic: Any) -> bool:
        """Return True if a mixture may have layers of this arithmetic."""
        ...


@runtime_checkable
class BoundedArithmetic(Protocol):
    """An arithmetic whose codes are those of its op in float32, within a bound if the runtime adds in another order."""

    def own_error(self, levels: int) -> float:
        """Return the error beyond that of the op in float32, in steps of the result; its codes span `levels` steps."""
        ...

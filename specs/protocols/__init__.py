"""Protocols: the methods of algorithms and runtimes, which packages of higher layers implement.

The protocols of required methods (`Estimator`, `Function`, `Lowering`, `Runner`) are types of fields of specs.  The
others declare optional methods.  Callers check for an optional method by `isinstance`.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from qfunc.specs.protocols.estimator import Estimator, MergeableEstimator
from qfunc.specs.protocols.function import (
    Function,
    LearnedFunction,
    NoiselessFunction,
    OnnxFunction,
    RelaxedFunction,
    ScalableFunction,
    SearchingFunction,
)
from qfunc.specs.protocols.lowering import (
    DecoderLowering,
    FormattedLowering,
    Lowering,
    NamingLowering,
    PartwiseLowering,
    RefusingLowering,
    StackingLowering,
    StoringLowering,
)
from qfunc.specs.protocols.runner import (
    ConditionalRunner,
    ExecutedView,
    FlippingRunner,
    InspectableRunner,
    LoadingRunner,
    LocatedRunner,
    OptionalRunner,
    RealView,
    ReorderingRunner,
    Runner,
)


@runtime_checkable
class RoundingArithmetic(Protocol):
    """An arithmetic of `specs.arithmetic` that rounds once.

    Without `Kernel.bounds`, the bounds of a fused activation are rounded in the same way.
    """

    @property
    def rounding(self) -> str:
        """The name of the rounding."""
        ...


OPTIONAL: dict[type, tuple[type, ...]] = {
    Estimator: (MergeableEstimator,),
    Function: (
        LearnedFunction,
        RelaxedFunction,
        NoiselessFunction,
        SearchingFunction,
        ScalableFunction,
        OnnxFunction,
    ),
    Lowering: (
        FormattedLowering,
        NamingLowering,
        RefusingLowering,
        StoringLowering,
        DecoderLowering,
        StackingLowering,
        PartwiseLowering,
    ),
    Runner: (
        OptionalRunner,
        LoadingRunner,
        InspectableRunner,
        ConditionalRunner,
        LocatedRunner,
        ReorderingRunner,
        FlippingRunner,
    ),
}
"""Maps a protocol of required methods to the protocols of its optional methods."""

OF_FORMATS = ("opset", "one_size", "bias_bits", "blocks", "parameters", "legality")
"""What a lowering says by its `format`, a `specs.FileFormat`."""

__all__ = [
    "OF_FORMATS", "OPTIONAL", "ConditionalRunner", "DecoderLowering", "Estimator", "ExecutedView",
    "FlippingRunner", "FormattedLowering", "Function", "InspectableRunner", "LearnedFunction", "LoadingRunner",
    "LocatedRunner", "Lowering", "MergeableEstimator", "NamingLowering", "NoiselessFunction", "OnnxFunction",
    "OptionalRunner", "PartwiseLowering", "RealView", "RefusingLowering", "RelaxedFunction",
    "ReorderingRunner", "RoundingArithmetic", "Runner", "ScalableFunction", "SearchingFunction", "StackingLowering",
    "StoringLowering",
]  # fmt: skip

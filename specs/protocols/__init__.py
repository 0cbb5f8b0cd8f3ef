"""Protocols: the methods of algorithms and runtimes, which packages of higher layers implement.

The protocols of required methods (`Arithmetic`, `Library`, `Estimator`, `Function`, `Lowering`, `Runner`) are types of fields
of specs.  The others declare optional methods.  Callers check for an optional method by `isinstance`.
"""

from __future__ import annotations

from qfunc.specs.protocols.arithmetic import (
    AppendingArithmetic, Arithmetic, BiasArithmetic, BoundedArithmetic, Dequantization, FusingArithmetic, MixtureArithmetic,
    Quantization, RealArithmetic, RoundingArithmetic, RunTimeArithmetic, SummingArithmetic,
)  # fmt: skip
from qfunc.specs.protocols.estimator import Estimator, MergeableEstimator
from qfunc.specs.protocols.function import (
    Function, LearnedFunction, NoiselessFunction, OnnxFunction, RelaxedFunction, ScalableFunction, SearchingFunction,
)  # fmt: skip
from qfunc.specs.protocols.library import CodesLibrary, Library
from qfunc.specs.protocols.lowering import BuildingLowering, BuiltNetwork, FormattedLowering, Lowering, PartwiseLowering
from qfunc.specs.protocols.runner import (
    ConditionalRunner, ExecutedView, FlippingRunner, InspectableRunner, LoadingRunner, LocatedRunner, OptionalRunner,
    ProfilingRunner, RealView, ReorderingRunner, Runner, ThreadedRunner,
)  # fmt: skip

OPTIONAL: dict[type, tuple[type, ...]] = {
    Arithmetic: (
        SummingArithmetic,
        RoundingArithmetic,
        BiasArithmetic,
        FusingArithmetic,
        RealArithmetic,
        RunTimeArithmetic,
        AppendingArithmetic,
        MixtureArithmetic,
        BoundedArithmetic,
    ),
    Quantization: (),
    Dequantization: (),
    Library: (CodesLibrary,),
    Estimator: (MergeableEstimator,),
    Function: (
        LearnedFunction,
        RelaxedFunction,
        NoiselessFunction,
        SearchingFunction,
        ScalableFunction,
        OnnxFunction,
    ),
    Lowering: (FormattedLowering, BuildingLowering, PartwiseLowering),
    Runner: (
        OptionalRunner,
        LoadingRunner,
        InspectableRunner,
        ConditionalRunner,
        LocatedRunner,
        ReorderingRunner,
        FlippingRunner,
        ThreadedRunner,
        ProfilingRunner,
    ),
}
"""Maps a protocol of required methods to the protocols of its optional methods."""

OF_FORMATS = ("opset", "one_size", "bias_bits", "blocks", "parameters", "legality", "quantizers", "schemes", "experts", "names")
"""The fields of a `specs.FileFormat`, by which a lowering says what its files hold: its `format`."""

FORMER_METHODS = {"refuses": "schemes", "stores": "schemes", "with_names": "names"}
"""Maps a method that lowerings had to the field of a `specs.FileFormat` that replaces it."""

__all__ = [
    "AppendingArithmetic", "Arithmetic", "BiasArithmetic", "BoundedArithmetic", "BuildingLowering", "BuiltNetwork",
    "CodesLibrary", "ConditionalRunner", "Dequantization", "Estimator", "ExecutedView", "FORMER_METHODS",
    "FlippingRunner", "FormattedLowering", "Function", "FusingArithmetic", "InspectableRunner", "LearnedFunction",
    "Library", "LoadingRunner", "LocatedRunner", "Lowering", "MergeableEstimator", "MixtureArithmetic",
    "NoiselessFunction", "OF_FORMATS", "OPTIONAL", "OnnxFunction", "OptionalRunner", "PartwiseLowering",
    "ProfilingRunner", "Quantization", "RealArithmetic", "RealView", "RelaxedFunction", "ReorderingRunner",
    "RoundingArithmetic", "RunTimeArithmetic", "Runner", "ScalableFunction", "SearchingFunction", "SummingArithmetic",
    "ThreadedRunner",
]  # fmt: skip

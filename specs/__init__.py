"""The vocabulary that describes hardware: frozen values, no tensors, no behaviour but validation.

Formats (`Int`, `Float`) -> schemes (`Scheme`: format, scale, zero point, rounding) -> slot values -> rules,
fusions, ties and limits (placement) and kernels (arithmetic) -> `Target`.  `edit` makes targets from targets,
`diff` compares them, `to_json` and `from_json` keep them.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from qfunc.errors import former_name
from qfunc.ops.traits import Trait
from qfunc.specs import cpus, edit, formats
from qfunc.specs._check import ROUNDINGS
from qfunc.specs.arithmetic.accumulator import (
    Accumulator, SaturatesAtEnd, SaturatesEachStep, SaturatesPairs, Wraps,
)  # fmt: skip
from qfunc.specs.arithmetic.decoder import DecoderConfig
from qfunc.specs.arithmetic.dynamic import MinimumSums, WeightSums
from qfunc.specs.arithmetic.kernel import Bounds, Kernel
from qfunc.specs.arithmetic.lanes import BrgemmChunks, LaneOffset, Lanes, RegisterLanes, TokenGroups, TokenTiles
from qfunc.specs.arithmetic.requantization import (
    Copy,
    Unknown,
)
from qfunc.specs.arithmetic.stages import ScaleStage, SegmentStage
from qfunc.specs.cpus import Cpu
from qfunc.specs.file_format import FileFormat
from qfunc.specs.host import Host
from qfunc.specs.legality import Legality, Refuse, Require, RequireSizes, RequireUnit, Span
from qfunc.specs.number_format import BFLOAT16, FLOAT16, FLOAT32, Float, Format, Int, Levels, Log
from qfunc.specs.op_kind import OpKind
from qfunc.specs.placement import (
    ClampImplied, FusesOnly, Fusion, FusionStep, InputRatios, Limit, NoZeroPoint, OutputQParams, ProductRatio, Rule,
    SameQParams, Tie,
)  # fmt: skip
from qfunc.specs.protocols import Arithmetic, Estimator, Function, InspectableRunner, Lowering, Runner
from qfunc.specs.scheme import PerBlock, PerChannel, PerTensor, PerToken, Scale, Scheme, ZeroPoint
from qfunc.specs.selectors import (
    AllOf, AnyInput, AnyOf, AtMost, Attr, Constant, Everything, First, From, GraphInput, GraphOutput, Last, ModuleType,
    Multiple, Name, NodeName, NonNegative, Not, Op, ReadBy, Selector, Where,
)  # fmt: skip
from qfunc.specs.slots import Cases, DerivedQParams, FixedQParams, KeepFloat
from qfunc.specs.target import Algorithm, Build, Override, Runtime, Slower, Target
from qfunc.specs.text.codec import Codec
from qfunc.specs.text.diff import diff

__all__ = [
    "Accumulator", "Algorithm", "AllOf", "AnyInput", "AnyOf", "Arithmetic", "AtMost", "Attr", "AverageCodes", "AveragePool",
    "BFLOAT16", "Bilinear", "Bounds", "BrgemmChunks", "Build", "Cases", "ClampImplied", "Constant", "Copy", "Cpu",
    "DecoderConfig", "DequantizeSum", "DerivedQParams", "DynamicProduct", "Estimator", "Everything", "FLOAT16", "FLOAT32",
    "FileFormat", "First", "FixedBits", "FixedPoint", "FixedPointGemv", "FixedPointLanes", "FixedQParams", "Float",
    "FloatKernel", "FloatMultiplier", "FloatRequantize", "Format", "From", "Function", "FusesOnly", "Fusion", "FusionStep",
    "GluTable", "GraphInput", "GraphOutput", "HardSwish16", "Host", "InputRatios", "InspectableRunner", "Int", "KeepFloat",
    "Kernel", "LaneOffset", "Lanes", "Last", "Legality", "Levels", "Limit", "Log", "Lowering", "MinimumSums", "ModuleType",
    "Multiple", "Name", "NoZeroPoint", "NodeName", "NonNegative", "NormFixed", "Not", "Op", "OpKind", "OutputQParams",
    "Override", "PerBlock", "PerChannel", "PerTensor", "PerToken", "ProductLanes", "ProductRatio", "QuantizeInt32",
    "QuantizeLanes", "QuantizeRange", "ROUNDINGS", "ReadBy", "Refuse", "RegisterLanes", "Require", "RequireSizes",
    "RequireUnit", "Rule", "Runner", "Runtime", "SameQParams", "SaturatesAtEnd", "SaturatesEachStep", "SaturatesPairs", "Scale",
    "ScaleStage", "Scheme", "SegmentStage", "Selector", "Shift", "Slower", "SoftmaxFixed", "SoftmaxFloat", "SoftmaxTable",
    "SoftmaxTable16", "Span", "SumFma", "SumScaled", "SumShifted", "Target", "Tie", "TokenGroups", "TokenTiles", "Trait",
    "Unknown", "WeightSums", "Where", "Wraps", "ZeroPoint", "cpus", "diff", "edit", "formats", "from_json", "to_json",
]  # fmt: skip

to_json, from_json = Codec({}).to_json, Codec({}).from_json
"""JSON of specs.  `import qfunc` replaces both by those that know its public classes, of other packages too."""

# At the end, because the arithmetics compute, with functions of codes that read specs.
from qfunc.arithmetic import (  # noqa: E402
    AverageCodes,
    AveragePool,
    Bilinear,
    DequantizeSum,
    DynamicProduct,
    FixedBits,
    FixedPoint,
    FixedPointGemv,
    FixedPointLanes,
    FloatKernel,
    FloatMultiplier,
    FloatRequantize,
    GluTable,
    HardSwish16,
    NormFixed,
    ProductLanes,
    QuantizeInt32,
    QuantizeLanes,
    QuantizeRange,
    Shift,
    SoftmaxFixed,
    SoftmaxFloat,
    SoftmaxTable,
    SoftmaxTable16,
    SumFma,
    SumScaled,
    SumShifted,
)

if not TYPE_CHECKING:  # a checker would take any name to be an attribute

    def __getattr__(name):
        if name in formats.__all__:  # `from qfunc.specs import name` would replace the message of an AttributeError
            raise former_name(f"qfunc.specs.{name}", f"qfunc.specs.formats.{name}")
        if not name.startswith("_"):
            arithmetics = import_module("qfunc.targets.arithmetics")  # where those of single chips are; these names are older
            if name in arithmetics.__all__:
                return getattr(arithmetics, name)
        raise AttributeError(f"module 'qfunc.specs' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)

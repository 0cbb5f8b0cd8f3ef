"""The vocabulary that describes hardware: frozen values, no tensors, no behaviour but validation."""

from qfunc.specs import edit
from qfunc.specs.arithmetic import (
    AveragePool,
    Copy,
    FixedPoint,
    FloatMultiplier,
    Interior,
    Kernel,
    Shift,
    SoftmaxTable,
    SumFma,
    SumShifted,
    ThroughReal,
    Unknown,
    ZeroPointShifts,
)
from qfunc.specs.codec import from_json, to_json
from qfunc.specs.diff import diff
from qfunc.specs.formats import (
    BFLOAT16,
    E2M1,
    E2M3,
    E3M2,
    E4M3FN,
    E4M3FNUZ,
    E5M2,
    E5M2FNUZ,
    E8M0,
    FLOAT16,
    FLOAT32,
    Float,
    Format,
    Int,
    Levels,
    Log,
)
from qfunc.specs.placement import Fusion, InsideActivation, Limit, Rule, SameQParams, Step, Tie
from qfunc.specs.protocols import Estimator, Function, Lowering, Runner
from qfunc.specs.scheme import PerBlock, PerChannel, PerTensor, PerToken, Scale, Scheme, ZeroPoint
from qfunc.specs.selectors import (
    AllOf,
    AnyInput,
    AnyOf,
    Attr,
    Constant,
    Everything,
    First,
    From,
    GraphInput,
    GraphOutput,
    Last,
    ModuleType,
    Name,
    NonNegative,
    Not,
    Op,
    Selector,
    Where,
)
from qfunc.specs.slots import Cases, Derived, Fixed, Keep
from qfunc.specs.target import Algorithm, OpKind, Override, Runtime, Target



"""ExecuTorch on x86-64, int8, by the XNNPACK delegate, to which the whole model is handed.

Schemes, fusions and legality are those of `litert`.  Average pools, softmax, and products of two tensors of which the
second has a zero point compute in float32 between codes: XNNPACK has no other kernel for them.
"""

from attrs import evolve

from qfunc.lowering import ExecuTorch, Pte
from qfunc.specs import (
    Bilinear,
    Copy,
    FixedBits,
    FloatMultiplier,
    Interior,
    Kernel,
    NoZeroPoint,
    Op,
    Runtime,
    SumScaled,
    Tie,
)
from qfunc.targets.litert import BILINEAR, BY_MATRIX, BYTES, CLIPS, MEANS, MOVES, POOLS, SAME, SUMS, WEIGHTED, litert

executorch_xnnpack = evolve(
    litert,
    name="executorch_xnnpack",
    ties=(Tie(Op("concat"), ("input", "output"), "union"), Tie(CLIPS | BILINEAR, ("input", "output"), "input")),
    kernels=(
        Kernel(WEIGHTED | BY_MATRIX | Op(("mul", "prelu")), FloatMultiplier(), formats=BYTES),
        Kernel(MEANS, FloatMultiplier(zero_point="before"), formats=BYTES),
        Kernel(Op("matmul"), FloatMultiplier(), integer_if=(NoZeroPoint(1),), formats=BYTES),
        Kernel(Op(("matmul", "softmax")), Interior(division=False), formats=BYTES),
        Kernel(SUMS, SumScaled(), formats=BYTES),
        Kernel(Op("leaky_relu"), FixedBits(), formats=BYTES),
        Kernel(BILINEAR, Bilinear("float", 11), integer_if=SAME, formats=BYTES),
        Kernel(POOLS, Interior(division=False, function="xnn_average"), formats=BYTES),
        Kernel(Op("hardswish"), Interior(division=False, zero_point="before", function="xnn_hardswish"), formats=BYTES),
        Kernel(Op(("sigmoid", "tanh")), Interior(division=False, zero_point="before"), formats=BYTES),
        Kernel(CLIPS | Op(("concat", "pad")), Interior(), integer_if=SAME, formats=BYTES),
        Kernel(Op(MOVES) & ~BILINEAR, Copy(), integer_if=SAME, formats=BYTES),
    ),
    runtime=Runtime("executorch", ">=1.5", "x86-64", "XNNPACK", ExecuTorch()),
    lowering=Pte(),
    source=("executorch 1.5.1 on x86-64, measured",
            "XNNPACK, src/microparams-init.c, src/operators and src/reference: requantization of qs8, order of sums"),
)  # fmt: skip

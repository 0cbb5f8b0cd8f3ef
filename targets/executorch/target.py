"""ExecuTorch on x86-64, int8, with the whole model delegated to XNNPACK.

Schemes and fusions are those of `litert`.  Average pools, softmax, and products of two tensors with a zero point in the
second compute in float32 between codes, because XNNPACK has no other kernels for them.  Known differences of one code on
processors other than x86-64 with AVX2: softmax within 1e-4 of a midpoint of two codes, because XNNPACK has its own
exponential, and long products in float32, because of the order of their sums.
"""

from attrs import evolve

from qfunc.specs import (
    Attr, Bilinear, Build, Copy, Everything, FixedBits, FloatKernel, FloatMultiplier, Kernel, NoZeroPoint, Op, PerChannel,
    PerTensor, Refuse, Require, Rule, Runtime, SumScaled, Tie, Trait, cpus,
)  # fmt: skip
from qfunc.targets.executorch.float_functions import XnnpackFloat
from qfunc.targets.executorch.functions import Xnnpack
from qfunc.targets.executorch.lowering import XnnpackLowering
from qfunc.targets.executorch.runner import ExecuTorchRunner
from qfunc.targets.litert.ratios import SUMMED
from qfunc.targets.litert.target import (
    ACTIVATION, ARM64, BILINEAR, BY_CELLS, BY_MATRIX, BYTES, CLAMPED, CLIPS, MEAN, MOVES, MUL, NARROW, POOLS, RULES, S8, SAME,
    SQUARES, SUMS, TRANSPOSED, WEIGHTED, XNNPACK_ON_ARM64, litert,
)  # fmt: skip

BECAUSE = "XNNPACK, xnnpack.h: qint8 is per tensor with a zero point, qcint8 weights are per channel without zero points"
FOUR_AXES = "XNNPACK, xnnpack.h: convolutions and pools take tensors of four axes, channels last"
NO_NODE = "ExecuTorch 1.5, backends/xnnpack/serialization/schema.fbs: no such node, or not in that form"
EXACT_GELU = Op("gelu") & ~Attr("approximate", "tanh")  # the other is written in float32
SOFTMAX = Kernel(Op("softmax"), FloatKernel(division=False, function=XnnpackFloat()), formats=BYTES)
PRODUCT = Kernel(Op("matmul"), FloatKernel(division=False, function=XnnpackFloat()), formats=BYTES)
ON_AVX2 = ((SOFTMAX, evolve(SOFTMAX, arithmetic=FloatKernel(division=False, function=XnnpackFloat(avx2=True)))),)
OTHERS = tuple((kernel, evolve(kernel, arithmetic=FloatKernel(division=False))) for kernel in (SOFTMAX, PRODUCT))
BUILDS = (
    Build(cpus.x86_64_vnni),
    *(Build(cpu, ON_AVX2) for cpu in (cpus.x86_64_avxvnni, cpus.x86_64_avx2)),
    Build(cpus.x86_64_sse4, OTHERS),
    *(Build(cpu, (*XNNPACK_ON_ARM64, *OTHERS)) for cpu in ARM64),
)

executorch_xnnpack = evolve(
    litert,
    name="executorch_xnnpack",
    rules=(*RULES, Rule(Op("elu"), input=ACTIVATION, output=ACTIVATION, beside_integers=True)),
    ties=(Tie(Op("concat"), ("input", "output"), "union"), Tie(CLIPS | BILINEAR, ("input", "output"), "input")),
    kernels=(
        SQUARES,
        MUL,
        Kernel(WEIGHTED | TRANSPOSED | BY_MATRIX | Op("prelu"), FloatMultiplier(), formats=BYTES, bounds=CLAMPED),
        MEAN,
        Kernel(Op("matmul"), FloatMultiplier(), integer_if=(NoZeroPoint(1),), formats=BYTES),
        Kernel(SUMS, SumScaled(), integer_if=SUMMED, formats=BYTES, bounds=CLAMPED),
        PRODUCT,
        Kernel(SUMS | Op("mul"), FloatKernel(division=False), formats=BYTES),
        SOFTMAX,
        Kernel(Op("leaky_relu"), FixedBits(), formats=BYTES),
        Kernel(BILINEAR, Bilinear("float", 11), integer_if=SAME, formats=BYTES),
        Kernel(POOLS, FloatKernel(division=False, function=Xnnpack()), formats=BYTES),
        Kernel(Op("hardswish"), FloatKernel(division=False, zero_point="before", function=Xnnpack()), formats=BYTES),
        Kernel(Op("sigmoid"), FloatKernel(division=False, zero_point="before", function=Xnnpack()), formats=BYTES),
        Kernel(EXACT_GELU, FloatKernel(division=False, zero_point="before", function=Xnnpack()), formats=BYTES),
        Kernel(Op("tanh"), FloatKernel(division=False, zero_point="before"), formats=BYTES),
        Kernel(Op("elu"), FloatKernel(division=False, zero_point="before"), formats=BYTES),
        Kernel(CLIPS, FloatKernel(zero_point="before"), integer_if=SAME, formats=BYTES),
        Kernel(Op(("concat", "pad")), FloatKernel(), integer_if=SAME, formats=BYTES),
        Kernel(Op(MOVES) & ~BILINEAR, Copy(), integer_if=SAME, formats=BYTES),
    ),
    legality=(
        Require(Everything(), ("input", "output"), formats=S8, shared=PerTensor(), because=BECAUSE),
        Require(Everything(), "weight", formats=NARROW, zero_point=False, shared=(PerTensor(), PerChannel()), because=BECAUSE),
        Refuse(Attr("spatial", 3), because=FOUR_AXES, do="Slide along one or two axes."),
        Refuse(Op(Trait.RECURRENT), because=NO_NODE, do=BY_CELLS),
    ),
    runtime=Runtime("executorch", ">=1.5", cpus.x86_64_vnni, "XNNPACK", ExecuTorchRunner(), BUILDS),
    lowering=XnnpackLowering(),
    source=("executorch 1.5.1 on x86-64, measured",
            "XNNPACK, src/microparams-init.c, src/operators and src/reference: requantization of qs8, order of sums"),
)  # fmt: skip

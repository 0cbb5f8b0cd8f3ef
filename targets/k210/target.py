"""Kendryte K210: its KPU, uint8, as the compiler nncase 1 uses it. Convolutions run on the KPU, the rest in float on the CPU.

Activations are uint8 affine per tensor. Weights are uint8 per output channel around the zero point 128, the only one that
the compiler gives a layer. The KPU computes 1x1 and 3x3 convolutions, depthwise ones included, in two stages: the
accumulator times an integer of 22 bits is cut off by a shift of at most 15, and the bias is added; then a table of 16 line
segments gives the code. A relu or clip is part of the table. Average pools of 2x2 and 4x4 entries after a convolution cut off
the mean of the codes. The compiler leaves such a pool to the CPU if another op reads the convolution too.

The arithmetic is that of nncase's simulator of the KPU; it has not been compared with silicon. The compiler chooses its
own ranges and samples a line for its table 2,048 times, so that its codes can differ from these by 1.
"""

from qfunc.estimators import MinMax
from qfunc.functions import Fixed as FixedFunction
from qfunc.specs import (
    Algorithm, AnyInput, Attr, AverageCodes, Bounds, Copy, Everything, Fusion, FusionStep, Int, KeepFloat, Kernel, Op,
    PerChannel, PerTensor, Require, RequireSizes, Rule, Runtime, SameQParams, Scale, Scheme, Span, Target, Tie, Trait,
    ZeroPoint,
)  # fmt: skip
from qfunc.targets.k210.lowering import K210Lowering
from qfunc.targets.k210.stages import KPU

U8 = Int(8, signed=False)
ACTIVATION = Scheme(U8, zero_point=ZeroPoint("half_away", added="before"))
WEIGHT = Scheme(U8, Scale(PerChannel()), ZeroPoint(value=128))
FILTERS = Attr("kernel", (1, 1)) | Attr("kernel", (3, 3))
CONV = Op("conv") & Attr("spatial", 2) & FILTERS & Attr("dilation", (1, 1)) & (Attr("groups", 1) | Attr("depthwise", True))
TWO = (Attr("kernel_size", 2) | Attr("kernel_size", (2, 2))) & (Attr("stride", 2) | Attr("stride", (2, 2)))
FOUR = (Attr("kernel_size", 4) | Attr("kernel_size", (4, 4))) & (Attr("stride", 4) | Attr("stride", (4, 4)))
WHOLE = (Attr("padding", 0) | Attr("padding", (0, 0))) & Attr("ceil_mode", False) & Attr("divisor_override", None)
POOL = Op("avg_pool") & AnyInput(CONV & Attr("groups", 1)) & (TWO | FOUR) & WHOLE
LAYERS = Op(("conv", "conv_transpose", "linear"))
CLAMPS = Op(Trait.CLAMPS)
MOVES = Op(("max_pool", "adaptive_max_pool", "reshape", "flatten", "transpose", "squeeze", "unsqueeze", "slice", "split",
            "chunk"))  # fmt: skip
BYTES = (("input", (U8,)), ("weight", (U8,)), ("output", (U8,)))
SAME = (SameQParams(),)
SHAPES = "nncase, modules/k210, kpu_utils.h: is_supported_in_shape: at most 1024 channels, 4 to 256 rows, 4 to 512 columns"
OUTPUTS = "nncase, modules/k210, kpu_utils.h: is_supported_out_shape: at most 1024 channels"
MEMORY = "nncase, modules/k210, runtime_types.h: KPU_RAM_SIZE: 2 MiB for the input and the output of a layer"
CODES = "nncase, modules/k210, kpu_conv2d.cpp: quantize_weights and get_quant_param in unsigned_mode, with w_zero_point = 128"
TO_CPU = "Leave it to the CPU by edit.skip."

k210 = Target(
    name="k210",
    rules=(
        Rule(CONV, input=ACTIVATION, weight=WEIGHT, bias=KeepFloat(), output=ACTIVATION),
        Rule(POOL, input=ACTIVATION, output=ACTIVATION),
        Rule(LAYERS, input=KeepFloat(), weight=KeepFloat(), output=KeepFloat()),  # on the CPU
    ),
    fusions=(Fusion(CONV, (FusionStep(CLAMPS),)),),
    ties=(Tie(POOL, ("input", "output"), "input"),),
    kernels=(
        Kernel(CONV, KPU, formats=BYTES, bounds=Bounds("half_even")),
        Kernel(POOL, AverageCodes("floor"), integer_if=SAME, formats=BYTES),
        Kernel(MOVES, Copy(), integer_if=SAME, formats=BYTES),
    ),
    commuting=MOVES,
    legality=(
        Require(Everything(), ("input", "output"), formats=U8, shared=PerTensor(), because=CODES),
        Require(Everything(), "weight", formats=U8, zero_point=True, shared=(PerTensor(), PerChannel()), because=CODES),
        RequireSizes(
            CONV,
            "input",
            rank=Span(4, 4),
            axes=((1, Span(1, 1024)), (2, Span(4, 256)), (3, Span(4, 512))),
            because=SHAPES,
            do=TO_CPU,
        ),
        RequireSizes(CONV, "output", axes=((1, Span(1, 1024)),), because=OUTPUTS, do=TO_CPU),
        RequireSizes(CONV, ("input", "output"), elements=Span(1, 2**21), because=MEMORY, do=TO_CPU),
    ),
    runtime=Runtime("nncase", "1.9", "K210", "KPU"),
    lowering=K210Lowering(),
    source=(
        "nncase (kendryte/nncase), modules/k210: kernels/k210/k210_kernels.h, kpu_conv2d and kpu_pool2d",
        "nncase, modules/k210/src/transforms/k210: kpu_conv2d.cpp, fake_kpu_conv2d.cpp, fuse_kpu_conv2d_pool.cpp",
        "nncase, runtime_op_utility.h, carry_shift with banker's rounding; runtime_types.h, the widths of the tables",
        "Kendryte standalone programming guide, KPU: 'supports two kinds of convolution kernels, 1x1 and 3x3'",
    ),
    weight=Algorithm(MinMax(), FixedFunction()),
    activation=Algorithm(MinMax(), FixedFunction()),
)

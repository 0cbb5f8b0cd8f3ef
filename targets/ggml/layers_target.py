"""ggml on x86-64 with AVX2: linear layers whose weights are blocks of llama.cpp's types.

A weight has scales, and in some types minimums, as llama.cpp's own quantizer computes them: of 32 inputs in float16, or powers
of two in MXFP4, or in the K types integers for 16 or 32 inputs beside numbers in float16 for 256.  The input is quantized to
Q8_0, Q8_1 or Q8_K while the layer runs, so that nothing has to be calibrated but shapes.  Linear layers with a number of inputs
that the block does not divide, 256 in K types, stay in float32, and so does all else.
"""

from qfunc.estimators import MinMax
from qfunc.functions import Fixed, GgmlBlocks
from qfunc.specs import FLOAT32, Algorithm, Kernel, Multiple, Op, Rule, Runtime, Target, cpus
from qfunc.targets.ggml.lowering import GgufLowering
from qfunc.targets.ggml.products import BLOCK, BLOCK_K, INPUT_K, PRODUCTS
from qfunc.targets.ggml.runner import GgmlRunner


def of_layers(kind: str) -> Target:
    """Return the target for the linear layers of any network, with weights of a type."""
    lowering = GgufLowering(kind)
    weight, products = lowering.scheme, PRODUCTS[kind]
    blocks = Op("linear") & Multiple("in_features", (BLOCK_K if products[0][1].input == INPUT_K else BLOCK).size)
    formats = (("input", (FLOAT32,)), ("output", (FLOAT32,)), ("weight", (weight.format,)))
    return Target(
        lowering=lowering,
        name=f"gguf_{kind.lower()}",
        rules=(Rule(blocks, input=products[0][1].input, weight=weight),),
        kernels=tuple(Kernel(blocks if of is None else blocks & of, product, formats=formats) for of, product in products),
        runtime=Runtime("ggml", ">=0.20", cpus.x86_64_avx2, "CPU", GgmlRunner()),
        source=("ggml 0.20.2 on x86-64, measured: scales, rounding and order of sums, in builds for AVX2 and for AVX-512 VNNI",
                "ggml, src/ggml-quants.c: quantize_row_q8_0_ref, quantize_row_q4_0_ref, quantize_row_q4_K_ref and their like",
                "ggml, src/ggml-cpu/arch/x86/quants.c: quantize_row_q8_0, ggml_vec_dot_q8_0_q8_0, ggml_vec_dot_q4_K_q8_K, ...",
                "ggml, src/ggml-cpu/arch/x86/repack.cpp: ggml_gemv_q4_0_8x8_q8_0, ggml_gemm_q4_K_8x8_q8_K and their like"),
        weight=Algorithm(MinMax(), GgmlBlocks() if weight.searched else Fixed()),
        activation=Algorithm(MinMax(), Fixed()),
    )  # fmt: skip

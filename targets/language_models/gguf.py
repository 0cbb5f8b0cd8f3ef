"""llama.cpp on x86-64 with AVX2: linear layers whose weights are blocks of llama.cpp's types, in a GGUF file.

A weight has scales, and in some types minimums, as llama.cpp's own quantizer computes them: of 32 inputs in float16, or in the
K types integers for 16 or 32 inputs beside numbers in float16 for 256.  The input is quantized to Q8_0, Q8_1 or Q8_K while the
layer runs, so that nothing has to be calibrated but shapes.  The products of codes are summed in integers within a block, and
in float32 over the blocks: in 8 lanes, or in one if the weight is repacked, which ggml does with Q4_0 and Q4_K if 8 divides
the number of outputs.  Linear layers with a number of inputs that the block does not divide, 256 in K types, stay in float32,
and so does all else.
"""

from attrs import evolve

from qfunc.estimators import MinMax
from qfunc.functions import Fixed, GgmlBlocks
from qfunc.lowering import GgmlRunner, GgufLowering
from qfunc.specs import (
    FLOAT16,
    FLOAT32,
    Algorithm,
    DecoderConfig,
    DynamicProduct,
    Int,
    Kernel,
    LaneOffset,
    Lanes,
    MinimumSums,
    Multiple,
    Op,
    PerBlock,
    Rule,
    Runtime,
    Scale,
    Scheme,
    Target,
    TokenGroups,
    cpus,
)
from qfunc.targets.language_models.llama_cpp import of_decoder

BLOCK, BLOCK_K = PerBlock(-1, 32), PerBlock(-1, 256)
INPUT = Scheme(Int(8, low=-127), Scale(BLOCK, format=FLOAT16, rounded="after", dynamic=True), division=False)
INPUT_K = evolve(INPUT, scale=Scale(BLOCK_K, dynamic=True))
ROWS = DynamicProduct(INPUT, multiplier="both", scales="inside", lanes=Lanes(8, 4))
ROWS_K = evolve(ROWS, input=INPUT_K, multiplier="first")
WITH_MINIMUMS = evolve(ROWS, minimums=MinimumSums(rounded=FLOAT16))
REPACKED_K = evolve(ROWS_K, lanes=Lanes(), minimums=MinimumSums(), groups=TokenGroups(4, part=64))
EIGHTS = Multiple("out_features", 8)
PRODUCTS = {
    "Q8_0": ((None, ROWS),),
    "Q5_0": ((None, ROWS),),
    "Q4_0": ((EIGHTS, evolve(ROWS, lanes=Lanes())), (None, ROWS)),
    "Q5_1": ((None, WITH_MINIMUMS),),
    "Q4_1": ((None, WITH_MINIMUMS),),
    "Q6_K": ((None, evolve(ROWS_K, offset=LaneOffset(32, run=32))),),
    "Q5_K": ((None, evolve(ROWS_K, minimums=MinimumSums())),),
    "Q4_K": ((EIGHTS, REPACKED_K), (None, evolve(ROWS_K, minimums=MinimumSums(Lanes(4, 64))))),
}


def gguf(kind: str, decoder: DecoderConfig | None = None) -> Target:
    """Return the target for weights in "Q8_0", "Q5_0", "Q4_0", "Q5_1", "Q4_1", "Q6_K", "Q5_K" or "Q4_K".

    Args:
        kind: The type of the weights.
        decoder: None for the linear layers of any network.  For a whole decoder in a file that llama.cpp loads, its
            hyperparameters: `qfunc.lowering.decoder_config(model.config)`.

    >>> gguf("Q4_0").name
    'gguf_q4_0'
    """
    lowering = GgufLowering(kind)
    weight, products = lowering.scheme, PRODUCTS[kind]
    blocks = Op("linear") & Multiple("in_features", (BLOCK_K if products[0][1].input == INPUT_K else BLOCK).size)
    formats = (("input", (FLOAT32,)), ("output", (FLOAT32,)), ("weight", (weight.format,)))
    layers = Target(
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
    return layers if decoder is None else of_decoder(layers, kind, decoder)

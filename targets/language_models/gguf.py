"""llama.cpp on x86-64 with AVX2: linear layers whose weights are blocks of Q8_0, Q5_0 or Q4_0, in a GGUF file.

A weight has a scale in float16 for each block of 32 inputs, as llama.cpp's own quantizer computes it.  The input is quantized
to Q8_0 while the layer runs, so that nothing has to be calibrated but shapes.  The products of codes are summed in integers
within a block, and in float32 over the blocks: in 8 lanes, or in one if the weight is repacked, which ggml does with Q4_0 if
8 divides the number of outputs.  Linear layers with a number of inputs that 32 does not divide stay in float32, and so does
all else.
"""

from attrs import evolve

from qfunc.estimators import MinMax
from qfunc.functions import Fixed
from qfunc.lowering import GgmlRunner, GgufLowering
from qfunc.specs import (
    FLOAT16,
    FLOAT32,
    GGUF_Q4_0,
    GGUF_Q5_0,
    GGUF_Q8_0,
    Algorithm,
    Decoder,
    DynamicProduct,
    Int,
    Kernel,
    Lanes,
    Multiple,
    Op,
    PerBlock,
    Rule,
    Runtime,
    Scale,
    Scheme,
    Target,
    cpus,
)
from qfunc.targets.language_models.llama_cpp import of_decoder

INPUT = Scheme(Int(8, low=-127), Scale(PerBlock(-1, 32), format=FLOAT16, rounded="after", dynamic=True), division=False)
ROWS = DynamicProduct(INPUT, multiplier="both", scales="inside", lanes=Lanes(8, 4))
BLOCKS = Op("linear") & Multiple("in_features", 32)
REALS = (("input", (FLOAT32,)), ("output", (FLOAT32,)))
OF_Q8_0 = Kernel(BLOCKS, ROWS, formats=(*REALS, ("weight", (GGUF_Q8_0.format,))))
OF_Q5_0 = evolve(OF_Q8_0, formats=(*REALS, ("weight", (GGUF_Q5_0.format,))))
OF_Q4_0 = evolve(OF_Q8_0, formats=(*REALS, ("weight", (GGUF_Q4_0.format,))))
REPACKED = evolve(OF_Q4_0, unit=BLOCKS & Multiple("out_features", 8), arithmetic=evolve(ROWS, lanes=Lanes()))
WEIGHTS = {"Q8_0": (GGUF_Q8_0, (OF_Q8_0,)), "Q5_0": (GGUF_Q5_0, (OF_Q5_0,)), "Q4_0": (GGUF_Q4_0, (REPACKED, OF_Q4_0))}


def gguf(kind: str, decoder: Decoder | None = None) -> Target:
    """Return the target for weights in "Q8_0", "Q5_0" or "Q4_0".

    Args:
        kind: The type of the weights.
        decoder: None for the linear layers of any network.  For a whole decoder in a file that llama.cpp loads, its
            hyperparameters: `qfunc.lowering.decoder_of(model.config)`.

    >>> gguf("Q4_0").name
    'gguf_q4_0'
    """
    layers = Target(
        lowering=GgufLowering(kind),
        name=f"gguf_{kind.lower()}",
        rules=(Rule(BLOCKS, input=INPUT, weight=WEIGHTS[kind][0]),),
        kernels=WEIGHTS[kind][1],
        runtime=Runtime("ggml", ">=0.20", cpus.x86_64_avx2, "CPU", GgmlRunner()),
        source=("ggml 0.20.2 on x86-64, measured: scales, rounding and order of sums, in builds for AVX2 and for AVX-512 VNNI",
                "ggml, src/ggml-quants.c: quantize_row_q8_0_ref, quantize_row_q5_0_ref, quantize_row_q4_0_ref",
                "ggml, src/ggml-cpu/arch/x86/quants.c: quantize_row_q8_0, ggml_vec_dot_q8_0_q8_0, and those of q5_0 and q4_0",
                "ggml, src/ggml-cpu/arch/x86/repack.cpp: ggml_gemv_q4_0_8x8_q8_0, ggml_gemm_q4_0_8x8_q8_0"),
        weight=Algorithm(MinMax(), Fixed()),
        activation=Algorithm(MinMax(), Fixed()),
    )  # fmt: skip
    return layers if decoder is None else of_decoder(layers, kind, decoder)

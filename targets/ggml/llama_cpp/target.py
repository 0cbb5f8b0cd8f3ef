"""llama.cpp on x86-64 with AVX-512: whole decoders, with weights in blocks, in a GGUF file.

llama.cpp builds the network itself, from the hyperparameters in the file.  Its norms, angles, softmax and curves have their own
order of sums, and its cache rounds keys and values to float16.  Each tensor has the type that llama.cpp's own quantizer gives
it.
"""

from qfunc.estimators import MinMax
from qfunc.functions import Fixed, GgmlBlocks
from qfunc.specs import (
    FLOAT32, Algorithm, DecoderConfig, Kernel, Op, Override, Rule, Runtime, Target, cpus,
)  # fmt: skip
from qfunc.targets.ggml.llama_cpp.lowering import LlamaCppLowering
from qfunc.targets.ggml.llama_cpp.runner import LlamaCppRunner
from qfunc.targets.ggml.products import PRODUCTS_OF_DECODERS


def of_decoder(kind: str, decoder: DecoderConfig) -> Target:
    """Return the target for a decoder.

    Args:
        kind: The type of the weights, or a mix.
        decoder: The hyperparameters.
    """
    lowering = LlamaCppLowering(kind, decoder)
    types, layers = lowering.types(), lowering.layers()
    schemes = {name: lowering.scheme(name) for name in types.values()}
    table = tuple(schemes[types[name]] for name in ("token_embd.weight",) if name in types)
    heads = [name for name in decoder.matrices()[1:] if types.get(name) == types.get("token_embd.weight")]
    of_table = types.get("token_embd.weight") if decoder.tied and heads == ["output.weight"] else None  # one weight of both
    fixed = (
        *(Op("embedding") for scheme in table if not scheme.searched),
        *(select for name, select in layers.items() if not schemes[name].searched and name != of_table),
    )
    searched = any(scheme.searched for scheme in schemes.values())
    products = {name: PRODUCTS_OF_DECODERS[name] for name in layers}
    return Target(
        name=f"gguf_{kind.lower()}_{decoder.architecture}",
        lowering=lowering,
        rules=(
            *(Rule(Op("embedding"), weight=scheme) for scheme in table),
            *(Rule(select, input=products[name][0][1].input, weight=schemes[name]) for name, select in layers.items()),
        ),
        kernels=tuple(
            Kernel(
                select if of is None else select & of,
                product,
                formats=(("input", (FLOAT32,)), ("output", (FLOAT32,)), ("weight", (schemes[name].format,))),
            )
            for name, select in layers.items()
            for of, product in products[name]
        ),
        runtime=Runtime("llama.cpp", ">=0.3.36", cpus.x86_64_vnni, "CPU", LlamaCppRunner()),
        source=("llama.cpp of llama-cpp-python 0.3.36 (ggml 0.25.3) on x86-64 with AVX-512, measured: each bit of the logits",
                "llama.cpp, src/models/llama.cpp, qwen2.cpp and qwen3.cpp; src/llama-graph.cpp: build_attn_mha, build_ffn",
                "llama.cpp, src/llama-quant.cpp: llama_tensor_get_type_impl, tensor_type_fallback",
                "ggml, src/ggml-quants.c: quantize_row_q8_0_ref, quantize_row_q4_K_ref and their like",
                "ggml, src/ggml-cpu/ops.cpp, vec.h, vec.cpp and simd-gemm.h",
                "ggml, src/ggml-cpu/tiled/tiled-kernel.cpp, arch/x86/quants.c and arch/x86/repack.cpp"),
        weight=Algorithm(MinMax(), GgmlBlocks() if searched else Fixed()),
        activation=Algorithm(MinMax(), Fixed()),
        overrides=tuple(Override(select, "weight", function=Fixed()) for select in fixed) if searched else (),
    )  # fmt: skip

"""llama.cpp on x86-64 with AVX-512: whole decoders, with weights in blocks, in a GGUF file.

llama.cpp builds the network itself, from the hyperparameters in the file.  Its norms, angles, softmax and curves have their own
order of sums, and its cache rounds keys and values to float16.  Each tensor has the type that llama.cpp's own quantizer gives
it.
"""

from collections.abc import Sequence

from qfunc.estimators import MinMax
from qfunc.functions import Fixed, GgmlBlocks
from qfunc.lowering import LlamaCppLowering, LlamaCppRunner
from qfunc.specs import (
    FLOAT32,
    Algorithm,
    AnyOf,
    DecoderConfig,
    Kernel,
    Name,
    Op,
    Override,
    Rule,
    Runtime,
    Selector,
    Target,
    cpus,
)
from qfunc.targets.language_models.ggml_products import PRODUCTS_OF_DECODERS


def of_decoder(kind: str, decoder: DecoderConfig) -> Target:
    """Return the target for a decoder.

    Args:
        kind: The type of the weights, or a mix.
        decoder: The hyperparameters.
    """
    lowering = LlamaCppLowering(kind, decoder)
    types, layers = lowering.types(), lowering.layers()
    table = types.get("token_embd.weight")
    searched = any(lowering.scheme(name).searched for name in types.values())
    rules = [] if table is None else [Rule(Op("embedding"), weight=lowering.scheme(table))]
    kernels: list[Kernel] = []
    fixed: list[Selector] = [] if table is None or lowering.scheme(table).searched else [Op("embedding")]
    for name, paths in layers.items():
        weight, products = lowering.scheme(name), PRODUCTS_OF_DECODERS[name]
        select = Op("linear") if paths is None else Op("linear") & _named(paths)
        formats = (("input", (FLOAT32,)), ("output", (FLOAT32,)), ("weight", (weight.format,)))
        rules.append(Rule(select, input=products[0][1].input, weight=weight))
        kernels += [Kernel(select if of is None else select & of, product, formats=formats) for of, product in products]
        fixed += [] if weight.searched else [select]
    return Target(
        name=f"gguf_{kind.lower()}_{decoder.architecture}",
        lowering=lowering,
        rules=tuple(rules),
        kernels=tuple(kernels),
        runtime=Runtime("llama.cpp", ">=0.3.36", cpus.x86_64_vnni, "CPU", LlamaCppRunner()),
        source=("llama.cpp of llama-cpp-python 0.3.36 (ggml 0.25.3) on x86-64 with AVX-512, measured: each bit of the logits",
                "llama.cpp, src/models/llama.cpp, qwen2.cpp and qwen3.cpp; src/llama-graph.cpp: build_attn_mha, build_ffn",
                "llama.cpp, src/llama-quant.cpp: llama_tensor_get_type_impl, tensor_type_fallback",
                "ggml, src/ggml-quants.c: quantize_row_q8_0_ref, quantize_row_q4_K_ref and their like",
                "ggml, src/ggml-cpu/ops.cpp, vec.h, vec.cpp and simd-gemm.h",
                "ggml, src/ggml-cpu/tiled/tiled-kernel.cpp, arch/x86/quants.c and arch/x86/repack.cpp"),
        weight=Algorithm(MinMax(), GgmlBlocks() if searched else Fixed()),
        activation=Algorithm(MinMax(), Fixed()),
        overrides=(Override(_any(fixed), "weight", function=Fixed()),) if searched and fixed else (),
    )  # fmt: skip


def _named(paths: tuple[str, ...]) -> Selector:
    return _any([Name(path) for path in paths])


def _any(selectors: Sequence[Selector]) -> Selector:
    return selectors[0] if len(selectors) == 1 else AnyOf(tuple(selectors))

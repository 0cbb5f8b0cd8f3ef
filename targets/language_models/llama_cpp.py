"""llama.cpp on x86-64 with AVX-512: whole decoders, with weights in blocks, in a GGUF file.

llama.cpp builds the network itself, from the hyperparameters in the file.  Its norms, angles, softmax and curves have their own
order of sums, and its cache rounds keys and values to float16.
"""

from attrs import evolve

from qfunc.lowering import LlamaCppLowering, LlamaCppRunner
from qfunc.specs import DecoderConfig, Op, Rule, Runtime, Target, TokenTiles, cpus


def of_decoder(layers: Target, kind: str, decoder: DecoderConfig) -> Target:
    """Return the target for a decoder whose linear layers are those of a target; its table of tokens has the same blocks.

    Args:
        layers: A target for linear layers, `targets.gguf(kind)`.
        kind: The type of the weights.
        decoder: The hyperparameters.
    """
    (rule,) = layers.rules
    return evolve(
        layers,
        name=f"{layers.name}_{decoder.architecture}",
        lowering=LlamaCppLowering(kind, decoder),
        kernels=tuple(evolve(k, arithmetic=_of_llama_cpp(k.arithmetic)) for k in layers.kernels),
        rules=(rule, Rule(Op("embedding"), weight=rule.weight)),
        runtime=Runtime("llama.cpp", ">=0.3.36", cpus.x86_64_vnni, "CPU", LlamaCppRunner()),
        source=(*layers.source,
                "llama.cpp of llama-cpp-python 0.3.36 on x86-64 with AVX-512, measured: each bit of the logits",
                "llama.cpp, src/models/llama.cpp, qwen2.cpp and qwen3.cpp; src/llama-graph.cpp: build_attn_mha, build_ffn",
                "ggml, src/ggml-cpu/ops.cpp, vec.h, vec.cpp and simd-gemm.h"),
    )  # fmt: skip


def _of_llama_cpp(product):
    if product.groups is not None:
        return evolve(product, sequences="apart")
    if product.multiplier == "first":
        return evolve(product, tiles=TokenTiles(8), sequences="apart")
    return product

"""llama.cpp on x86-64 with AVX-512: whole decoders, with weights in blocks, in a GGUF file.

The linear layers are those of `targets.gguf`, and the table of tokens has the same blocks.  llama.cpp builds the rest of the
network itself, from the hyperparameters in the file: its norms, angles, softmax and curves have their own order of sums, and
its cache rounds keys and values to float16.
"""

from attrs import evolve

from qfunc.lowering import LlamaCppLowering, LlamaCppRunner
from qfunc.specs import Decoder, Op, Rule, Runtime, Target, cpus
from qfunc.targets.language_models.gguf import gguf


def llama_cpp(kind: str, decoder: Decoder) -> Target:
    """Return the target for a decoder with weights of one kind of `targets.gguf`.

    Args:
        kind: The type of the weights, such as "Q8_0".
        decoder: The hyperparameters, as `qfunc.lowering.decoder_of(model.config)` returns them.

    >>> sizes = dict(blocks=1, width=64, inner=96, heads=4, kv_heads=2, head_size=16, vocabulary=100, context=256)
    >>> llama_cpp("Q8_0", Decoder(architecture="llama", **sizes)).name
    'llama_cpp_llama_q8_0'
    """
    layers = gguf(kind)
    (rule,) = layers.rules
    return evolve(
        layers,
        name=f"llama_cpp_{decoder.architecture}_{kind.lower()}",
        lowering=LlamaCppLowering(kind, decoder),
        rules=(rule, Rule(Op("embedding"), weight=rule.weight)),
        runtime=Runtime("llama.cpp", ">=0.3.36", cpus.x86_64_vnni, "CPU", LlamaCppRunner()),
        source=(*layers.source,
                "llama.cpp of llama-cpp-python 0.3.36 on x86-64 with AVX-512, measured: each bit of the logits",
                "llama.cpp, src/models/llama.cpp, qwen2.cpp and qwen3.cpp; src/llama-graph.cpp: build_attn_mha, build_ffn",
                "ggml, src/ggml-cpu/ops.cpp, vec.h, vec.cpp and simd-gemm.h"),
    )  # fmt: skip

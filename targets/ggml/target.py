"""GGUF files: linear layers of any network for ggml, or whole decoders for llama.cpp."""

from qfunc.specs import DecoderConfig, Target
from qfunc.specs.arguments import made
from qfunc.targets.ggml.layers_target import of_layers
from qfunc.targets.ggml.llama_cpp.target import of_decoder


def gguf(kind: str, decoder: DecoderConfig | None = None) -> Target:
    """Return the target for weights of a type of llama.cpp, or of a mix of types in a whole decoder.

    Args:
        kind: The type of the weights: "Q8_0", "Q5_0", "Q4_0", "Q5_1", "Q4_1", "MXFP4", "Q6_K", "Q5_K", "Q4_K", "Q3_K" or
            "Q2_K".  For a whole decoder, which has no MXFP4, also a mix of llama.cpp's quantizer: "Q5_K_M", "Q5_K_S", "Q4_K_M",
            "Q4_K_S", "Q3_K_L", "Q3_K_M" or "Q3_K_S"; "Q2_K" is a mix there.
        decoder: None for the linear layers of any network.  For a whole decoder in a file that llama.cpp loads, its
            hyperparameters: `qfunc.targets.runtimes.decoder_config(model.config)`.

    >>> gguf("Q4_0").name
    'gguf_q4_0'
    """
    return made("gguf, kind", of_layers, kind) if decoder is None else of_decoder(kind, decoder)

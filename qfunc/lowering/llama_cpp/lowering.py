"""Lower a decoder to a GGUF file that llama.cpp loads."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

from attrs import field, frozen

from qfunc.files.part import Part
from qfunc.lowering.gguf.lowering import GgufLowering
from qfunc.lowering.quantized_tensor import QuantizedTensor
from qfunc.specs import DecoderConfig
from qfunc.specs._check import instance_of, refuse
from qfunc.specs._values import readable


def _known_kind(instance: object, attribute: object, value: str) -> None:
    if GgufLowering(value).scheme.scale.integers is not None:
        wanted = "'Q8_0', 'Q5_0', 'Q4_0', 'Q5_1' or 'Q4_1' for a whole decoder"
        raise refuse(instance, "kind", value, wanted, "Choose one of them.")


@readable
@frozen
class LlamaCppLowering:
    """`model.gguf`: the whole decoder, with the names, shapes and hyperparameters that llama.cpp reads.

    Weights of linear layers and the table of tokens are in blocks, and norms and biases in F32.  A head that shares the table
    is not stored again.  Rows of queries and keys have the order of llama.cpp's architecture.  The file has no tokenizer until
    `with_tokenizer` adds one.  qfunc writes the file; llama.cpp is needed only to run it.

    Args:
        kind: The type of the weights, one of those of `GgufLowering`.
        decoder: The hyperparameters, as `decoder_config(model.config)` returns them.
    Source: ggml, docs/gguf.md; llama.cpp, src/llama-arch.cpp and src/llama-model.cpp.

    >>> sizes = dict(blocks=1, width=64, inner=96, heads=4, kv_heads=2, head_size=16, vocabulary=100, context=256)
    >>> LlamaCppLowering("Q8_0", DecoderConfig(architecture="llama", **sizes)).kind
    'Q8_0'
    """

    kind: str = field(validator=_known_kind)
    decoder: DecoderConfig = field(validator=instance_of(DecoderConfig))
    blocks: ClassVar[bool] = True

    def refuses(self, scheme: Any, constant: bool) -> str:
        """Return a description of the schemes that the file holds, or "" for one of them."""
        return GgufLowering(self.kind).refuses(scheme, constant)

    def lower(self, model: Any, sites: Iterable[QuantizedTensor]) -> Mapping[str, bytes]:
        """Return the file's bytes.

        Raises:
            DeployError: a parameter that the architecture does not have, or a tensor that the model does not have.
        """
        return {name: b"".join(chunks) for name, chunks in self.join([self.part(model, sites)]).items()}

    def part(self, model: Any, sites: Iterable[QuantizedTensor]) -> Part:
        """Return the tensors of a part of the decoder.

        Raises:
            DeployError: a parameter that the architecture does not have.
        """
        # Import here, so that `import qfunc` does not import onnx.
        from qfunc.lowering.llama_cpp.tensors import decoder_part

        return decoder_part(model, self.kind, self.decoder)

    def join(self, parts: Sequence[Part]) -> Mapping[str, Iterable[bytes]]:
        """Return the file's bytes, of which one tensor at a time is in memory.

        Raises:
            DeployError: a tensor that the model does not have.
        """
        from qfunc.lowering.gguf.file import gguf_chunks
        from qfunc.lowering.llama_cpp.tensors import decoder_tensors

        return {"model.gguf": gguf_chunks(_values(self.decoder), decoder_tensors(parts, self.decoder))}


def _values(d: DecoderConfig) -> dict[str, str | int | float]:
    own: dict[str, str | int | float] = {
        "context_length": d.context,
        "embedding_length": d.width,
        "block_count": d.blocks,
        "feed_forward_length": d.inner,
        "attention.head_count": d.heads,
        "attention.head_count_kv": d.kv_heads,
        "attention.key_length": d.head_size,
        "attention.value_length": d.head_size,
        "attention.layer_norm_rms_epsilon": d.epsilon,
        "rope.dimension_count": d.head_size,
        "rope.freq_base": d.rope_base,
        "vocab_size": d.vocabulary,
    }
    general: dict[str, str | int | float] = {"general.architecture": d.architecture, "general.quantization_version": 2}
    return general | {f"{d.architecture}.{key}": value for key, value in own.items()} | {"tokenizer.ggml.model": "no_vocab"}


__all__ = ["LlamaCppLowering"]

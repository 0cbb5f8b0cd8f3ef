"""Lower a decoder to a GGUF file that llama.cpp loads."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from operator import or_
from typing import Any

from attrs import field, frozen

from qfunc.files.part import Part
from qfunc.lowering.program import Program
from qfunc.specs import DecoderConfig, FileFormat, Name, Op, Scheme, Selector
from qfunc.specs._check import instance_of, one_of, refuse
from qfunc.specs._values import readable
from qfunc.targets.ggml.llama_cpp.mixes import KINDS, tensor_types
from qfunc.targets.ggml.lowering import GgufSchemes
from qfunc.targets.ggml.types import WEIGHTS


@readable
@frozen
class LlamaCppLowering:
    """`model.gguf`: the whole decoder, with the names, shapes and hyperparameters that llama.cpp reads.

    Weights of linear layers and the table of tokens are in blocks, and norms and biases in F32.  A head that shares the table
    is not stored again.  Rows of queries and keys have the order of llama.cpp's architecture.  The file has no tokenizer until
    `with_tokenizer` adds one.  qfunc writes the file; llama.cpp is needed only to run it.

    Args:
        kind: The type of the weights, one of those of `GgufLowering`, or a mix of llama.cpp's quantizer: "Q2_K", "Q3_K_S",
            "Q3_K_M", "Q3_K_L", "Q4_K_S", "Q4_K_M", "Q5_K_S" or "Q5_K_M".
        decoder: The hyperparameters, as `decoder_config(model.config)` returns them.
    Raises:
        SpecError: another kind, or rows that no block divides.
    Source: ggml, docs/gguf.md; llama.cpp, src/llama-arch.cpp, src/llama-model.cpp and src/llama-quant.cpp.

    >>> sizes = dict(blocks=1, width=64, inner=96, heads=4, kv_heads=2, head_size=16, vocabulary=100, context=256)
    >>> LlamaCppLowering("Q8_0", DecoderConfig(architecture="llama", **sizes)).kind
    'Q8_0'
    """

    kind: str = field(validator=one_of(KINDS))
    decoder: DecoderConfig = field(validator=instance_of(DecoderConfig))

    def __attrs_post_init__(self) -> None:
        if not self.types():
            wanted = "a width that 32 divides"
            raise refuse(self, "decoder", f"rows of {self.decoder.width}", wanted, "Leave such a decoder in float.")

    @property
    def format(self) -> FileFormat:
        """Weights of the tensors' types, in blocks."""
        return FileFormat(blocks=True, schemes=GgufSchemes(tuple(dict.fromkeys(self.types().values()))))

    def network(self, partition: Any) -> Any:
        """Return the decoder that llama.cpp builds, for the emulation.

        Raises:
            EmulationError: more than token ids as inputs, other outputs than logits, or a part that is missing.
        """
        from qfunc.targets.ggml.llama_cpp.network import DecoderNetwork

        return DecoderNetwork(partition, self.decoder)

    def types(self) -> dict[str, str]:
        """Return tensor -> type, for the tensors that are quantized."""
        return tensor_types(self.kind, self.decoder)

    def scheme(self, kind: str) -> Scheme:
        """Return the scheme of a type."""
        return WEIGHTS[kind].scheme

    def layers(self) -> dict[str, Selector]:
        """Return type -> the linear layers whose weights have it."""
        types, (_, *matrices) = self.types(), self.decoder.matrices()
        kinds = {types.get(name) for name in matrices}
        if len(kinds) == 1:
            return {kind: Op("linear") for kind in kinds if kind is not None}
        parts: dict[str, list[str]] = {}
        for name in matrices:
            parts.setdefault(name.split(".")[-2], []).append(name)
        found: dict[str, list[str]] = {}
        for names in parts.values():
            every = len({types.get(name) for name in names}) == 1 and names[0].startswith("blk.")
            for name in names[:1] if every else names:
                if name in types:
                    path = self.decoder.module(name)
                    found.setdefault(types[name], []).append(path.replace(".0.", ".*.", 1) if every else path)
        return {kind: Op("linear") & reduce(or_, (Name(f"*{path}") for path in paths)) for kind, paths in found.items()}

    def lower(self, program: Program) -> Mapping[str, bytes]:
        """Return the file's bytes.

        Raises:
            DeployError: a parameter that the architecture does not have, or a tensor that the model does not have.
        """
        return {name: b"".join(chunks) for name, chunks in self.join([self.part(program)]).items()}

    def part(self, program: Program) -> Part:
        """Return the tensors of a part of the decoder.

        Raises:
            DeployError: a parameter that the architecture does not have.
        """
        # Import here, so that `import qfunc` does not import onnx.
        from qfunc.targets.ggml.llama_cpp.tensors import decoder_part

        return decoder_part(program.model, self.types(), self.decoder)

    def join(self, parts: Sequence[Part]) -> Mapping[str, Iterable[bytes]]:
        """Return the file's bytes, of which one tensor at a time is in memory.

        Raises:
            DeployError: a tensor that the model does not have.
        """
        from qfunc.targets.ggml.file import gguf_chunks
        from qfunc.targets.ggml.llama_cpp.tensors import decoder_tensors

        return {"model.gguf": gguf_chunks(described(self.decoder), decoder_tensors(parts, self.decoder))}


def described(d: DecoderConfig) -> dict[str, str | int | float]:
    """Return the named values of a file: the hyperparameters, as llama.cpp reads them."""
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

"""The types that llama.cpp's quantizer gives the tensors of a decoder."""

from __future__ import annotations

from collections.abc import Callable

from qfunc.specs import DecoderConfig, PerBlock
from qfunc.targets.ggml.types import WEIGHTS

MIXES = {
    "Q2_K": "Q2_K", "Q3_K_S": "Q3_K", "Q3_K_M": "Q3_K", "Q3_K_L": "Q3_K", "Q4_K_S": "Q4_K", "Q4_K_M": "Q4_K", "Q5_K_S": "Q5_K",
    "Q5_K_M": "Q5_K",
}  # fmt: skip
"""Name of a mix -> the type of most tensors; others have one type."""

KINDS = tuple(kind for kind in dict.fromkeys((*WEIGHTS, *MIXES)) if kind != "MXFP4")
"""What a decoder may be quantized to; llama.cpp takes MXFP4 for experts only."""

_SMALLER = {"Q2_K": "Q4_0", "Q3_K": "Q4_0", "Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0"}
"""Type -> the type where 256 does not divide the rows."""


def tensor_types(kind: str, decoder: DecoderConfig) -> dict[str, str]:
    """Return tensor -> type, for all tensors of a decoder that are quantized.

    A mix has more bits for some of the tensors, by their part and block.  Where 256 does not divide the rows of a tensor in a K
    type, it has a type with blocks of 32; where 32 does not divide them, it is not quantized.

    Args:
        kind: One of `KINDS`.
        decoder: The hyperparameters.
    Source: llama.cpp, src/llama-quant.cpp, llama_tensor_get_type_impl and tensor_type_fallback.

    >>> sizes = dict(blocks=1, width=64, inner=256, heads=4, kv_heads=2, head_size=16, vocabulary=100, context=256)
    >>> types = tensor_types("Q2_K", DecoderConfig(architecture="llama", **sizes))
    >>> [types[name] for name in ("token_embd.weight", "blk.0.attn_q.weight", "blk.0.ffn_down.weight", "output.weight")]
    ['Q4_0', 'Q4_0', 'Q3_K', 'Q8_0']
    """
    found: dict[str, str] = {}
    for name in decoder.matrices():
        part, size = name.split(".")[-2], decoder.row(name)
        wanted = kind
        if kind in MIXES:
            block = int(name.split(".")[1]) if name.startswith("blk.") else 0
            wanted = _mixed(kind, part, block, decoder)
        if size % _block(wanted):
            wanted = _SMALLER.get(wanted, wanted)
        if not size % _block(wanted):
            found[name] = wanted
    return found


def _block(kind: str) -> int:
    scale = WEIGHTS[kind].scheme.scale
    shared = scale.shared if scale.within is None else scale.within.shared
    assert isinstance(shared, PerBlock)  # so are those of all types
    return shared.size


def _mixed(kind: str, part: str, block: int, decoder: DecoderConfig) -> str:
    usual = MIXES[kind]
    if part == "output" or (part == "token_embd" and decoder.tied):
        return "Q6_K"
    rule = _RULES.get(part)
    return usual if rule is None else rule(kind, block, decoder) or usual


def _more_bits(block: int, blocks: int) -> bool:
    return block < blocks // 8 or block >= 7 * blocks // 8 or (block - blocks // 8) % 3 == 2


def _values(kind: str, block: int, decoder: DecoderConfig) -> str | None:
    found = None
    if kind == "Q2_K":
        found = "Q4_K" if decoder.heads // decoder.kv_heads >= 4 else "Q3_K"
    elif kind == "Q3_K_M":
        found = "Q5_K" if block < 2 else "Q4_K"
    elif kind == "Q3_K_L" or (kind == "Q4_K_S" and block < 4):
        found = "Q5_K"
    elif kind in ("Q4_K_M", "Q5_K_M") and _more_bits(block, decoder.blocks):
        found = "Q6_K"
    return "Q5_K" if decoder.shares_values and (found or MIXES[kind]) in ("Q3_K", "Q4_K") else found


def _down(kind: str, block: int, decoder: DecoderConfig) -> str | None:
    blocks = decoder.blocks
    if kind in ("Q4_K_M", "Q5_K_M"):
        return "Q6_K" if _more_bits(block, blocks) else None
    if kind == "Q3_K_M":
        return "Q5_K" if block < blocks // 16 else "Q4_K"
    if kind == "Q4_K_S":
        return "Q5_K" if block < blocks // 8 else None
    return {"Q2_K": "Q3_K", "Q3_K_L": "Q5_K"}.get(kind)


def _output(kind: str, block: int, decoder: DecoderConfig) -> str | None:
    return {"Q2_K": "Q3_K", "Q3_K_M": "Q4_K", "Q3_K_L": "Q5_K"}.get(kind)


_RULES: dict[str, Callable[[str, int, DecoderConfig], str | None]] = {
    "attn_v": _values, "ffn_down": _down, "attn_output": _output,
}  # fmt: skip
"""Part of a block -> the type that a mix has for it, or None for that of most tensors."""

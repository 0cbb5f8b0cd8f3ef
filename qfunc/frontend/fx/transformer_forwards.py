"""Traceable forwards for encoders and decoders of torch.nn, without the fast paths that branch on their inputs.

Each is called as forward(module, *arguments).
"""

from __future__ import annotations

from typing import Any


def encoder_layer(
    module: Any, src: Any, src_mask: Any = None, src_key_padding_mask: Any = None, is_causal: bool = False
) -> Any:
    """Compute nn.TransformerEncoderLayer."""

    def attention(x: Any) -> Any:
        given = {"attn_mask": src_mask, "key_padding_mask": src_key_padding_mask, "need_weights": False, "is_causal": is_causal}
        return module.dropout1(module.self_attn(x, x, x, **given)[0])

    def forward(x: Any) -> Any:
        return module.dropout2(module.linear2(module.dropout(module.activation(module.linear1(x)))))

    if module.norm_first:
        x = src + attention(module.norm1(src))
        return x + forward(module.norm2(x))
    x = module.norm1(src + attention(src))
    return module.norm2(x + forward(x))


def decoder_layer(
    module: Any,
    tgt: Any,
    memory: Any,
    tgt_mask: Any = None,
    memory_mask: Any = None,
    tgt_key_padding_mask: Any = None,
    memory_key_padding_mask: Any = None,
    tgt_is_causal: bool = False,
    memory_is_causal: bool = False,
) -> Any:
    """Compute nn.TransformerDecoderLayer."""

    def attention(x: Any) -> Any:
        given = {"attn_mask": tgt_mask, "key_padding_mask": tgt_key_padding_mask, "is_causal": tgt_is_causal}
        return module.dropout1(module.self_attn(x, x, x, need_weights=False, **given)[0])

    def cross(x: Any) -> Any:
        given = {"attn_mask": memory_mask, "key_padding_mask": memory_key_padding_mask, "is_causal": memory_is_causal}
        return module.dropout2(module.multihead_attn(x, memory, memory, need_weights=False, **given)[0])

    def forward(x: Any) -> Any:
        return module.dropout3(module.linear2(module.dropout(module.activation(module.linear1(x)))))

    if module.norm_first:
        x = tgt + attention(module.norm1(tgt))
        x = x + cross(module.norm2(x))
        return x + forward(module.norm3(x))
    x = module.norm1(tgt + attention(tgt))
    x = module.norm2(x + cross(x))
    return module.norm3(x + forward(x))


def encoder(module: Any, src: Any, mask: Any = None, src_key_padding_mask: Any = None, is_causal: Any = None) -> Any:
    """Compute nn.TransformerEncoder; `is_causal` is an optional hint and is ignored."""
    for layer in module.layers:
        src = layer(src, src_mask=mask, src_key_padding_mask=src_key_padding_mask)
    return src if module.norm is None else module.norm(src)


def decoder(
    module: Any,
    tgt: Any,
    memory: Any,
    tgt_mask: Any = None,
    memory_mask: Any = None,
    tgt_key_padding_mask: Any = None,
    memory_key_padding_mask: Any = None,
    tgt_is_causal: Any = None,
    memory_is_causal: bool = False,
) -> Any:
    """Compute nn.TransformerDecoder; the hints are ignored, as in `encoder`."""
    masks = (tgt_mask, memory_mask, tgt_key_padding_mask, memory_key_padding_mask)
    for layer in module.layers:
        tgt = layer(tgt, memory, *masks)
    return tgt if module.norm is None else module.norm(tgt)


def transformer(
    module: Any,
    src: Any,
    tgt: Any,
    src_mask: Any = None,
    tgt_mask: Any = None,
    memory_mask: Any = None,
    src_key_padding_mask: Any = None,
    tgt_key_padding_mask: Any = None,
    memory_key_padding_mask: Any = None,
    src_is_causal: Any = None,
    tgt_is_causal: Any = None,
    memory_is_causal: bool = False,
) -> Any:
    """Compute nn.Transformer."""
    memory = module.encoder(src, mask=src_mask, src_key_padding_mask=src_key_padding_mask)
    return module.decoder(tgt, memory, tgt_mask, memory_mask, tgt_key_padding_mask, memory_key_padding_mask)

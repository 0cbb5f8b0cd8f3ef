"""Traceable forwards for modules of torch.nn with data-dependent control flow: recurrent layers and attention.

The forwards of encoders and decoders are in `transformer_forwards`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import fx, nn

from qfunc.errors import CaptureError, a_or_an
from qfunc.frontend.fx.transformer_forwards import decoder, decoder_layer, encoder, encoder_layer, transformer
from qfunc.ops.attention import left_out
from qfunc.ops.decompositions import attend
from qfunc.ops.indexing import element
from qfunc.ops.recurrent import gated, gru, lstm, rnn, unrolled


def _emit(like: fx.Proxy) -> Callable[..., Any]:
    def emit(function: Callable[..., Any], *arguments: Any) -> Any:
        return like.tracer.create_proxy("call_function", function, arguments, {})

    return emit


def _proxy(module: nn.Module, value: Any, wanted: str) -> fx.Proxy:
    if not isinstance(value, fx.Proxy):
        raise CaptureError(
            where=f"nn.{type(module).__name__}",
            found=f"{a_or_an(type(value))} as its input",
            wanted=wanted,
            do="Pad the sequences and pass the padded tensor." if "Packed" in type(value).__name__ else "Pass a tensor.",
        )
    return value


def _weights(module: Any, level: str) -> tuple[Any, ...]:
    names = (f"weight_ih{level}", f"weight_hh{level}", f"bias_ih{level}", f"bias_hh{level}")
    return tuple(getattr(module, n, None) for n in names)


def _recurrent(module: Any, input: Any, hx: Any = None) -> Any:
    """Compute nn.LSTM, nn.GRU or nn.RNN on a batch; refuse a packed sequence."""
    emit = _emit(_proxy(module, input, "a padded tensor"))
    if getattr(module, "proj_size", 0):
        do = "Pass torch.export.export(model, inputs).run_decompositions(), which has the steps as linear layers."
        raise CaptureError(where="nn.LSTM", found=f"proj_size={module.proj_size}", wanted="an output of hidden_size", do=do)
    levels = [f"_l{k}{way}" for k in range(module.num_layers) for way in ("", "_reverse")[: 1 + module.bidirectional]]
    is_lstm = isinstance(module, nn.LSTM)
    op: Any = lstm if is_lstm else gru if isinstance(module, nn.GRU) else rnn
    states = None if hx is None else ((hx[0], hx[1]) if is_lstm else (hx,))
    output, *ends = unrolled(
        emit,
        lambda made, i: emit(element, made, i),
        op,
        input,
        states,
        [_weights(module, level) for level in levels],
        module.bidirectional,
        module.batch_first,
        (str(module.nonlinearity),) if op is rnn else (),
        (lambda x: F.dropout(x, module.dropout, module.training)) if module.dropout else None,
    )
    return output, tuple(ends) if is_lstm else ends[0]


def _cell(module: Any, input: Any, hx: Any = None) -> Any:
    """Compute nn.LSTMCell, nn.GRUCell or nn.RNNCell on a batch: linear layers, which can be quantized, and the gates."""
    x = _proxy(module, input, "a tensor")
    w_ih, w_hh, b_ih, b_hh = _weights(module, "")
    h, c = (hx if isinstance(module, nn.LSTMCell) else (hx, None)) if hx is not None else (None, None)
    if h is None:
        h = x.new_zeros(x.size(0), module.hidden_size)
        c = h if isinstance(module, nn.LSTMCell) else None
    kind = "lstm" if isinstance(module, nn.LSTMCell) else "gru" if isinstance(module, nn.GRUCell) else str(module.nonlinearity)
    linear: Any = F.linear
    states = gated(_emit(x), kind, linear(x, w_ih, b_ih), linear(h, w_hh, b_hh), h, c)
    return states if len(states) == 2 else states[0]


def _attention(
    module: Any,
    query: Any,
    key: Any,
    value: Any,
    key_padding_mask: Any = None,
    need_weights: bool = True,
    attn_mask: Any = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
) -> Any:
    """Compute nn.MultiheadAttention on a batch; `is_causal` only repeats that attn_mask is the causal mask."""
    emit = _emit(_proxy(module, query, "a tensor"))
    for name, enabled in (("add_bias_kv", module.bias_k is not None), ("add_zero_attn", module.add_zero_attn)):
        if enabled:
            do = "Append the row to key and value before the layer, or give example_inputs=(...,)."
            raise CaptureError(where="nn.MultiheadAttention", found=f"{name}=True", wanted=f"{name}=False", do=do)
    heads = module.num_heads

    def split(x: Any) -> Any:
        x = x.unflatten(-1, (heads, -1))
        return x.transpose(-3, -2) if module.batch_first else x.permute(1, 2, 0, 3)

    masks = (
        attn_mask if attn_mask is None else _function_mask(emit, attn_mask),
        None if key_padding_mask is None else _function_mask(emit, key_padding_mask.unsqueeze(1).unsqueeze(1)),
    )
    q, k, v = (split(x) for x in _project(module, query, key, value))
    dropped = (lambda w: F.dropout(w, module.dropout, module.training)) if module.dropout else None
    mixed, weights = attend(emit, q, k, v, masks, False, None, dropped)
    mixed = mixed.transpose(-3, -2) if module.batch_first else mixed.permute(2, 0, 1, 3)
    output = module.out_proj(mixed.flatten(-2))
    if not need_weights:
        return output, None
    return output, weights.mean(1) if average_attn_weights else weights


def _function_mask(emit: Any, mask: Any) -> Any:
    # True masks an entry out in torch's layer, and keeps it in torch's function.
    return emit(left_out, mask)


def _project(module: Any, query: Any, key: Any, value: Any) -> tuple[Any, Any, Any]:
    width, weight, bias = module.embed_dim, module.in_proj_weight, module.in_proj_bias
    if weight is not None and query is key and key is value:
        q, k, v = torch.chunk(F.linear(query, weight, bias), 3, -1)
        return q, k, v
    if weight is not None and key is value:
        first, rest = (None, None) if bias is None else (bias[:width], bias[width:])
        k, v = torch.chunk(F.linear(key, weight[width:], rest), 2, -1)
        return F.linear(query, weight[:width], first), k, v
    ends = ((0, width), (width, 2 * width), (2 * width, 3 * width))
    biases = [None if bias is None else bias[a:b] for a, b in ends]
    weights = (
        (module.q_proj_weight, module.k_proj_weight, module.v_proj_weight)
        if weight is None
        else tuple(weight[a:b] for a, b in ends)
    )
    q, k, v = (F.linear(x, w, b) for x, w, b in zip((query, key, value), weights, biases, strict=True))
    return q, k, v


FORWARDS: dict[type[nn.Module], Callable[..., Any]] = {
    nn.LSTM: _recurrent,
    nn.GRU: _recurrent,
    nn.RNN: _recurrent,
    nn.LSTMCell: _cell,
    nn.GRUCell: _cell,
    nn.RNNCell: _cell,
    nn.MultiheadAttention: _attention,
    nn.TransformerEncoderLayer: encoder_layer,
    nn.TransformerDecoderLayer: decoder_layer,
    nn.TransformerEncoder: encoder,
    nn.TransformerDecoder: decoder,
    nn.Transformer: transformer,
    nn.Softmax2d: lambda module, input: torch.softmax(input, -3),
}
"""Map each exact class to its forward: forward(module, *arguments)."""


def forward_of(module: nn.Module) -> Callable[..., Any] | None:
    """Return this file's forward for a module, bound to it; None if the module's own forward can be traced.

    >>> forward_of(nn.Linear(2, 3)) is None
    True
    """
    forward = FORWARDS.get(type(module))
    return None if forward is None else functools.partial(forward, module)


def root_of(model: nn.Module) -> nn.Module:
    """Give the model's class the forward of this file if it has one, in place, and return the model."""
    forward = FORWARDS.get(type(model))
    if forward is not None:
        kind = type(model)
        model.__class__ = type(
            kind.__name__, (kind,), {"forward": functools.wraps(kind.forward)(forward), "__module__": kind.__module__}
        )
    return model

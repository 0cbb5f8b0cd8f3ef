"""encoder_decoder: an encoder as a graph of its own, and its decoder with the keys and values of cross-attention as inputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from attrs import frozen
from torch import Tensor, nn

from qfunc._transform import Transform
from qfunc.decoding.cache import LENGTH_AXIS, Recorder, StateCache
from qfunc.decoding.decoder import Decoder, export_program, first_value, infos, zeros_of
from qfunc.decoding.tables import require_positions
from qfunc.errors import CaptureError, a_or_an, first_line
from qfunc.graph.copying import device_of, own_copy


@frozen(eq=False)
class EncoderDecoder:
    """An encoder and its decoder, as two graphs.

    `encoder` is the exported graph features -> (keys, values of the cross-attention of each layer in turn), [N, H, S, D].
    `decoder` takes them after its own state, in each step: `decoder.inputs(ids, encode(features))`.
    """

    encoder: torch.export.ExportedProgram
    decoder: Decoder

    @property
    def encoder_module(self) -> nn.Module:
        """The encoder of the float model, as a module of the same input and outputs."""
        return self.encoder.module(check_guards=False)


class _Encoder(nn.Module):
    # The cross-attention of a first token computes keys and values from the states of the encoder; the rest is dead.
    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, features: Tensor) -> tuple[Tensor, ...]:
        _, cache = _first_token(self.model, features)
        return tuple(cache.seen[layer][1][k] for layer in range(len(cache.seen)) for k in (0, 1))


class _Decoder(nn.Module):
    # What cross-attention computes from the zeros is dead: the cache has its keys and values.
    def __init__(self, model: nn.Module, width: int, layers: int) -> None:
        super().__init__()
        self.model, self.width, self.layers = model, width, layers

    def forward(self, ids: Tensor, positions: Tensor, *given: Tensor) -> tuple[Tensor, ...]:
        state, cross = given[: 2 * self.layers], given[2 * self.layers :]
        cache = StateCache(positions, state, cross)
        states = torch.zeros(ids.shape[0], cross[0].shape[LENGTH_AXIS], self.width, dtype=cross[0].dtype, device=ids.device)
        return (_logits(self.model, ids, states, cache), *cache.state)


def encoder_decoder(length: int, features: Tensor) -> Callable[[nn.Module], EncoderDecoder]:
    """Return a transform from an encoder with a decoder of `transformers`, as Whisper, to an `EncoderDecoder`.

    The encoder is a graph of its own, up to the keys and values of cross-attention.  They are inputs of the decoder that no
    step changes; its self-attention has a cache of fixed length, as in `decoder`.  Both graphs are quantized, calibrated,
    emulated and deployed as any others.

    The encoder is `model.get_encoder()(features)`, and its states the first value.  The model is called with
    `decoder_input_ids`, `encoder_outputs=(states,)`, `past_key_values` and `use_cache=True`, and the first value that it
    returns are the logits.  In each layer of the decoder, the first `past_key_values.update(keys, values, layer)` is that of
    self-attention and the second that of cross-attention; positions are counted from `past_key_values.get_seq_length()`.  No
    row of the features is padded.  The model is evaluated; it does not change.

    Args:
        length: The number of tokens of prompt and answer together, at least 3.
        features: An input of the encoder, such as the features of audio [N, C, S].  N and S vary if the encoder lets them.
    Raises:
        CaptureError: not a module, a length below 3 or beyond a table of positions, features that are no tensor, a model
            without such an encoder or without cross-attention in each layer, or one that torch.export refuses.

    >>> encoder_decoder(448, torch.zeros(1, 80, 3000)).arguments["length"]
    448
    """
    if type(length) is not int or length < 3:
        do = "Write qfunc.encoder_decoder(448, features)(model)."
        raise CaptureError(where="encoder_decoder, length", found=repr(length), wanted="an integer of at least 3", do=do)
    if not isinstance(features, Tensor) or features.ndim < 2 or not len(features):
        found = a_or_an(type(features)) if not isinstance(features, Tensor) else f"a tensor of the shape {list(features.shape)}"
        do = "Pass what the encoder reads, as processor(audio).input_features."
        raise CaptureError(where="encoder_decoder, features", found=found, wanted="a batch [N, ...]", do=do)

    def transform(model: nn.Module) -> EncoderDecoder:
        if not isinstance(model, nn.Module):
            do = "Pass a model like WhisperForConditionalGeneration."
            raise CaptureError(where="encoder_decoder", found=a_or_an(type(model)), wanted="an encoder with a decoder", do=do)
        return _exported(own_copy(model).eval(), length, features.to(device_of(model)))

    return Transform(encoder_decoder, {"length": length, "features": features}, transform)


def _exported(model: nn.Module, length: int, features: Tensor) -> EncoderDecoder:
    where, device, auto = f"encoder_decoder, {type(model).__name__}", features.device, torch.export.Dim.AUTO
    two = features[:1].expand(2, *features.shape[1:]).contiguous()  # an axis of one entry would be fixed
    own, cross, width = _keys_and_values(model, two, where)
    encoder = export_program(_Encoder(model), (two,), (dict.fromkeys(range(two.ndim), auto),), 1, f"{where}, encoder")
    state = infos(own, length)
    ids, positions = torch.zeros(2, 3, dtype=torch.int64, device=device), torch.arange(3, device=device).expand(2, 3)
    shapes = (*({0: auto} for _ in state), *({0: auto, LENGTH_AXIS: auto} for _ in cross))
    given = (ids, positions, *zeros_of(state, 2, device), *cross)
    module = _Decoder(model, width, len(state) // 2)
    program = export_program(module, given, ({0: auto, 1: auto}, {0: auto, 1: auto}, shapes), 2, f"{where}, decoder")
    last = (ids[:1, :1], positions[:1, -1:] + length - 3, *zeros_of(state, 1, device), *(t[:1] for t in cross))
    require_positions(program, last, where)
    return EncoderDecoder(encoder, Decoder(program, state, infos(cross)))


@torch.no_grad()
def _keys_and_values(model: nn.Module, features: Tensor, where: str) -> tuple[list[Tensor], list[Tensor], int]:
    # (keys and values of self-attention, those of cross-attention, the width of the encoder's states)
    wanted = "get_encoder(), and two updates of past_key_values in each layer: self-attention, cross-attention"
    do = "Pass an encoder with a decoder of transformers, as WhisperForConditionalGeneration."
    try:
        width, cache = _first_token(model, features)
    except Exception as e:
        raise CaptureError(where=where, found=first_line(e), wanted=wanted, do=do) from e
    if (found := cache.tensors(2)) is None:
        counts = {layer: len(updates) for layer, updates in sorted(cache.seen.items())}
        updates = f"{counts} updates of the layers" if counts else "no updates"
        raise CaptureError(where=where, found=updates, wanted=wanted, do=do)
    return found[0], found[1], width


def _first_token(model: Any, features: Tensor) -> tuple[int, Recorder]:
    # (the width of the encoder's states, keys and values)
    states, cache = first_value(model.get_encoder()(features)), Recorder()
    _logits(model, torch.zeros(features.shape[0], 1, dtype=torch.int64, device=features.device), states, cache)
    return states.shape[-1], cache


def _logits(model: nn.Module, ids: Tensor, states: Tensor, cache: Any) -> Tensor:
    return first_value(model(decoder_input_ids=ids, encoder_outputs=(states,), past_key_values=cache, use_cache=True))

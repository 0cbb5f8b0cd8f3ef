"""decoder: a causal language model as a graph whose cache of keys and values is state, in and out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from attrs import frozen
from torch import Tensor, nn

from qfunc._transform import Transform
from qfunc.decoding.cache import LENGTH_AXIS, Recorder, StateCache
from qfunc.decoding.experts import with_separate_experts
from qfunc.decoding.prompts import ids_of, positions_of
from qfunc.decoding.rotary import with_fixed_frequencies
from qfunc.decoding.tables import require_positions, require_rows
from qfunc.errors import CaptureError, a_or_an, first_line
from qfunc.graph.copying import device_of, own_copy
from qfunc.graph.record import TensorInfo


@frozen(eq=False)
class Decoder:
    """A language model as a graph (ids, positions, *state, *cross) -> (logits, *state).

    `program` is the exported graph, for `quantize`.  `ids` are tokens [N, T], `positions` their places in each row, [N, T],
    and `logits` [N, T, V].  N and T vary.  `state` has the shape and dtype of each tensor of the cache for
    one sequence, keys and values of each layer in turn: [1, H, length, D].  `cross` has those of the keys and values of
    cross-attention, [1, H, S, D], which are the same in each step; it is empty for a model without an encoder.
    """

    program: torch.export.ExportedProgram
    state: tuple[TensorInfo, ...]
    cross: tuple[TensorInfo, ...] = ()

    @property
    def length(self) -> int:
        """The number of tokens that the cache holds."""
        return self.state[0].shape[LENGTH_AXIS]

    @property
    def module(self) -> nn.Module:
        """The float model, as a module of the same inputs and outputs."""
        return self.program.module(check_guards=False)

    def inputs(
        self, ids: Tensor | Sequence[Tensor], cross: Sequence[Any] = (), *, attention_mask: Tensor | None = None
    ) -> tuple[Tensor, ...]:
        """Return (ids, positions, *state, *cross) for tokens from the start, with an empty cache.

        Prompts of several lengths are padded on the left.  Each row has the positions that it has alone, from 0, and the
        padding those after them, so that each row gives the answer that it gives alone.

        Args:
            ids: The tokens [N, T], or a list of rows [T] of any lengths.
            cross: The keys and values that the encoder returned, as tensors or arrays; none for a model without an encoder.
            attention_mask: 0 for the padding on the left of tokens [N, T] and 1 for tokens, as of a tokenizer.
        Raises:
            CaptureError: no tokens, more than the cache holds, ids outside of the table of embeddings, another mask, other
                tensors than the encoder returns, or prompts of several lengths for a model with an encoder.
        """
        tokens, mask = ids_of(ids)
        require_rows(self.program, tokens)
        if mask is not None and attention_mask is not None:
            do = "Pass either a list of rows, or a tensor with the mask of its padding."
            found, wanted = "a list of rows and an attention_mask", "one of them"
            raise CaptureError(where="Decoder.inputs", found=found, wanted=wanted, do=do)
        positions = positions_of(tokens, mask if attention_mask is None else attention_mask)
        if tokens.shape[1] > self.length:
            do = f"Write qfunc.decoder({tokens.shape[1]})(model), or a larger length."
            where, wanted = "Decoder.inputs", f"at most {self.length}, the length of the cache"
            raise CaptureError(where=where, found=f"{tokens.shape[1]} tokens", wanted=wanted, do=do)
        if self.cross and bool((positions[:, 0] != 0).any()):
            do = "Pass prompts of one length together, and others in calls of their own."
            found, wanted = (
                "prompts of several lengths",
                "one length: such a decoder counts positions itself",
            )
            raise CaptureError(where="Decoder.inputs", found=found, wanted=wanted, do=do)
        given = tuple(torch.as_tensor(v, device=tokens.device).detach() for v in cross)
        self._require_cross(given, len(tokens))
        return (tokens, positions, *zeros_of(self.state, len(tokens), tokens.device), *given)

    def _require_cross(self, given: tuple[Tensor, ...], rows: int) -> None:
        shapes = [tuple(v.shape) for v in given]
        wanted = [(rows, i.shape[1], *s[2:3], i.shape[3]) for i, s in zip(self.cross, shapes, strict=False)]
        if len(shapes) != len(self.cross) or shapes != wanted:
            found = f"tensors of the shapes {[list(s) for s in shapes]}" if shapes else "no tensors"
            sizes = ", ".join(f"[{rows}, {i.shape[1]}, S, {i.shape[3]}]" for i in self.cross) or "none, without an encoder"
            do = "Write decoder.inputs(ids, encode(features))." if self.cross else "Write decoder.inputs(ids)."
            raise CaptureError(where="Decoder.inputs, cross", found=found, wanted=sizes, do=do)


class _WithState(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor, positions: Tensor, *state: Tensor) -> tuple[Tensor, ...]:
        cache = StateCache(positions, state)
        return (_logits(self.model, ids, positions, cache), *cache.state)


def decoder(length: int) -> Callable[[nn.Module], Decoder]:
    """Return a transform from a causal language model of `transformers` to a `Decoder` with a cache of `length` tokens.

    The graph writes the new keys and values of each row into the cache at the row's positions, and each query sees the keys
    up to its own position.  A prompt of T tokens and T tokens one by one therefore compute the same sums, over the same
    number of keys, and so does a row beside others of any length.  The cache of a layer with a sliding window also has the
    whole length; the window is in its mask.

    The model is called with `input_ids`, `position_ids`, `past_key_values` and `use_cache=True`, and the first value that
    it returns are the logits.  Its cache needs no more than `past_key_values.update(keys, values, layer)`.  The model is
    evaluated; it does not change.  Stacked weights of experts become a linear layer for each expert and projection, through
    which all tokens go: see `with_separate_experts`.

    Args:
        length: The number of tokens of prompt and answer together, at least 3.
    Raises:
        CaptureError: not a module, a length below 3, beyond a table of positions or where rotary frequencies change, a model
            without such a cache or not in float32, one that reads the position of one row for all, one whose logits depend on
            the length of the cache, one with sizes that depend on positions, or one that torch.export refuses.

    >>> class Echo(nn.Module):
    ...     def forward(self, input_ids, position_ids, past_key_values, use_cache):
    ...         x = nn.functional.one_hot(input_ids, 3).float()[:, None]
    ...         keys, _ = past_key_values.update(x, x, 0)
    ...         return (x[:, 0] @ keys.sum(2).transpose(1, 2),)
    >>> decoder(4)(Echo()).state[0].shape
    (1, 1, 4, 3)
    """
    if type(length) is not int or length < 3:
        do = "Write qfunc.decoder(512)(model)."
        raise CaptureError(where="decoder, length", found=repr(length), wanted="an integer of at least 3", do=do)

    def transform(model: nn.Module) -> Decoder:
        if not isinstance(model, nn.Module):
            do = "Pass a model like LlamaForCausalLM, that computes logits from tokens."
            raise CaptureError(where="decoder", found=a_or_an(type(model)), wanted="a causal language model", do=do)
        where = f"decoder, {type(model).__name__}"
        own = with_fixed_frequencies(with_separate_experts(own_copy(model)), length, where)
        return _exported(own.eval(), length, where)

    return Transform(decoder, {"length": length}, transform)


def _exported(model: nn.Module, length: int, where: str) -> Decoder:
    device = device_of(model)
    state = _state(model, length, device, where)
    ids, positions = torch.zeros(2, 3, dtype=torch.int64, device=device), torch.arange(3, device=device).expand(2, 3)
    auto = torch.export.Dim.AUTO
    shapes = ({0: auto, 1: auto}, {0: auto, 1: auto}, tuple({0: auto} for _ in state))
    made = Decoder(export_program(_WithState(model), (ids, positions, *zeros_of(state, 2, device)), shapes, 2, where), state)
    require_positions(made.program, (ids[:1, :1], positions[:1, -1:] + length - 3, *zeros_of(state, 1, device)), where)
    _require_own_positions(made, device, where)
    _require_own_logits(made, model, where)
    return made


@torch.no_grad()
def _require_own_logits(made: Decoder, model: nn.Module, where: str) -> None:
    # Of a short prompt the logits of the model without a cache of fixed length, up to float sums of another order.
    device = device_of(model)
    ids = torch.arange(3, device=device)[None]
    wanted, found = _logits(model, ids, ids, Recorder()), made.module(ids, ids, *zeros_of(made.state, 1, device))[0]
    difference = (found - wanted).abs().max()
    if not float(difference) <= torch.finfo(wanted.dtype).eps ** 0.5 * float(wanted.abs().max()):
        do = "If its attention has a window that it finds by the length of the cache, choose a length of at most this window."
        found_text = f"logits of three tokens that differ by {float(difference):.2g} with a cache of the whole length"
        raise CaptureError(where=where, found=found_text, wanted="the model's own logits", do=do)


@torch.no_grad()
def _require_own_positions(made: Decoder, device: torch.device, where: str) -> None:
    # Two tokens at other positions have the logits that each has alone, up to float sums of another order.
    module, ids = made.module, torch.zeros(2, 1, dtype=torch.int64, device=device)
    positions = torch.tensor([[0], [2]], device=device)
    both = module(ids, positions, *zeros_of(made.state, 2, device))[0]
    alone = [module(ids[:1], positions[k : k + 1], *zeros_of(made.state, 1, device))[0] for k in (0, 1)]
    difference = (both - torch.cat(alone)).abs().max()
    if float(difference) > torch.finfo(both.dtype).eps ** 0.5 * float(both.abs().max()):
        do = "Take the position of each row: keys <= position_ids[:, None, :, None], not position_ids[0]."
        found = f"logits of a row that differ by {float(difference):.2g} where another row has other positions"
        raise CaptureError(where=where, found=found, wanted="rows that read their own position_ids [N, T]", do=do)


def export_program(
    module: nn.Module, inputs: tuple[Tensor, ...], shapes: Any, axes: int, where: str
) -> torch.export.ExportedProgram:
    """Return the program of a module, in which the first axes of the first input vary, and what `shapes` lets vary.

    Raises:
        CaptureError: inputs of 16 bits, or torch.export refuses the module, or fixes one of these axes.
    """
    for narrow in {t.dtype for t in inputs} & {torch.float16, torch.bfloat16}:
        do = "Pass model.float()."
        raise CaptureError(where=where, found=f"a cache in {narrow}", wanted="a model in float32", do=do)
    try:
        program = torch.export.export(module, inputs, dynamic_shapes=shapes, strict=False)
    except Exception as e:
        do = "Check that no branch and no size in its forward depends on the values of a tensor."
        raise CaptureError(where=where, found=first_line(e), wanted="a model that torch.export accepts", do=do) from e
    name = next(iter(program.graph_signature.user_inputs))
    (first,) = (n for n in program.graph.nodes if n.name == name)
    for axis in range(axes):
        if str(first.meta["val"].shape[axis]).isdigit():  # a symbol that was specialized prints as a number
            found = f"axis {axis} of the first input fixed to {inputs[0].shape[axis]} by its forward"
            do = "Write x.shape[0], not len(x), and pass sizes as they are."
            raise CaptureError(where=where, found=found, wanted="a model for all sizes of a batch and of a text", do=do)
    return program


@torch.no_grad()
def _state(model: nn.Module, length: int, device: torch.device, where: str) -> tuple[TensorInfo, ...]:
    cache, wanted = Recorder(), "a model that calls past_key_values.update(keys, values, layer) in each layer"
    do = "Pass a causal language model of transformers with attention in each layer."
    ids, positions = torch.zeros(1, 2, dtype=torch.int64, device=device), torch.arange(2, device=device)[None]
    try:
        _logits(model, ids, positions, cache)
    except Exception as e:
        raise CaptureError(where=where, found=first_line(e), wanted=wanted, do=do) from e
    if (found := cache.tensors(1)) is None:
        updates = f"updates of the layers {sorted(cache.seen)}"
        raise CaptureError(where=where, found=updates, wanted=wanted, do=do)
    return infos(found[0], length)


def _logits(model: nn.Module, ids: Tensor, positions: Tensor, cache: Any) -> Tensor:
    return first_value(model(input_ids=ids, position_ids=positions, past_key_values=cache, use_cache=True))


def first_value(value: Any) -> Tensor:
    """Return what a model returned, or the first of several values."""
    first: Tensor = value if isinstance(value, Tensor) else value[0]
    return first


def infos(tensors: list[Tensor], length: int | None = None) -> tuple[TensorInfo, ...]:
    """Return shape and dtype of keys and values [N, H, T, D] for one sequence, with another length if one is given."""
    sizes = (length or t.shape[LENGTH_AXIS] for t in tensors)
    return tuple(TensorInfo((1, t.shape[1], n, t.shape[3]), str(t.dtype)) for t, n in zip(tensors, sizes, strict=True))


def zeros_of(state: tuple[TensorInfo, ...], rows: int, device: torch.device) -> tuple[Tensor, ...]:
    """Return zeros with the shapes and dtypes of a state, for several sequences."""
    return tuple(torch.zeros(rows, *i.shape[1:], dtype=_dtype(i), device=device) for i in state)


def _dtype(info: TensorInfo) -> torch.dtype:
    found: torch.dtype = getattr(torch, info.dtype.removeprefix("torch."))
    return found

"""`encoder_decoder`: two graphs that compute what the model computes, whole and token by token, and the runtime's answers."""

from __future__ import annotations

from functools import cache
from typing import Any

import onnx
import pytest
import torch
from torch import Tensor, fx, nn

import qfunc
from qfunc.decoding.cache import Recorder
from qfunc.errors import CaptureError
from qfunc.specs import edit
from tests.decoding.decoders import SHAPES, Small, tokens
from tests.decoding.made import LENGTH, TARGETS, decoder
from tests.decoding.test_law import along_tokens, hidden, values
from tests.decoding.translators import FRAMES, Translator, features, translator
from tests.lowering.onnxruntime.test_float_kernels import pytestmark as exact

pytestmark = pytest.mark.filterwarnings("ignore")  # torch.export warns of its own use of deprecated names


@cache
def calibrated(kind: str) -> tuple[fx.GraphModule, fx.GraphModule]:
    """(encoder, decoder), of audio of one length and prompts of two."""
    _, both = translator()
    audio = [features(4, seed) for seed in (1, 2)]
    prompts = [both.decoder.inputs(tokens(4, n, n), both.encoder_module(x)) for n, x in zip((LENGTH, 5), audio, strict=True)]
    programs = ((both.encoder, audio), (both.decoder.program, prompts))
    encoder, decoder_ = (qfunc.calibrate(b, progress=False)(qfunc.quantize(TARGETS[kind])(p)) for p, b in programs)
    return encoder, decoder_


@pytest.mark.thorough
def test_any_split_of_a_text_has_the_logits_of_the_whole() -> None:
    model, both = translator()
    ids, audio = tokens(3, 11), features(3, 7)
    with torch.no_grad():
        whole = model(ids, model.encoder(audio), Recorder(), True)[0]
        cross = both.encoder_module(audio)
        for splits in ([11], [1] * 11, [4, 1, 6]):
            _, _, *given = both.decoder.inputs(ids, cross)
            state, start, found = given[:4], 0, list[Tensor]()
            for size in splits:
                places = torch.arange(start, start + size).expand(3, -1)
                logits, *state = both.decoder.module(ids[:, start : start + size], places, *state, *cross)
                found.append(logits)
                start += size
            # float32 sums of at most 64 terms, in another order for other numbers of rows, through two layers.
            torch.testing.assert_close(torch.cat(found, 1), whole, rtol=1e-4, atol=1e-4)


@pytest.mark.thorough
def test_the_keys_and_values_of_the_encoder_are_inputs_that_no_step_returns() -> None:
    _, both = translator()
    assert [i.shape for i in both.decoder.state] == [(1, 4, LENGTH, 8)] * 4
    assert [i.shape for i in both.decoder.cross] == [(1, 4, FRAMES // 2, 8)] * 4
    artifact = qfunc.deploy(TARGETS["static"])(calibrated("static")[1])
    graph = onnx.load_from_string(artifact.files["model.onnx"]).graph
    assert (len(graph.input), len(graph.output)) == (2 + 4 + 4, 1 + 4)
    stored = {name for i in graph.initializer for name in ("query", "key", "value", "out") if f".cross.{name}." in i.name}
    assert stored == {"query", "out"}


def test_static_scales_at_once_and_token_by_token() -> None:
    """Not one element differs, in codes and in float tensors between them, but the scores of keys that are not written yet."""
    _, both = translator()
    emulated = qfunc.emulate(TARGETS["static"])(calibrated("static")[1])
    ids = tokens(2, 9, 3)
    _, _, *given = inputs = both.decoder.inputs(ids, both.encoder_module(features(2, 5)))
    (logits, *last), found = values(emulated, inputs)
    state, cross, steps = given[:4], given[4:], list[Any]()
    for place in range(9):
        (one, *state), step = values(emulated, (ids[:, place : place + 1], torch.full((2, 1), place), *state, *cross))
        assert torch.equal(one[:, 0], logits[:, place])
        steps.append(step)
    assert all(torch.equal(a, b) for a, b in zip(state, last, strict=True))
    compared = 0
    for node, whole in found.items():
        parts = along_tokens(whole, [s[node] for s in steps])
        if parts is not None and whole.ndim > 2:  # not the numbers from 0, to which the start is added
            seen = torch.ones((), dtype=torch.bool)
            if hidden(node) and whole.shape[-1] == LENGTH:  # not those of the encoder's states
                seen = torch.arange(LENGTH) <= torch.arange(9)[:, None]
            assert torch.equal(torch.where(seen, whole, 0), torch.where(seen, parts, 0)), node
            compared += whole.numel()
    assert compared > 1000 * ids.numel()


@pytest.mark.thorough
@exact
@pytest.mark.parametrize("kind", TARGETS)
def test_encoder_and_decoder_answer_as_emulated(kind: str) -> None:
    target, (_, both), audio = TARGETS[kind], translator(), features(3, 8)
    encoder, small = calibrated(kind)
    report = qfunc.verify(target)(encoder, [audio])
    assert report.disagreements == ()
    run_encoder, run = (target.runtime.runner.loaded(qfunc.deploy(target)(m)) for m in (encoder, small))
    ids, emulated = tokens(3, 2), qfunc.emulate(target)(small)
    if kind == "static":
        assert report.mismatches == 0
        mine, runtime = both.decoder.inputs(ids, qfunc.emulate(target)(encoder)(audio)), run_encoder([audio])
        assert all(torch.equal(a, torch.as_tensor(b)) for a, b in zip(mine[6:], runtime, strict=True))
    inputs = both.decoder.inputs(ids, run_encoder([audio]))
    answer = qfunc.generate(9, progress=False)(run, inputs)
    assert torch.equal(qfunc.generate(9, progress=False)(emulated, inputs), answer)
    assert len(set(answer.flatten().tolist())) > 3
    tokens_report = qfunc.verify_tokens(target, 4)(small, inputs)
    assert (tokens_report.tokens, tokens_report.mismatches, tokens_report.report.disagreements) == (12, 0, ())
    if kind == "static":
        assert tokens_report.report.mismatches == 0


@pytest.mark.thorough
@exact
def test_the_state_of_self_attention_is_in_codes() -> None:
    target, (_, both) = edit.state()(TARGETS["static"]), translator()
    audio = features(4, 1)
    prompts = [both.decoder.inputs(tokens(4, n, n), both.encoder_module(audio)) for n in (LENGTH, 5)]
    small = qfunc.calibrate(prompts, progress=False)(qfunc.quantize(target)(both.decoder.program))
    graph = onnx.load_from_string(qfunc.deploy(target)(small).files["model.onnx"]).graph
    byte, real = onnx.TensorProto.UINT8, onnx.TensorProto.FLOAT
    assert [i.type.tensor_type.elem_type for i in graph.input][2:] == [byte] * 4 + [real] * 4
    report = qfunc.verify_tokens(target, 4)(small, prompts[1])
    assert (report.mismatches, report.report.mismatches) == (0, 0)


def test_the_model_does_not_change() -> None:
    model = Translator().train()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    qfunc.encoder_decoder(LENGTH, features(2))(model)
    assert all(m.training for m in model.modules())
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())


class Once(Translator):
    """Without the updates of cross-attention."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList()


class Fixed(Translator):
    """A batch of a fixed size."""

    def get_encoder(self) -> Any:
        encoder = self.encoder
        return lambda audio: (encoder(audio)[0].reshape(len(audio), -1, 32),)


PARTS = "get_encoder(), and two updates of past_key_values in each layer: self-attention, cross-attention"
WHISPER = "Pass an encoder with a decoder of transformers, as WhisperForConditionalGeneration."
SHAPE = "[2, 4, S, 8], [2, 4, S, 8], [2, 4, S, 8], [2, 4, S, 8]"
REFUSED = [
    (
        lambda: qfunc.encoder_decoder(2, features(1)),
        "encoder_decoder, length: found 2, wanted an integer of at least 3. Write qfunc.encoder_decoder(448, features)(model).",
    ),
    (
        lambda: qfunc.encoder_decoder(8, 3000),  # type: ignore[arg-type]
        "encoder_decoder, features: found an int, wanted a batch [N, ...]. Pass what the encoder reads, as "
        "processor(audio).input_features.",
    ),
    (
        lambda: qfunc.encoder_decoder(8, torch.zeros(3)),
        "encoder_decoder, features: found a tensor of the shape [3], wanted a batch [N, ...]. Pass what the encoder reads, as "
        "processor(audio).input_features.",
    ),
    (
        lambda: qfunc.encoder_decoder(8, features(1))(Translator),
        "encoder_decoder: found a type, wanted an encoder with a decoder. Pass a model like WhisperForConditionalGeneration.",
    ),
    (
        lambda: qfunc.encoder_decoder(8, features(1))(Small(SHAPES["llama"])),
        "encoder_decoder, Small: found AttributeError: 'Small' object has no attribute 'get_encoder', wanted "
        f"{PARTS}. {WHISPER}",
    ),
    (
        lambda: qfunc.encoder_decoder(8, features(1))(Once()),
        f"encoder_decoder, Once: found no updates, wanted {PARTS}. {WHISPER}",
    ),
    (
        lambda: qfunc.encoder_decoder(8, features(1))(Fixed()),
        "encoder_decoder, Fixed, encoder: found axis 0 of the first input fixed to 2 by its forward, wanted a model for all "
        "sizes of a batch and of a text. Write x.shape[0], not len(x), and pass sizes as they are.",
    ),
    (
        lambda: translator()[1].decoder.inputs(tokens(2, 3)),
        f"Decoder.inputs, cross: found no tensors, wanted {SHAPE}. Write decoder.inputs(ids, encode(features)).",
    ),
    (
        lambda: translator()[1].decoder.inputs(tokens(2, 3), translator()[1].encoder_module(features(1))),
        "Decoder.inputs, cross: found tensors of the shapes [[1, 4, 9, 8], [1, 4, 9, 8], [1, 4, 9, 8], [1, 4, 9, 8]], wanted "
        f"{SHAPE}. Write decoder.inputs(ids, encode(features)).",
    ),
    (
        lambda: decoder("llama")[1].inputs(tokens(2, 3), [torch.zeros(2, 3)]),
        "Decoder.inputs, cross: found tensors of the shapes [[2, 3]], wanted none, without an encoder. Write "
        "decoder.inputs(ids).",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("call", "message"), REFUSED)
def test_what_is_refused(call, message) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(CaptureError) as e:
        call()
    assert str(e.value) == message

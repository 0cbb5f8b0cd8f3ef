"""Ids that are no rows of a table, and caches that are longer than a table of positions, are refused where they are given."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

import qfunc
from qfunc import targets
from qfunc.decoding.decoder import Decoder
from qfunc.errors import CaptureError, QfuncError
from qfunc.specs import edit
from tests.onnxruntime_target import ONNXRUNTIME

pytestmark = pytest.mark.filterwarnings("ignore")  # torch.export warns of its own use of deprecated names

WORDS, PLACES = 8, 6
IN_CODES = targets.onnxruntime_nbits(4, 32, embedding_bits=4)
CACHE_IN_CODES = targets.onnxruntime_nbits(4, 16, cache_bits=8)


class Ids(nn.Module):
    """Floats, and the ids of a table that the second input indexes after a reshape."""

    def __init__(self) -> None:
        super().__init__()
        self.word, self.head = nn.Embedding(WORDS, 32), nn.Linear(32, 4)

    def forward(self, x: Tensor, ids: Tensor) -> Tensor:
        """[N, T, 32], [N, T] -> [N, T, 4]."""
        return self.head(self.word(ids.reshape(-1, ids.shape[-1])) + x)


class Learned(nn.Module):
    """A decoder of one layer that reads a table of positions, from a row on, by an embedding or by an index."""

    def __init__(self, first: int = 0, by_index: bool = False) -> None:
        super().__init__()
        self.word, self.place, self.head = nn.Embedding(WORDS, 16), nn.Embedding(PLACES + first, 16), nn.Linear(16, WORDS)
        self.first, self.by_index = first, by_index

    def forward(self, input_ids: Tensor, position_ids: Tensor, past_key_values: Any, use_cache: bool) -> tuple[Tensor]:
        """Token ids and positions [N, T] -> logits [N, T, WORDS]."""
        rows = position_ids + self.first
        x = (self.word(input_ids) + (self.place.weight[rows] if self.by_index else self.place(rows)))[:, None]
        k, v = past_key_values.update(x, x, 0)
        seen = torch.arange(k.shape[2]) <= position_ids[:, None, :, None]
        return (self.head(F.scaled_dot_product_attention(x, k, v, attn_mask=seen)[:, 0]),)


def batch(worst: int) -> tuple[Tensor, Tensor]:
    return torch.ones(2, 3, 32), torch.tensor([[0, 1, 2], [3, worst, WORDS - 1]])


STEPS = {
    "calibrate, batch": lambda target, calibrated, given: qfunc.calibrate([given], progress=False)(calibrated),
    "verify, batch": lambda target, calibrated, given: qfunc.verify(target)(calibrated, [given]),
    "call of a captured model": lambda target, calibrated, given: calibrated(*given),
    "call of a captured model ": lambda target, calibrated, given: calibrated(given[0], ids=given[1]),
    "call of a captured model  ": lambda target, calibrated, given: qfunc.emulate(target)(calibrated)(*given),
    "OnnxRuntimeRunner": lambda target, calibrated, given: target.runtime.runner.run(qfunc.deploy(target)(calibrated), given),
}


@pytest.mark.thorough
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("target", [ONNXRUNTIME, IN_CODES], ids=["float", "codes"])
@pytest.mark.parametrize("worst", [-1, WORDS, 10**12])
def test_ids_outside_of_a_table_are_refused(step: str, target: Any, worst: int) -> None:
    quantized = qfunc.quantize(target)(Ids().eval())
    calibrated = qfunc.calibrate([batch(0)], progress=False)(quantized)
    STEPS[step](target, quantized if step.startswith("calibrate") else calibrated, batch(WORDS - 1))
    with pytest.raises(QfuncError) as error:
        STEPS[step](target, quantized if step.startswith("calibrate") else calibrated, batch(worst))
    table = "word.weight.codes.rows" if step == "OnnxRuntimeRunner" and target is IN_CODES else "word.weight"
    assert str(error.value) == (
        f"{step.strip()}, input 'ids': found the id {worst}, wanted ids from 0 to 7, as the table {table!r} has 8 rows. Pass "
        "ids of the model's own tokenizer or table."
    )


def test_no_ids_are_no_error() -> None:
    calibrated = qfunc.calibrate([batch(0)], progress=False)(qfunc.quantize(ONNXRUNTIME)(Ids().eval()))
    empty = torch.ones(0, 3, 32), torch.zeros(0, 3, dtype=torch.int64)
    run = ONNXRUNTIME.runtime.runner.loaded(qfunc.deploy(ONNXRUNTIME)(calibrated))
    assert calibrated(*empty).shape == np.asarray(run(empty)[0]).shape == (0, 3, 4)


def test_prompts_outside_of_the_vocabulary_are_refused() -> None:
    decoder = qfunc.decoder(PLACES)(Learned().eval())
    for worst in (-1, WORDS):
        with pytest.raises(CaptureError) as error:
            decoder.inputs(torch.tensor([[1, 2], [3, worst]]))
        assert str(error.value) == (
            f"Decoder.inputs: found the id {worst}, wanted ids from 0 to 7, as the table 'word.weight' has 8 rows. Pass ids of "
            "the model's own tokenizer."
        )


def test_generate_refuses_ids_outside_of_the_vocabulary() -> None:
    decoder = qfunc.decoder(PLACES)(Learned().eval())
    prompt = decoder.inputs(torch.tensor([[1, 2]]))
    calibrated = qfunc.calibrate([prompt], progress=False)(qfunc.quantize(ONNXRUNTIME)(decoder.program))
    run = ONNXRUNTIME.runtime.runner.loaded(qfunc.deploy(ONNXRUNTIME)(calibrated))
    for model, place in ((calibrated, "generate, input 'ids'"), (run, "OnnxRuntimeRunner, input 'ids'")):
        with pytest.raises(QfuncError) as error:
            qfunc.generate(2, progress=False)(model, (prompt[0] + 6, *prompt[1:]))
        assert str(error.value).startswith(f"{place}: found the id 8, wanted ids from 0 to 7, as the table ")
        with pytest.raises(QfuncError) as error:
            qfunc.generate(2, progress=False)(model, (prompt[0] - 2, *prompt[1:]))
        assert (
            str(error.value)
            == "generate, inputs: found the id -1, wanted ids from 0 on. Pass ids of the model's own tokenizer."
        )


@pytest.mark.parametrize("by_index", [False, True])
@pytest.mark.parametrize("first", [0, 2])
def test_a_cache_beyond_the_table_of_positions_is_refused(first: int, by_index: bool) -> None:
    model = Learned(first, by_index).eval()
    decoder = qfunc.decoder(PLACES)(model)
    ids = qfunc.generate(PLACES - 2, progress=False)(decoder.module, decoder.inputs(torch.tensor([[1, 2]])))
    assert ids.shape == (1, PLACES - 2)
    with pytest.raises(CaptureError) as error:
        qfunc.decoder(PLACES + 3)(model)
    assert str(error.value) == (
        f"decoder, Learned: found a length of 9, whose last position reads row {8 + first} of 'place.weight', which has "
        f"{PLACES + first}, wanted at most 6. Write qfunc.decoder(6)(model)."
    )


class Windowed(Learned):
    """Its mask counts the keys from the end of the cache, as GPT-Neo's: the last four are seen."""

    def forward(self, input_ids: Tensor, position_ids: Tensor, past_key_values: Any, use_cache: bool) -> tuple[Tensor]:
        x = (self.word(input_ids) + self.place(position_ids))[:, None]
        k, v = past_key_values.update(x, x, 0)
        keys = torch.arange(k.shape[2])
        seen = (keys <= position_ids[:, None, :, None]) & (keys >= k.shape[2] - 4)
        return (self.head(F.scaled_dot_product_attention(x, k, v, attn_mask=seen)[:, 0]),)


def test_a_window_that_depends_on_the_length_of_the_cache_is_refused() -> None:
    torch.manual_seed(0)
    model = Windowed().eval()
    qfunc.decoder(4)(model)
    with pytest.raises(CaptureError) as error:
        qfunc.decoder(PLACES)(model)
    assert re.sub(r"differ by \d\S*", "differ by D", str(error.value)) == (
        "decoder, Windowed: found logits of three tokens that differ by D with a cache of the whole length, wanted the model's "
        "own logits. If its attention has a window that it finds by the length of the cache, choose a length of at most "
        "this window."
    )


class Growing(Learned):
    """Its mask has the size of a cache that grows with each token, as Falcon's with ALiBi."""

    def forward(self, input_ids: Tensor, position_ids: Tensor, past_key_values: Any, use_cache: bool) -> tuple[Tensor]:
        x = (self.word(input_ids) + self.place(position_ids))[:, None]
        k, v = past_key_values.update(x, x, 0)
        sizes = torch.ones((1, input_ids.shape[1] + past_key_values.get_seq_length()))
        seen = torch.arange(k.shape[2]) <= position_ids[:, None, :, None]
        mask = torch.where(seen, sizes.cumsum(-1)[:, : k.shape[2]], -1e9)
        return (self.head(F.scaled_dot_product_attention(x, k, v, attn_mask=mask)[:, 0]),)


def test_sizes_that_depend_on_positions_are_refused() -> None:
    with pytest.raises(CaptureError) as error:
        qfunc.decoder(PLACES)(Growing().eval())
    assert re.sub(r"expression .* wanted", "expression E, wanted", str(error.value)) == (
        "decoder, Growing: found RuntimeError: Runtime assertion failed for expression E, wanted a graph that runs at each "
        "position from 0 to 5. A size in its forward may be past_key_values.get_seq_length(), as in Falcon with ALiBi: read "
        "position_ids instead."
    )


def test_models_of_16_bits_are_refused() -> None:
    with pytest.raises(CaptureError) as error:
        qfunc.decoder(PLACES)(Learned().bfloat16().eval())
    assert str(error.value) == (
        "decoder, Learned: found a cache in torch.bfloat16, wanted a model in float32. Pass model.float()."
    )


def test_a_decoder_is_no_module() -> None:
    with pytest.raises(CaptureError) as error:
        qfunc.quantize(IN_CODES)(qfunc.decoder(PLACES)(Learned().eval()))
    assert str(error.value) == (
        "capture: found Decoder, wanted an nn.Module or an ExportedProgram. Pass its program: decoder.program."
    )


def test_verify_tokens_refuses_ids_outside_of_the_vocabulary() -> None:
    decoder = qfunc.decoder(PLACES)(Learned().eval())
    prompt = decoder.inputs(torch.tensor([[1, 2]]))
    calibrated = qfunc.calibrate([prompt], progress=False)(qfunc.quantize(ONNXRUNTIME)(decoder.program))
    with pytest.raises(CaptureError) as error:
        qfunc.verify_tokens(ONNXRUNTIME, 2)(calibrated, (prompt[0] + 6, *prompt[1:]))
    assert str(error.value) == (
        "verify_tokens, input 'ids': found the id 8, wanted ids from 0 to 7, as the table 'model.word.weight' has 8 rows. Pass "
        "ids of the model's own tokenizer or table."
    )


class Turned(Learned):
    """It reads no table of positions."""

    def forward(self, input_ids: Tensor, position_ids: Tensor, past_key_values: Any, use_cache: bool) -> tuple[Tensor]:
        x = (self.word(input_ids) * position_ids[..., None].to(torch.float32).cos())[:, None]
        k, v = past_key_values.update(x, x, 0)
        seen = torch.arange(k.shape[2]) <= position_ids[:, None, :, None]
        return (self.head(F.scaled_dot_product_attention(x, k, v, attn_mask=seen)[:, 0]),)


@cache
def of_target(name: str) -> tuple[Decoder, fx.GraphModule, Any, Any]:
    """(decoder, calibrated, target, runner of one artifact), with a cache in float, in codes beside float, or in codes."""
    torch.manual_seed(0)
    target = {"float": ONNXRUNTIME, "state": edit.state()(ONNXRUNTIME), "codes": CACHE_IN_CODES}[name]
    decoder = qfunc.decoder(PLACES)(Turned().eval())
    prompt = decoder.inputs(torch.tensor([[1, 2, 3], [4, 5, 6]]))
    calibrated = qfunc.calibrate([prompt], progress=False)(qfunc.quantize(target)(decoder.program))
    return decoder, calibrated, target, target.runtime.runner.loaded(qfunc.deploy(target)(calibrated))


WRONG = {
    "-1": ([[0, 1, 2], [-1, 0, 1]], "the position -1"),
    "6": ([[4, 6, 5], [0, 1, 2]], "the position 6"),
    "twice": ([[2, 0, 1], [3, 4, 3]], "the position 3 twice in row 1"),
}
IN_CALLS = {
    "generate": ("generate, inputs", lambda made, given: qfunc.generate(1, progress=False)(made[0].module, given)),
    "generate, runner": ("generate, inputs", lambda made, given: qfunc.generate(1, progress=False)(made[3], given)),
    "verify_tokens": ("verify_tokens, inputs", lambda made, given: qfunc.verify_tokens(made[2], 1)(made[1], given)),
    "calibrate": (
        "calibrate, batch, input 'positions'",
        lambda made, given: qfunc.calibrate([given], progress=False)(qfunc.quantize(made[2])(made[0].program)),
    ),
    "verify": ("verify, batch, input 'positions'", lambda made, given: qfunc.verify(made[2])(made[1], [given])),
    "runner": ("OnnxRuntimeRunner, input 'positions'", lambda made, given: made[3](given)),
}


@pytest.mark.thorough
@pytest.mark.parametrize("target", ["float", "state", "codes"])
@pytest.mark.parametrize("call", IN_CALLS)
@pytest.mark.parametrize("wrong", WRONG)
def test_positions_outside_of_the_cache_and_twice_are_refused(target: str, call: str, wrong: str) -> None:
    made, (positions, found), (where, run) = of_target(target), WRONG[wrong], IN_CALLS[call]
    ids, right, *state = made[0].inputs(torch.tensor([[1, 2, 3], [4, 5, 6]]))
    run(made, (ids, right, *state))
    run(made, (ids, right.flip(1), *state))  # as those of padding, each in the cache
    with pytest.raises(QfuncError) as error:
        run(made, (ids, torch.tensor(positions), *state))
    last = "" if where.endswith(", inputs") else ", as the state 'state_0' has 6"
    assert str(error.value) == (
        f"{where}: found {found}, wanted positions from 0 to 5, each once in a row{last}. Pass the positions of "
        "decoder.inputs(ids), and after them last + 1; or write a larger qfunc.decoder(length)."
    )


@pytest.mark.parametrize("target", ["float", "state", "codes"])
@pytest.mark.parametrize("wrong", ["-1", "6"])
def test_calls_outside_of_the_cache_are_refused(target: str, wrong: str) -> None:
    decoder, calibrated, of, _ = of_target(target)
    ids, _, *state = decoder.inputs(torch.tensor([[1, 2, 3], [4, 5, 6]]))
    positions, found = WRONG[wrong]
    for model in (calibrated, qfunc.emulate(of)(calibrated)):
        with pytest.raises(CaptureError) as error:
            model(ids, torch.tensor(positions), *state)
        assert str(error.value).startswith(f"call of a captured model, input 'positions': found {found}, wanted ")

"""`decoder`: the graph with its cache computes what the model computes from whole texts."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import qfunc
from qfunc.decoding.cache import Recorder
from qfunc.errors import CaptureError
from qfunc.targets.runtimes import OnnxRuntimeRunner
from tests.decoding.decoders import SHAPES, WORDS, Shape, Small, tokens
from tests.decoding.made import LENGTH, decoder
from tests.onnxruntime_target import ONNXRUNTIME

pytestmark = pytest.mark.filterwarnings("ignore")  # torch.export warns of its own use of deprecated names


@torch.no_grad()
def without_cache(model: Small, ids: Tensor) -> Tensor:
    """The logits of whole texts."""
    return model(ids, torch.arange(ids.shape[1])[None], Recorder(), True)[0]


@pytest.mark.thorough
@pytest.mark.parametrize("name", SHAPES)
def test_any_split_of_a_text_has_the_logits_of_the_whole(name: str) -> None:
    model, small = decoder(name)
    run, ids = small.module, tokens(3, 11)
    for splits in ([11], [1] * 11, [4, 1, 6]):
        _, _, *state = small.inputs(ids)
        start, found = 0, list[Tensor]()
        for size in splits:
            with torch.no_grad():
                logits, *state = run(ids[:, start : start + size], torch.arange(start, start + size).expand(3, -1), *state)
            found.append(logits)
            start += size
        # float32 sums of at most 64 terms, in another order for other numbers of rows, through two layers.
        torch.testing.assert_close(torch.cat(found, 1), without_cache(model, ids), rtol=1e-4, atol=1e-4)


def test_the_state_has_the_shapes_of_keys_and_values() -> None:
    _, small = decoder("gemma3")
    assert [i.shape for i in small.state] == [(1, 1, LENGTH, 8)] * 4
    assert small.length == LENGTH
    ids, positions, *state = small.inputs(tokens(3, 5))
    assert (ids.shape, positions.tolist()) == ((3, 5), [[0, 1, 2, 3, 4]] * 3)
    assert [tuple(v.shape) for v in state] == [(3, 1, LENGTH, 8)] * 4
    assert not any(v.any() for v in state)


def test_the_model_does_not_change_and_shares_nothing() -> None:
    model = Small(Shape()).train()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    small = qfunc.decoder(LENGTH)(model)
    logits = small.module(*small.inputs(tokens(1, 3)))[0]
    assert all(m.training for m in model.modules())
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    model.head.weight.data.zero_()
    assert torch.equal(small.module(*small.inputs(tokens(1, 3)))[0], logits)
    assert (qfunc.decoder(LENGTH) == qfunc.decoder(LENGTH), repr(qfunc.decoder(LENGTH))) == (True, "decoder(16)")


class WithoutCache(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.word = nn.Embedding(WORDS, WORDS)

    def forward(self, input_ids: Tensor, position_ids: Tensor, past_key_values: object, use_cache: bool) -> tuple[Tensor]:
        return (self.word(input_ids),)


class Branching(Small):
    def forward(self, input_ids: Tensor, position_ids: Tensor, past_key_values: object, use_cache: bool) -> tuple[Tensor]:
        return super().forward(input_ids if input_ids.sum() >= 0 else -input_ids, position_ids, past_key_values, use_cache)


UPDATES = "a model that calls past_key_values.update(keys, values, layer) in each layer"
ATTENTION = "Pass a causal language model of transformers with attention in each layer."
REFUSED = [
    (lambda: qfunc.decoder(2), "decoder, length: found 2, wanted an integer of at least 3. Write qfunc.decoder(512)(model)."),
    (
        lambda: qfunc.decoder(8)(Small),
        "decoder: found a type, wanted a causal language model. Pass a model like LlamaForCausalLM, that computes logits from "
        "tokens.",
    ),
    (
        lambda: qfunc.decoder(8)(nn.Linear(2, 2)),
        "decoder, Linear: found TypeError: Linear.forward() got an unexpected keyword argument 'input_ids', wanted "
        f"{UPDATES}. {ATTENTION}",
    ),
    (
        lambda: qfunc.decoder(8)(WithoutCache()),
        f"decoder, WithoutCache: found updates of the layers [], wanted {UPDATES}. {ATTENTION}",
    ),
    (
        lambda: decoder("llama")[1].inputs(torch.ones(2, 3)),
        "Decoder.inputs: found torch.float32 [2, 3], wanted integers [N, T]. Pass the ids of the tokenizer: a tensor [N, T], "
        "or a list of tensors [T] of any lengths.",
    ),
    (
        lambda: decoder("llama")[1].inputs(tokens(1, 17)),
        "Decoder.inputs: found 17 tokens, wanted at most 16, the length of the cache. Write qfunc.decoder(17)(model), or a "
        "larger length.",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("call", "message"), REFUSED)
def test_what_is_refused(call, message) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(CaptureError) as e:
        call()
    assert str(e.value) == message


def test_a_branch_on_values_is_refused() -> None:
    with pytest.raises(CaptureError) as e:
        qfunc.decoder(8)(Branching(Shape()))
    assert str(e.value).startswith("decoder, Branching: found ")
    assert str(e.value).endswith(
        ", wanted a model that torch.export accepts. Check that no branch and no size in its forward depends on the values of "
        "a tensor."
    )


class Rows(nn.Module):
    """Rows with positions that all of them have, as other decoders take them."""

    def __init__(self) -> None:
        super().__init__()
        self.word, self.place, self.head = nn.Embedding(9, 8), nn.Embedding(16, 8), nn.Linear(8, WORDS)

    def forward(self, ids: Tensor, positions: Tensor) -> Tensor:
        return self.head(self.word(ids) + self.place(positions))


def test_as_many_tokens_as_rows_are_not_taken_for_the_batch() -> None:
    """The first axis of the positions varies, but not with the batch; calibration and the check of `deploy` tell them apart."""
    auto = torch.export.Dim.AUTO

    def batch(rows: int, length: int) -> tuple[Tensor, Tensor]:
        return torch.arange(rows * length).reshape(rows, length) % 9, torch.arange(length)

    program = torch.export.export(Rows().eval(), batch(2, 3), dynamic_shapes=({0: auto, 1: auto}, {0: auto}))
    quantized = qfunc.quantize(ONNXRUNTIME)(program)
    for sizes in ((4, 4), (4, 9)), ((4, 9), (2, 3)):
        calibrated = qfunc.calibrate([batch(*size) for size in sizes], progress=False)(quantized)
        session = OnnxRuntimeRunner().session(qfunc.deploy(ONNXRUNTIME)(calibrated).files["model.onnx"])
        assert session.run(batch(3, 5))[0].shape == (3, 5, WORDS)

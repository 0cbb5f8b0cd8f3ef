"""Prompts of several lengths in one batch: each row has the logits, the cache and the answer that it has alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import qfunc
from qfunc.decoding.generate import step_of, with_tokens
from qfunc.errors import CaptureError
from qfunc.specs import edit
from tests.decoding.decoders import SHAPES, Shape, Small, tokens
from tests.decoding.made import LENGTH, TARGETS, decoder, made
from tests.decoding.translators import features, translator
from tests.lowering.onnxruntime.test_float_kernels import pytestmark as exact

pytestmark = pytest.mark.filterwarnings("ignore")  # torch.export warns of its own use of deprecated names
STEPS = 4
LENGTHS = st.lists(st.integers(2, LENGTH - STEPS), min_size=2, max_size=4)
Step = Callable[[Sequence[Tensor]], Sequence[Any]]


def rows_of(lengths: Sequence[int], seed: int) -> list[Tensor]:
    """Prompts of these lengths."""
    return [tokens(1, n, seed + k)[0] for k, n in enumerate(lengths)]


def steps(run: Step, inputs: tuple[Tensor, ...], answer: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    """(logits of the prompt and of each given token, the last cache)."""
    logits, found = list[Tensor](), inputs
    for k in range(answer.shape[1] + 1):
        one, *state = (torch.as_tensor(v) for v in run(found))
        logits.append(one)
        found = with_tokens(found, answer[:, k : k + 1], state)
    return logits, list(state)


def require_as_alone(run: Step, small: Any, prompts: list[Tensor], seed: int) -> None:
    """Not one element of the logits and of what is written into the cache differs."""
    answer = tokens(len(prompts), STEPS, seed)
    logits, state = steps(run, small.inputs(prompts), answer)
    for row, prompt in enumerate(prompts):
        alone, own = steps(run, small.inputs(prompt[None]), answer[row : row + 1])
        assert torch.equal(logits[0][row, -len(prompt) :], alone[0][0])
        assert all(torch.equal(a[row], b[0]) for a, b in zip(logits[1:], alone[1:], strict=True))
        end = len(prompt) + STEPS
        assert all(torch.equal(a[row, :, :end], b[0, :, :end]) for a, b in zip(state, own, strict=True))


@pytest.mark.thorough
@pytest.mark.parametrize("kind", TARGETS)
@pytest.mark.parametrize("name", SHAPES)
@given(lengths=LENGTHS, seed=st.integers(0, 2**16))
@settings(max_examples=3, deadline=None)
def test_each_row_is_that_of_the_prompt_alone(name: str, kind: str, lengths: list[int], seed: int) -> None:
    """Also with scales of each token, for prompts of two tokens and more: sums of a single row have another order."""
    it = made(name, kind)
    require_as_alone(step_of(it.emulated), it.decoder, rows_of(lengths, seed), seed)


@pytest.mark.thorough
@exact
@pytest.mark.parametrize("kind", TARGETS)
@pytest.mark.parametrize("name", SHAPES)
def test_each_row_is_that_of_the_prompt_alone_in_the_runtime(name: str, kind: str) -> None:
    it = made(name, kind)
    require_as_alone(it.target.runtime.runner.loaded(it.artifact), it.decoder, rows_of((5, 2, 9, 12), 7), 7)


def test_a_prompt_of_one_token_with_static_scales() -> None:
    it = made("llama")
    require_as_alone(step_of(it.emulated), it.decoder, rows_of((1, 6), 3), 3)


@pytest.mark.parametrize("name", SHAPES)
def test_the_float_answers_are_those_of_each_prompt(name: str) -> None:
    _, small = decoder(name)
    prompts = rows_of((3, 8, 1, 5), 2)
    together = qfunc.generate(7, progress=False)(small.module, small.inputs(prompts))
    assert together.tolist() == [
        qfunc.generate(7, progress=False)(small.module, small.inputs(p[None]))[0].tolist() for p in prompts
    ]


@pytest.mark.thorough
@exact
@pytest.mark.parametrize("kind", TARGETS)
def test_the_tokens_of_a_batch_are_verified(kind: str) -> None:
    for target in (TARGETS[kind], edit.state()(TARGETS[kind])):
        _, small = decoder("gemma3")
        prompts = [small.inputs(tokens(4, LENGTH, 1)), small.inputs(rows_of((2, 7, 4), 3))]
        calibrated = qfunc.calibrate(prompts, progress=False)(qfunc.quantize(target)(small.program))
        report = qfunc.verify_tokens(target, 5)(calibrated, small.inputs(rows_of((1, 8, 5), 5)))
        assert (report.tokens, report.mismatches, report.report.disagreements) == (15, 0, ())
        if kind == "static":
            assert report.report.mismatches == 0


def test_lists_and_masks_are_the_same_prompt() -> None:
    _, small = decoder("llama")
    mask = torch.tensor([[0, 0, 1, 1], [1, 1, 1, 1], [0, 1, 1, 1]])
    ids, positions, *_ = small.inputs([torch.tensor([5, 6]), torch.tensor([1, 2, 3, 4]), torch.tensor([7, 8, 9])])
    assert ids.tolist() == [[5, 5, 5, 6], [1, 2, 3, 4], [7, 7, 8, 9]]
    assert positions.tolist() == [[2, 3, 0, 1], [0, 1, 2, 3], [3, 0, 1, 2]]
    for seen in (mask, mask.bool(), mask.float()):
        given_, places, *_ = small.inputs(ids, attention_mask=seen)
        assert torch.equal(given_, ids)
        assert torch.equal(places, positions)


class FirstRow(Small):
    """Counts the positions of the first row for all."""

    def forward(self, input_ids: Tensor, position_ids: Tensor, past_key_values: Any, use_cache: bool) -> tuple[Tensor]:
        return super().forward(input_ids, position_ids[:1].expand(position_ids.shape), past_key_values, use_cache)


def test_a_model_that_reads_the_positions_of_one_row_is_refused() -> None:
    with pytest.raises(CaptureError) as e:
        qfunc.decoder(8)(FirstRow(Shape()))
    assert str(e.value).startswith("decoder, FirstRow: found logits of a row that differ by ")
    assert str(e.value).endswith(
        " where another row has other positions, wanted rows that read their own position_ids [N, T]. Take the position of "
        "each row: keys <= position_ids[:, None, :, None], not position_ids[0]."
    )


def test_tokens_of_a_narrow_type_are_int64() -> None:
    """The graph and its file take int64."""
    _, small = decoder("llama")
    ids = tokens(2, 3)
    for narrow in (ids.int(), ids.to(torch.uint8), [ids[0].int(), ids[1, :2]]):
        found = small.inputs(narrow)
        assert found[0].dtype == found[1].dtype == torch.int64
    assert torch.equal(small.inputs(ids.int())[0], ids)


IDS, LEFT = tokens(2, 3), (
    'Pass tokenizer(texts, padding=True, return_tensors="pt").attention_mask, with tokenizer.padding_side = "left".'
)  # fmt: skip
ONES = "wanted zeros and then ones, at least one: padding on the left"
IN_ROWS = "Pass the ids of the tokenizer: a tensor [N, T], or a list of tensors [T] of any lengths."
TENSORS = "Write decoder.inputs([torch.tensor(row) for row in rows]); rows may have any lengths."
REFUSED = [
    ([], None, f"Decoder.inputs: found no rows, wanted integers [N, T], or a list of rows. {IN_ROWS}"),
    (7, None, f"Decoder.inputs: found an int, wanted integers [N, T], or a list of rows. {IN_ROWS}"),
    (
        [IDS[0], IDS[0].float()], None,
        f"Decoder.inputs, row 1: found torch.float32 [3], wanted integers [T]. {IN_ROWS}",
    ),
    (IDS > 0, None, f"Decoder.inputs: found torch.bool [2, 3], wanted integers [N, T]. {IN_ROWS}"),
    ([IDS[0], IDS[0][:0]], None, f"Decoder.inputs, row 1: found torch.int64 [0], wanted integers [T]. {IN_ROWS}"),
    ([IDS[0], [1, 2]], None, f"Decoder.inputs, row 1: found a list, wanted integers [T]. {TENSORS}"),
    (
        [IDS[0]], torch.ones(1, 3),
        "Decoder.inputs: found a list of rows and an attention_mask, wanted one of them. Pass either a list of rows, or a "
        "tensor with the mask of its padding.",
    ),
    (
        IDS, torch.ones(2, 4),
        f"Decoder.inputs, attention_mask: found the shape [2, 4], wanted [2, 3], the shape of the tokens. {LEFT}",
    ),
    (IDS, [[1]], f"Decoder.inputs, attention_mask: found a list, wanted [2, 3], the shape of the tokens. {LEFT}"),
    (
        IDS, torch.tensor([[1, 1, 1], [1, 1, 0]]),
        f"Decoder.inputs, attention_mask: found [1, 1, 0] in row 1, {ONES}. {LEFT}",
    ),
    (
        IDS, torch.tensor([[1, 0, 1], [1, 1, 1]]),
        f"Decoder.inputs, attention_mask: found [1, 0, 1] in row 0, {ONES}. {LEFT}",
    ),
    (
        IDS, torch.tensor([[0, 0, 0], [1, 1, 1]]),
        f"Decoder.inputs, attention_mask: found [0, 0, 0] in row 0, {ONES}. {LEFT}",
    ),
    (
        IDS, torch.tensor([[0.5, 1, 1], [1, 1, 1]]),
        f"Decoder.inputs, attention_mask: found [0.5, 1, 1] in row 0, {ONES}. {LEFT}",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("ids", "mask", "message"), REFUSED)
def test_what_is_refused(ids: Any, mask: Any, message: str) -> None:
    with pytest.raises(CaptureError) as e:
        decoder("llama")[1].inputs(ids, attention_mask=mask)
    assert str(e.value) == message


def test_decoders_with_an_encoder_count_positions_themselves() -> None:
    _, both = translator()
    with pytest.raises(CaptureError) as e:
        both.decoder.inputs(rows_of((2, 3), 0), both.encoder_module(features(2)))
    assert str(e.value) == (
        "Decoder.inputs: found prompts of several lengths, wanted one length: such a decoder counts positions itself. Pass "
        "prompts of one length together, and others in calls of their own."
    )

"""Masked softmax in TOSA: entries that a constant mask drops have probability 0, and the others that of their own row."""

from __future__ import annotations

import importlib.util

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import qfunc
from qfunc import targets
from qfunc.numerics.kernels.fixed_rows import masked_softmax_fixed, softmax_fixed
from tests.conformance.modules import Apply

needs_tosa = pytest.mark.skipif(importlib.util.find_spec("tosa_reference_model") is None, reason="tosa-tools is not installed")
TARGET = targets.tosa


class Attention(nn.Module):
    """Self-attention of two heads with a constant mask, or with the causal mask of scaled_dot_product_attention."""

    def __init__(self, drop: Tensor | None, low: float = -1e9) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.qkv, self.low = nn.Linear(8, 24), low
        self.drop: Tensor | None
        self.register_buffer("drop", drop)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """[N, T, 8] -> [N, 2, T, 4], and the weights [N, 2, T, T], if they are known."""
        q, k, v = self.qkv(x).view(x.shape[0], x.shape[1], 3, 2, 4).permute(2, 0, 3, 1, 4).unbind(0)
        if self.drop is None:
            return F.scaled_dot_product_attention(q, k, v, is_causal=True), q
        scores = (q @ k.transpose(-2, -1)) * 0.5
        weights = scores.masked_fill(self.drop, self.low).softmax(-1)
        return weights @ v, weights


def _calibrated(model: nn.Module, length: int):
    batches = [3 * torch.randn(n, length, 8, generator=torch.Generator().manual_seed(n)) for n in (2, 3)]
    return qfunc.calibrate(batches, progress=False)(qfunc.quantize(TARGET)(model.eval())), batches


LATE = torch.ones(6, 6).triu(1) > 0
DROPS = {
    "after the diagonal": LATE,
    "of heads": torch.stack([LATE, torch.eye(6) > 0]),
    "of columns": torch.arange(6) % 3 == 1,
    "nothing": torch.zeros(6, 6) > 0,
}


@needs_tosa
@pytest.mark.parametrize("name", DROPS)
@pytest.mark.parametrize("low", [-torch.inf, -1e9, -100.0])
def test_dropped_entries_have_probability_0_in_the_reference_model(name: str, low: float) -> None:
    model, batches = _calibrated(Attention(DROPS[name], low), 6)
    report = qfunc.verify(TARGET)(model, batches)
    assert report.verdict.startswith("bit-exact: 0 of "), report
    assert report.float_units == ()
    weights = torch.from_numpy(TARGET.runtime.runner.run(qfunc.deploy(TARGET)(model), batches[:1])[1])
    assert not weights[DROPS[name].expand(weights.shape)].any()
    # A probability has a step of 1/256, and each of at most 6 entries is rounded once.
    assert bool(((weights.sum(-1) - 1).abs() <= 3 / 256 + 1e-6).all())


@needs_tosa
def test_the_causal_mask_of_attention() -> None:
    model, batches = _calibrated(Attention(None), 5)
    report = qfunc.verify(TARGET)(model, batches)
    assert report.verdict.startswith("bit-exact: 0 of "), report
    assert report.float_units == ()


FORMS = {
    "booleans that keep": lambda q, k, drop: F.scaled_dot_product_attention(q, k, k, attn_mask=~drop),
    "minus infinity": lambda q, k, drop: F.scaled_dot_product_attention(q, k, k, attn_mask=drop * 0.0 - 1e9 * drop),
    "a sum": lambda q, k, drop: (q @ k.transpose(-2, -1) + -1e4 * drop).softmax(-1) @ k,
    "a choice": lambda q, k, drop: torch.where(~drop, q @ k.transpose(-2, -1), -1e9).softmax(-1) @ k,
    "a comparison": lambda q, k, drop: (q @ k.transpose(-2, -1)).masked_fill(~drop == 0, -torch.inf).softmax(-1) @ k,
}


class Form(nn.Module):
    """Attention with a constant mask in one of its spellings."""

    def __init__(self, form: str, drop: Tensor) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.qk, self.form = nn.Linear(8, 16), FORMS[form]
        self.register_buffer("drop", drop)

    def forward(self, x: Tensor) -> Tensor:
        """[N, T, 8] -> the same."""
        q, k = self.qk(x).chunk(2, -1)
        return self.form(q, k, self.drop)


@needs_tosa
@pytest.mark.parametrize("form", FORMS)
def test_spellings_of_a_constant_mask(form: str) -> None:
    model, batches = _calibrated(Form(form, LATE), 6)
    assert [str(n.target) for n in model.graph.nodes if "masked_softmax" in str(n.target)]
    report = qfunc.verify(TARGET)(model, batches)
    assert report.verdict.startswith("bit-exact: 0 of "), report
    # Position 0 attends to itself alone, so that the others do not change its result.
    exact = qfunc.emulate(TARGET)(model)
    other = torch.cat([batches[0][:, :1], batches[0][:, 1:].flip(1)], 1)
    assert torch.equal(exact(batches[0])[:, 0], exact(other)[:, 0])


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_a_row_has_the_probabilities_of_its_kept_entries(data: st.DataObject) -> None:
    length, scale = data.draw(st.integers(1, 9)), data.draw(st.sampled_from([1e-3, 0.02, 0.1, 0.5, 3.0]))
    row = data.draw(st.lists(st.integers(-128, 127), min_size=length, max_size=length))
    kept = data.draw(st.lists(st.integers(0, length - 1), min_size=1, unique=True).map(sorted))
    codes, drop = torch.tensor(row, dtype=torch.float32), torch.ones(length, dtype=torch.bool)
    drop[kept] = False
    found = masked_softmax_fixed(codes[None], drop, scale, -128, 127)[0]
    assert torch.equal(found[kept], softmax_fixed(codes[None, kept], -1, scale, -128, 127)[0])
    assert bool((found[drop] == -128).all())


@pytest.mark.parametrize("low", [-1e9, -torch.inf])
def test_a_mask_that_drops_a_row_is_refused(low: float) -> None:
    """In float its softmax is that of equal numbers, or NaN; codes have neither as the softmax of no entries."""
    drop = LATE.clone()
    drop[2] = True
    with pytest.raises(qfunc.errors.QfuncError) as caught:
        qfunc.quantize(TARGET)(Attention(drop, low))
    assert str(caught.value) == (
        "target 'tosa', op 'masked_fill': found the kind 'where', wanted an op that it runs: TOSA 1.0, profile PRO-INT, has no "
        "such operator on integers, or not with these attributes. Mask scores by a constant, just before a softmax along the "
        "last axis, and keep an entry of each row."
    )


def test_a_low_number_that_masks_nothing_is_refused() -> None:
    with pytest.raises(qfunc.errors.QfuncError):
        qfunc.quantize(TARGET)(Attention(LATE, -2.0))


def test_other_targets_have_a_mask_and_a_softmax() -> None:
    model = Apply(lambda x: x.masked_fill(LATE, -1e9).softmax(-1))
    quantized = qfunc.quantize(targets.onnxruntime)(nn.Sequential(nn.Linear(6, 6), model))
    assert not any("masked_softmax" in str(n.target) for n in quantized.graph.nodes)

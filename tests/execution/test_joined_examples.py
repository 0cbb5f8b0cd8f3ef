"""The examples of runtimes that take one a call come into the model's order, and wrong values stay wrong."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from attrs import frozen
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import qfunc
from qfunc import targets
from qfunc.execution.joined_examples import in_model_order
from qfunc.targets.runtimes import NcnnRunner


@st.composite
def placed(draw: Any) -> tuple[Tensor, Tensor, int]:
    """Draw (the examples, one after the other, the model's tensor, the batch size); entries differ by at least 1."""
    before, after = (draw(st.lists(st.integers(1, 3), max_size=2)) for _ in range(2))
    outer, inner, examples = draw(st.integers(1, 4)), draw(st.integers(1, 3)), draw(st.integers(1, 4))
    shape = *before, outer, examples, inner, *after
    generator = torch.Generator().manual_seed(draw(st.integers(0, 99)))
    model = torch.randperm(torch.Size(shape).numel(), generator=generator).double().reshape(shape)
    apart = model.movedim(len(before) + 1, 0)
    forms = [(examples, *before, outer * inner, *after), (examples, apart[0].numel())]
    if outer == inner == 1:
        forms.append((examples, *before, *after))
    if before:
        forms.append((examples * before[0], *before[1:], outer * inner, *after))
    merged = model.reshape(*before, outer * examples * inner, *after)
    return apart.reshape(draw(st.sampled_from(forms))), merged, examples


@given(placed())
@settings(max_examples=300, deadline=None)
def test_examples_at_any_place_of_an_axis_come_into_the_order_of_the_model(case):
    joined, model, examples = case
    assert torch.equal(in_model_order(joined, model, examples, joined=True), model)
    noise = joined + 1e-9 * torch.randn_like(joined)
    assert (in_model_order(noise, model, examples, joined=True) - model).abs().max() < 1e-7


@given(placed(), st.data())
@settings(max_examples=300, deadline=None)
def test_a_wrong_value_stays_wrong(case, data):
    joined, model, examples = case
    flat, place = joined.flatten().clone(), data.draw(st.integers(0, joined.numel() - 1))
    flat[place] += 0.25
    found = in_model_order(flat.reshape(joined.shape), model, examples, joined=True)
    assert int((found != model).sum()) == 1
    exchanged = joined.flip(0)  # the examples in the wrong order
    if not torch.equal(exchanged, joined):
        found = in_model_order(exchanged, model, examples, joined=True)
        assert sorted(found.flatten().tolist()) == sorted(model.flatten().tolist())
        assert not torch.equal(found, model)


@frozen(eq=False)
class Planted:
    """A view of ncnn's session that adds to one element of a real tensor."""

    view: Any
    tensor: str
    change: float

    @property
    def units(self):
        return None

    @property
    def difference(self):
        return ""

    @property
    def tensors(self):
        return self.view.tensors

    @property
    def reals(self):
        return self.view.reals

    def run(self, inputs):
        outputs, shown = self.view.run(inputs)
        shown[self.tensor].reshape(-1)[-1] += self.change
        return outputs, shown


@frozen
class PlantedRunner:
    """ncnn, seen through `Planted`."""

    runner: NcnnRunner
    tensor: str
    change: float

    def missing(self):
        return self.runner.missing()

    def run(self, artifact, inputs):
        return self.runner.run(artifact, inputs)

    def inside(self, artifact):
        return Planted(self.runner.inside(artifact), self.tensor, self.change)


class Attended(nn.Module):
    """An attention whose layers see [L B, E], after a norm that gives each element another value."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.attention = nn.LayerNorm(12), nn.MultiheadAttention(12, 1, batch_first=True)

    def forward(self, x):
        y = self.norm(x)
        return y + self.attention(y, y, y, need_weights=False)[0]


@pytest.mark.parametrize("length", [3, 8])  # 3 tokens of 3 examples: both orders have one shape
def test_ncnn_shows_the_reals_of_an_attention_in_the_order_of_the_model(length):
    if missing := NcnnRunner().missing():
        pytest.skip(missing)
    torch.manual_seed(0)
    batches = [torch.randn(n, length, 12) for n in (2, 3, 4, 1)]
    quantized = qfunc.quantize(targets.ncnn, (batches[0],))(Attended().eval())
    calibrated = qfunc.calibrate(batches[:1], progress=False)(quantized)
    report = qfunc.verify(targets.ncnn)(calibrated, batches)
    assert report.agreement.startswith("bit-exact"), report
    reals = [r.name for r in report.rows if r.kind == "real"]
    assert reals
    for change in (1e-6, 1.0):
        planted = PlantedRunner(NcnnRunner(), reals[0], change)
        rows = {r.name: r for r in qfunc.verify(targets.ncnn, planted)(calibrated, batches).rows if r.kind == "real"}
        assert rows[reals[0]].mismatches == len(batches), rows

"""Softmaxes over so many entries that the scale which the target fixes rounds them to 0."""

from __future__ import annotations

import re
import warnings

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import qfunc
from qfunc import targets
from qfunc.specs import FixedQParams, Target, edit

TFLITE = (
    "calibrate, site 'softmax': found values that round to 0 and are 70% of the sum of all, at the scale 0.00390625 that the "
    "target fixes, wanted at most 50%. Leave the op in float by edit.skip(edit.name('softmax')), or compute it over fewer "
    "entries."
)


class Softmax(nn.Module):
    """A softmax over the last axis."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.softmax(x, -1)


def scores(length: int, spread: float = 1.0) -> Tensor:
    return spread * torch.randn(8, length, generator=torch.Generator().manual_seed(length))


def noise(target: Target, x: Tensor) -> tuple[float, float]:
    """Signal to noise of the simulation in dB, and the scale of the softmax."""
    model = qfunc.calibrate([x], progress=False)(qfunc.quantize(target)(Softmax()))
    exact = torch.softmax(x.double(), -1)
    scale = model.get_submodule("quantizers.softmax.output").scale.item()
    return float(10 * torch.log10((exact**2).sum() / ((model(x) - exact) ** 2).sum())), scale


@pytest.mark.parametrize("length", [2, 10, 197, 511])
def test_short_softmaxes_keep_the_scale_of_the_tool(length: int) -> None:
    assert noise(targets.onnxruntime, scores(length))[1] == 1 / 256
    assert noise(targets.onnxruntime, torch.zeros(1, length))[1] == 1 / 256


@pytest.mark.parametrize("length", [513, 1400, 5000])
def test_long_softmaxes_get_a_smaller_scale_where_the_kernel_takes_it(length: int) -> None:
    x = scores(length)
    decibel, scale = noise(targets.onnxruntime, x)
    assert scale == pytest.approx(torch.softmax(x, -1).max().item() / 255)
    assert decibel > 30


def test_a_smaller_scale_is_what_the_runtime_computes() -> None:
    x = scores(1400)
    model = qfunc.calibrate([x], progress=False)(qfunc.quantize(targets.onnxruntime)(Softmax()))
    assert qfunc.verify(targets.onnxruntime)(model, [x]).verdict == "bit-exact: 0 of 33,600 elements differ"


def test_peaks_keep_the_scale_and_are_no_loss() -> None:
    """1,000 classes of which one is probable: most of the sum is far above a step."""
    x = scores(1000)
    x[:, 7] += 15
    for target in (targets.onnxruntime, targets.litert):
        assert noise(target, x)[1] == 1 / 256


def test_calibrating_again_returns_to_the_fixed_scale() -> None:
    quantized = qfunc.quantize(targets.onnxruntime)(Softmax())
    long = qfunc.calibrate([scores(1400)], progress=False)(quantized)
    again = qfunc.calibrate([scores(100)], progress=False)(long)
    assert again.get_submodule("quantizers.softmax.output").scale.item() == 1 / 256


def test_a_target_that_fixes_the_scale_warns_with_the_cure() -> None:
    x = scores(1400)
    with pytest.warns(UserWarning, match=f"^{re.escape(TFLITE)}$") as record:
        noise(targets.litert, x)
    assert [w.filename for w in record] == [__file__]
    cured = edit.pipe(targets.litert, edit.skip(edit.name("softmax")))
    model = qfunc.calibrate([x], progress=False)(qfunc.quantize(cured)(Softmax()))
    assert torch.equal(model(x), torch.softmax(x, -1))


def test_rows_that_differ_by_far_warn_on_every_target() -> None:
    """One peak among flat rows: no scale of 8 bits represents both."""
    x = 0.1 * scores(4000)
    x[0, 0] = 40.0
    for target in (targets.onnxruntime, targets.litert):
        with pytest.warns(UserWarning, match="^calibrate, site 'softmax': found values that round to 0 and are 88% of "):
            noise(target, x)


@settings(max_examples=10, derandomize=True, deadline=None)
@given(st.integers(2, 3000), st.floats(0.01, 8.0))
def test_nothing_is_lost_without_a_word(length: int, spread: float) -> None:
    """Codes other than 0 for most of the sum, or a warning, on each target with a fixed scale."""
    x = scores(length, spread)
    for target in (targets.onnxruntime, targets.litert, targets.qnn_htp, targets.tengine_u8):
        assert any(isinstance(rule.output, FixedQParams) for rule in target.rules)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            model = qfunc.calibrate([x], progress=False)(qfunc.quantize(target)(Softmax()))
        lost = torch.softmax(x, -1)[model(x) == 0].sum() / len(x)
        assert lost < 0.6 or caught  # 0.5, and the rounding of the input

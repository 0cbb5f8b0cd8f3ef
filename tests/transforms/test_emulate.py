"""emulate: the runtime's integers, with the model's own inputs and outputs."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import qfunc
from qfunc.errors import EmulationError
from qfunc.graph.sites import quantizer_nodes
from qfunc.specs import edit
from tests.onnxruntime_target import ONNXRUNTIME
from tests.transforms.checks import arguments, calibrated, equal, leaves
from tests.transforms.nets import NAMES, network

TARGET = ONNXRUNTIME


@pytest.mark.parametrize("export", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_emulation_is_near_the_simulation_and_keeps_its_structure(name: str, export: bool) -> None:
    _, batch, done = calibrated(name, export=export)
    emulation = qfunc.emulate(TARGET)(done)
    got, want = emulation(*arguments(batch)), done(*arguments(batch))
    assert type(got) is type(want)
    if isinstance(want, dict):
        assert list(got) == list(want)
    for a, b in zip(leaves(got), leaves(want), strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        assert (a - b).abs().max() < 0.1 * (b.max() - b.min())
    assert not emulation.training


def test_emulation_takes_any_batch_and_repeats_itself() -> None:
    _, x, done = calibrated("residual")
    emulation = qfunc.emulate(TARGET)(done)
    whole = emulation(x)
    assert torch.equal(torch.cat([emulation(x[:1]), emulation(x[1:])]), whole)
    assert torch.equal(qfunc.emulate(TARGET)(done)(x), whole)
    assert equal(copy.deepcopy(emulation)(x), whole)


def test_outputs_are_multiples_of_the_last_scale() -> None:
    _, x, done = calibrated("residual")
    out = qfunc.emulate(TARGET)(done)(x)
    last = next(s.module for s in quantizer_nodes(done) if s.module.site.name == "fc")
    codes = out / last.scale + last.zero_point
    assert (codes - codes.round()).abs().max() < 1e-3
    assert codes.min() >= 0
    assert codes.max() <= 255.001


def test_an_emulation_is_copied_without_a_warning() -> None:
    _, x, done = calibrated("residual", export=True)
    emulation = qfunc.emulate(TARGET)(done)
    assert torch.equal(copy.deepcopy(emulation)(x), emulation(x))


def test_no_gradient_and_no_mode_matters() -> None:
    _, x, done = calibrated("residual")
    emulation = qfunc.emulate(TARGET)(done)
    want = emulation(x)
    assert torch.equal(emulation.train()(x), want)


def test_weights_of_fewer_bits_are_emulated_too() -> None:
    model, x = network("branches")
    target = edit.pipe(TARGET, edit.weights(bits=4))
    done = qfunc.calibrate([x])(qfunc.quantize(target)(model))
    report = qfunc.verify(target)(done, [x, x + 1])
    assert report.agreement.startswith("bit-exact: 0 of")
    assert report.float_units == ()


@pytest.mark.parametrize(("rank", "found"), [(1, "(7,) to (4,)"), (2, "(7, 9) to (4, 4)")])
def test_adaptive_windows_that_overlap_are_refused(rank: int, found: str) -> None:
    conv, pool = ((nn.Conv1d, nn.AdaptiveAvgPool1d), (nn.Conv2d, nn.AdaptiveAvgPool2d))[rank - 1]
    net, x = nn.Sequential(conv(3, 4, 3), pool(4), conv(4, 5, 3)), torch.randn(2, 3, *(9, 11)[:rank])
    done = qfunc.calibrate([x])(qfunc.quantize(TARGET)(net))
    emulation = qfunc.emulate(TARGET)(done)
    with pytest.raises(EmulationError) as caught:
        emulation(x)
    assert str(caught.value) == (
        f"unit '1': found adaptive pooling of {found}, wanted a size that divides the input's. "
        "Resize the input, or pool to a divisor of its size."
    )
    whole = torch.randn(2, 3, *(10, 14)[:rank])  # 8 and 12 behind the convolution
    assert emulation(whole).shape == done(whole).shape

"""emulate: the runtime's integers, with the model's own inputs and outputs."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

import qfunc
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


@pytest.mark.parametrize("size", [4, (4, 3), (None, 4), (3, None), (7, 4), 1])
@pytest.mark.parametrize("rank", [1, 2])
def test_adaptive_windows_that_overlap(rank: int, size: Any) -> None:
    conv, pool = ((nn.Conv1d, nn.AdaptiveAvgPool1d), (nn.Conv2d, nn.AdaptiveAvgPool2d))[rank - 1]
    size = size if rank == 2 or isinstance(size, int) else size[0] or size[1]
    net, x = nn.Sequential(conv(3, 4, 3), pool(size), nn.ReLU(), conv(4, 5, 1)), torch.randn(2, 3, *(9, 11)[:rank])
    done = qfunc.calibrate([x])(qfunc.quantize(TARGET)(net))
    report = qfunc.verify(TARGET)(done, [x, 2 * x])
    assert report.agreement.startswith("bit-exact: 0 of")
    assert report.float_units == ()

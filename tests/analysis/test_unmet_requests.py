"""One warning with a cure where an edit makes ops float, or where a tie joins tensors of unlike ranges; else none."""

import warnings

import pytest
import torch
from torch import nn

import qfunc
from qfunc import targets
from qfunc.specs import Target, edit

X = torch.linspace(-1, 1, 6).reshape(2, 3)


def warned(target, net, batches=(X,)):
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        qfunc.calibrate(list(batches), progress=False)(qfunc.quantize(target)(net.eval()))
    assert all(w.filename == __file__ for w in found)
    return [str(w.message) for w in found]


def of_edit(formats):
    wanted = "Int(8, signed=False) for its input and output"
    cure = "or leave the op in float by edit.skip(edit.name('0'))."
    return [
        f"quantize, op '0': found {formats} for its input and output, so that it and 1 more op run in float on 'onnxruntime', "
        f"wanted {wanted}. Give it these formats, {cure}",
        "calibrate, op '0': found that no multiply-accumulate runs on integers, because it and 1 more op run in float on "
        f"'onnxruntime', wanted {wanted}. Edit the target and quantize again, {cure}",
    ]


@pytest.mark.parametrize(
    ("change", "formats"),
    [
        (edit.activations(bits=16), "Int(16, signed=False)"),
        (edit.activations(bits=4), "Int(4, signed=False)"),
        (edit.activations(signed=True), "Int(8)"),
    ],
)
def test_formats_without_a_kernel(change, formats):
    assert warned(change(targets.onnxruntime), nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))) == of_edit(formats)


class Ordinary(nn.Module):
    """A convolution, a gate, a concat and a classifier."""

    def __init__(self):
        super().__init__()
        self.conv, self.linear = nn.Conv2d(3, 8, 3), nn.Linear(288, 4)

    def forward(self, x):
        y = torch.relu(self.conv(x))
        y = y * torch.sigmoid(y)
        return self.linear(torch.cat([y[:, :4], y[:, 4:]], 1).flatten(1))


CHIPS = [t for name in targets.__all__ if isinstance(t := getattr(targets, name), Target)]


@pytest.mark.parametrize(
    "target",
    [
        *CHIPS,
        edit.weights(bits=4)(targets.onnxruntime),
        edit.skip(edit.name("conv"))(targets.onnxruntime),
        edit.activations(bits=16)(targets.qdq),
    ],
    ids=lambda t: t.name,
)
def test_no_warning_where_nothing_is_lost(target):
    torch.manual_seed(0)
    assert warned(target, Ordinary(), [torch.randn(2, 3, 8, 8)]) == []


class Head(nn.Module):
    """Boxes in pixels and scores in one tensor."""

    def __init__(self, factor, inner=False):
        super().__init__()
        self.factor, self.inner = factor, inner

    def forward(self, x):
        y = torch.cat([self.factor * x, torch.sigmoid(x)], 1)
        return y.abs() if self.inner else y


def unlike(do):
    # The scores are sigmoid(-1) to sigmoid(1), and 0 is a code of every scale.
    return [
        "calibrate, op 'cat': found inputs that share one scale although their ranges differ by a factor of 27: [0, 0.7311] of "
        f"'sigmoid' and [-10, 10] of 'mul', wanted at most 8. {do}, or leave the op in float by edit.skip(edit.name('cat'))."
    ]


@pytest.mark.parametrize("target", [targets.litert, targets.vitis, targets.stpu], ids=lambda t: t.name)
def test_tied_tensors_of_unlike_ranges(target):
    assert warned(target, Head(10)) == unlike("Return its inputs as separate outputs")
    assert warned(target, Head(10), [X, 0 * X]) == unlike("Return its inputs as separate outputs")


def test_the_cure_of_an_inner_concat():
    assert warned(targets.litert, Head(10, inner=True)) == unlike("Give its inputs similar ranges")


@pytest.mark.parametrize(
    ("target", "factor"),
    [
        (targets.litert, 2.5),
        (targets.litert, 0.0),
        (edit.skip(edit.name("cat"))(targets.litert), 10),
        (targets.onnxruntime, 10),
    ],
)
def test_no_warning_where_ranges_are_alike_or_not_tied(target, factor):
    assert warned(target, Head(factor)) == []

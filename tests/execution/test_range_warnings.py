"""Calibration warns where a range leaves few codes: to a part of a joined tensor, to equal values, to all values but a few."""

import re
import warnings

import pytest
import torch
from torch import nn

import qfunc
from qfunc import targets
from qfunc.execution.tensor_ranges.measure import Range, range_of, union
from qfunc.specs import edit


def calibrated(target, net, batches):
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        done = qfunc.calibrate(list(batches), progress=False)(qfunc.quantize(target)(net.eval()))
    assert all(w.filename == __file__ for w in found)
    return done, [str(w.message) for w in found]


class Joined(nn.Module):
    """Four channels times a factor and four of about 1, put together in some form; the small ones are returned last."""

    def __init__(self, form, factor):
        super().__init__()
        self.form, self.factor, self.conv = form, factor, nn.Conv2d(3, 4, 1)
        self.register_buffer("places", torch.tensor([0, 1, 2, 3]))
        self.register_buffer("first", (torch.arange(8) < 4).view(1, 8, 1, 1))

    def forward(self, x):
        y = self.conv(x)
        wide, small = torch.tanh(y) * self.factor, torch.tanh(2 * y)
        pair = torch.cat([small, small], 1)
        if self.form == "concat":
            return torch.cat([wide, small], 1)
        if self.form == "nested":
            return torch.cat([torch.cat([wide, small[:, :1]], 1), small[:, 1:]], 1)
        if self.form == "stack":
            return torch.stack([wide, small], 1).flatten(1, 2)
        if self.form == "transposed":
            return torch.cat([wide.permute(0, 2, 3, 1), small.permute(0, 2, 3, 1)], -1).permute(0, 3, 1, 2)
        if self.form == "read":
            return torch.relu(torch.cat([wide, small], 1))
        if self.form == "slice":
            pair[:, :4] = wide
        if self.form == "scaled slice":
            pair[:, :4] *= self.factor
        if self.form == "channels":
            pair[:, 0] = pair[:, 0] * self.factor
            pair[:, 1] = pair[:, 1] * self.factor
        if self.form == "empty":
            pair = torch.zeros_like(pair)
            pair[:, 4:] = small
            pair[:, :4] = wide
        if self.form == "positions":
            pair = pair.index_copy(1, self.places, wide)
        if self.form == "mask":
            pair = torch.where(self.first, torch.cat([wide, wide], 1), pair)
        return pair


FORMS = ("concat", "nested", "stack", "transposed", "read", "slice", "scaled slice", "channels", "empty", "positions", "mask")
UNLIKE = re.compile(
    r"calibrate, op '[\w.]+': found inputs that share one scale although their ranges differ by a factor of (\d+)(, so that "
    r"one keeps (\d) codes?)?(, as do(es)? \d more such ops?)?: .* of '[\w.]+' and .* of '[\w.]+', wanted (at least 8 codes|at "
    r"most 8)\. (Return its inputs as separate outputs|Give its inputs similar ranges), or leave (the op|what uses it) in "
    r"float by edit\.skip\(edit\.name\('(?P<ops>[\w.', ]+)'\)\)\."
)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("target", "form"),
    [
        *((targets.onnxruntime, form) for form in FORMS),
        *((targets.onnx_qnn, form) for form in ("concat", "slice", "positions", "mask")),
        *((targets.qnn_htp, form) for form in FORMS if form != "mask"),
        *((targets.tosa, form) for form in FORMS[:9]),
        *((targets.tensorrt, form) for form in ("concat", "slice", "channels")),
    ],
    ids=lambda v: getattr(v, "name", v),
)
def test_a_part_that_keeps_few_codes_is_named_and_no_other(target, form):
    # The oracle is the simulation: the number of values that the small channels have, of the 4 x 8 x 8 values that differ.
    torch.manual_seed(0)
    x = torch.randn(2, 3, 8, 8)
    for factor in (1.0, 5.0, 640.0):
        done, texts = calibrated(target, Joined(form, factor), [x])
        kept = done(x)[:, 4:].unique().numel()
        lost = [t for t in texts if UNLIKE.fullmatch(t)]
        assert len(lost) == (kept < 8), (factor, kept, texts)
        assert len(lost) == len(texts)


@pytest.mark.parametrize("form", ["concat", "slice", "channels", "positions"])
def test_the_cure_leaves_the_codes(form):
    torch.manual_seed(0)
    x, net, target, texts = torch.randn(2, 3, 8, 8), Joined(form, 640.0), targets.onnxruntime, [""]
    for _ in range(3):
        done, texts = calibrated(target, net, [x])
        if not texts:
            break
        target = edit.skip(edit.name(*UNLIKE.fullmatch(texts[0])["ops"].split("', '")))(target)
    assert not texts
    assert done(x)[:, 4:].unique().numel() > 64


def test_the_reader_of_a_float_concat_is_named():
    # On this target only the inputs of layers have scales, so that the layer has to be left in float.
    torch.manual_seed(0)
    x, target = torch.randn(2, 3, 8, 8), targets.academic(8, 8)
    net = nn.Sequential(Joined("concat", 640.0), nn.Conv2d(8, 2, 1))
    _, (text,) = calibrated(target, net, [x])
    assert UNLIKE.fullmatch(text)["ops"] == "1"
    assert calibrated(edit.skip(edit.name("1"))(target), net, [x])[1] == []


torch.manual_seed(0)
NET = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 3))
CHIPS = [
    targets.onnxruntime,
    targets.openvino,
    targets.tensorrt,
    targets.vitis,
    targets.tosa,
    targets.snpe,
    targets.academic(4, 4),
]


@pytest.mark.parametrize("target", CHIPS, ids=lambda t: t.name)
@pytest.mark.parametrize("value", [0.0, 0.5, -3.0])
def test_constant_batches(target, value):
    torch.manual_seed(0)
    _, texts = calibrated(target, NET, [torch.full((2, 3, 8, 8), value)] * 2)
    shown = f"{value:.4g}"
    found = [re.sub(r", as do(es)? \d+ more tensors?", "", t) for t in texts if t.startswith("calibrate, site 'input'")]
    assert found == [  # what a layer makes of a constant may be constant, too
        f"calibrate, site 'input': found one code for all 768 values, which are {shown}, wanted values that differ. Pass "
        "batches like those of use; a tensor that is constant in use, too, loses nothing."
    ]


@pytest.mark.parametrize("target", CHIPS, ids=lambda t: t.name)
@pytest.mark.parametrize("value", [1e30, -1e30, 1e6])
def test_one_absurd_value(target, value):
    check_one_absurd_value(target, value, 3)


def test_one_value_that_is_absurd_beside_small_ones():
    check_one_absurd_value(targets.onnxruntime, 3.0, 0.003)


def check_one_absurd_value(target, value, size):
    torch.manual_seed(0)
    batches = [torch.randn(2, 3, 8, 8).clamp(-3, 3) * (size / 3) for _ in range(2)]
    batches[1][0, 1, 2, 3] = value
    batches[0][0, 0, 0, 0], batches[0][0, 0, 0, 1] = -size, size
    _, texts = calibrated(target, NET, batches)
    assert [t for t in texts if t.startswith("calibrate, site 'input'")] == [
        f"calibrate, site 'input': found 1 of 768 values, up to {value:.4g}, which determines the range, so that the others, "
        f"[-{size}, {size}], keep 1 code, wanted at least 8. Leave such values out of the batches, or leave the op in float by "
        "edit.skip(edit.name('0'))."
    ]


@pytest.mark.parametrize("target", CHIPS, ids=lambda t: t.name)
def test_no_warning_about_usual_batches(target):
    # Normal, uniform and sparse values, one-hot vectors, and batches of unlike sizes.
    torch.manual_seed(0)
    one_hot = nn.functional.one_hot(torch.arange(16), 192).float().reshape(16, 3, 8, 8)
    sparse = torch.randn(4, 3, 8, 8) * (torch.rand(4, 3, 8, 8) > 0.99)
    for batches in ([torch.randn(2, 3, 8, 8), 9 * torch.randn(2, 3, 8, 8)], [torch.rand(2, 3, 8, 8)], [one_hot], [sparse]):
        assert calibrated(target, NET, batches)[1] == []


@pytest.mark.parametrize("seed", range(20))
def test_ranges_are_those_of_sorted_values(seed):
    # The definition in plain Python, on tensors that the sample holds whole.
    generator = torch.Generator().manual_seed(seed)
    tensors = []
    for _ in range(3):
        x = torch.randn(int(torch.randint(1, 3000, (), generator=generator)), generator=generator)
        x[: int(torch.randint(0, 4, (), generator=generator))] *= 1e3
        tensors.append(x[torch.randperm(len(x), generator=generator)])
    rows, found = [], None
    for x in tensors:
        values, sizes = x.tolist(), sorted((abs(v) for v in x.tolist()), reverse=True)
        usual = sizes[min(len(sizes) // 64 + 1, len(sizes) - 1)]
        far = [v for v in values if abs(v) > 16 * usual]
        far = far if len(far) <= max(1, len(values) // 1000) else []
        near = [v for v in values if v not in far]
        rows.append((min(values), max(values), min(near), max(near), len(far), len(values)))
        found = union(found, range_of(x))
    low, high, inner_low, inner_high, far, total = zip(*rows, strict=True)
    assert Range(*found.tolist()) == Range(min(low), max(high), min(inner_low), max(inner_high), sum(far), sum(total))

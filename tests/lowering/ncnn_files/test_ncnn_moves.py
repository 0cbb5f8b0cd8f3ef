"""Ops that become several layers in ncnn, side by side: the runtime computes what PyTorch computes in float64."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import qfunc
from qfunc import targets
from qfunc.errors import DeployError, QfuncError
from qfunc.specs import edit
from qfunc.targets.ncnn.runner import NcnnRunner
from tests.lowering.tflite.test_litert import _calibrated

needs_ncnn = pytest.mark.skipif(importlib.util.find_spec("ncnn") is None, reason="ncnn is not installed")


def grid(x: Tensor) -> Tensor:
    """[N, C, H, W] -> the same and two channels of coordinates."""
    places = torch.meshgrid(torch.arange(x.shape[2]), torch.arange(x.shape[3]), indexing="ij")
    return torch.cat([x, torch.stack(places).type_as(x)[None].expand(x.shape[0], -1, -1, -1)], 1)


MOVES = {
    "qkv of a transformer": lambda x: x.view(x.shape[0], 3, 2, 5, 7).permute(2, 0, 1, 3, 4)[1],
    "sequence first": lambda x: x.flatten(2).permute(2, 0, 1).transpose(0, 1),
    "windows": lambda x: x.view(x.shape[0], 2, 3, 5, 7).permute(0, 1, 3, 2, 4).flatten(1),
    "five axes that all move": lambda x: x.view(x.shape[0], 2, 3, 5, 7, 1).permute(0, 4, 3, 2, 5, 1).flatten(1),
    "pixel_unshuffle": lambda x: F.pixel_unshuffle(x[..., :4, :6], 2),
    "pixel_shuffle": lambda x: F.pixel_shuffle(x[:, :4], 2),
    "channel_shuffle": lambda x: F.channel_shuffle(x, 3),
    "repeat": lambda x: x.repeat(1, 2, 1, 3),
    "tile": lambda x: torch.tile(x, (1, 2, 1)),
    "repeat_interleave": lambda x: x.repeat_interleave(2, 1),
    "expand": lambda x: x[:, :1].expand(-1, 6, -1, -1),
    "flip": lambda x: torch.flip(x, (1, 3)),
    "every second channel": lambda x: x[:, ::2],
    "steps along three axes": lambda x: x[:, 1::2, ::3, 1::2],
    "positions": lambda x: x[:, [3, 0, 1, 5]],
    "one position": lambda x: x[:, 2],
    "roll": lambda x: torch.roll(x, (1, -2), (2, 3)),
    "circular pad": lambda x: F.pad(x, (2, 1, 1, 3), mode="circular"),
    "global maximum": lambda x: F.adaptive_max_pool2d(x, 1),
    "dilated maximum": lambda x: F.max_pool2d(x, (2, 3), (1, 2), (1, 0), (3, 2)),
    "dilated and padded maximum": lambda x: F.max_pool2d(x, 3, 2, 1, 2),
    "nearest by a factor": lambda x: F.interpolate(x, scale_factor=2.3),
    "coordinates": grid,
    "unbind": lambda x: x.unbind(2)[1],
    "stack": lambda x: torch.stack([x[:, 0], x[:, 1]], -1),
    "threshold": lambda x: F.threshold(x, 0.3, -2.0),
    "where": lambda x: torch.where(x > 0.2, x * 2, -x),
    "masked_fill": lambda x: x.masked_fill(~((x <= 0) & (x > -1)), 3.0),
    "hardshrink": lambda x: F.hardshrink(x, 0.3),
    "sign": torch.sign,
    "trunc": torch.trunc,
    "argmax": lambda x: x.argmax(1),
    "argmin": lambda x: x.argmin(-1, keepdim=True),
    "argmax of all": lambda x: x.flatten(1).argmax(1),
}
"""Ops whose results are exact."""
CURVES = {
    "square": lambda x: x**2,
    "cube": lambda x: x**3,
    "average with ceil_mode": lambda x: F.avg_pool2d(x, 3, 2, 1, ceil_mode=True),
    "softplus": lambda x: F.softplus(40 * x),
    "softplus with a factor": lambda x: F.softplus(x, 2.0),
    "erf": torch.erf,
    "sinh": torch.sinh,
    "cosh": torch.cosh,
    "asinh": torch.asinh,
    "celu": lambda x: F.celu(x, 0.7),
    "softsign": F.softsign,
    "softshrink": lambda x: F.softshrink(x, 0.3),
    "logsigmoid": F.logsigmoid,
    "log_softmax": lambda x: F.log_softmax(30 * x, 1),
    "logsumexp": lambda x: torch.logsumexp(30 * x, (1, 2)),
    "var": lambda x: x.var(1),
    "std": lambda x: x.std((2, 3)),
    "norm": lambda x: torch.linalg.vector_norm(x, dim=1),
    "norm of order 1": lambda x: x.norm(1, dim=3),
    "cumsum": lambda x: x.cumsum(1),
    "glu": lambda x: F.glu(x, 1),
    "softmax of six axes": lambda x: x.view(x.shape[0], 2, 3, 5, 7, 1).softmax(2).flatten(1),
    "sum of six axes": lambda x: (x.view(x.shape[0], 2, 3, 5, 7, 1) + torch.arange(35.0).view(5, 7, 1)).flatten(1),
    "products of six axes": lambda x: (x.view(x.shape[0], 2, 3, 1, 5, 7) @ x.view(x.shape[0], 2, 3, 1, 7, 5)).flatten(1),
    "bicubic": lambda x: F.interpolate(x, scale_factor=2, mode="bicubic"),
    "bicubic by a factor of half a size": lambda x: F.interpolate(x, scale_factor=0.5, mode="bicubic"),
    "bilinear by a factor": lambda x: F.interpolate(x, scale_factor=(2, 1.5), mode="bilinear"),
    "linear signal": lambda x: F.interpolate(x[:, :, 0], scale_factor=2, mode="linear"),
    "area": lambda x: F.interpolate(x[..., :4, :6], size=(2, 3), mode="area"),
    "causal attention": lambda x: x.masked_fill(torch.ones(5, 7).tril() == 0, -float("inf")).softmax(-1),
}
"""Ops whose results are rounded otherwise."""


class Side(nn.Module):
    """Ops on one input, beside a linear layer: a target refuses a model in which it quantizes nothing."""

    def __init__(self, calls) -> None:
        super().__init__()
        self.calls, self.linear = list(calls), nn.Linear(6 * 5 * 7, 2)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        """[N, 6, 5, 7] -> what each op returns, [N, 2]."""
        return (*(call(x) for call in self.calls), self.linear(x.flatten(1)))


@needs_ncnn
@pytest.mark.parametrize(("calls", "tolerance"), [(MOVES, 0.0), (CURVES, 1e-5)], ids=["moves", "curves"])
def test_the_runtime_computes_each_op(calls, tolerance):
    model, _ = _calibrated(Side(calls.values()), targets.ncnn, 2, 6, 5, 7)
    x = torch.randn(3, 6, 5, 7, generator=torch.Generator().manual_seed(4))
    x[:, :, 0] = torch.arange(-3, 4) / 2  # the ties of the roundings, equal maxima, and 0
    found = NcnnRunner().run(qfunc.deploy(targets.ncnn)(model), [x])
    for (name, call), got in zip(calls.items(), found, strict=False):
        want = call(x.double()).double()
        got = torch.from_numpy(got).double().reshape(want.shape)
        most = float(want.abs().max())
        assert float((got - want).abs().max()) <= tolerance * max(most, 1), name


@needs_ncnn
def test_rows_of_a_table_are_read_by_indices():
    class Tokens(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.places, self.linear = nn.Embedding(11, 6), nn.Parameter(torch.randn(5, 6)), nn.Linear(6, 3)

        def forward(self, tokens: Tensor) -> Tensor:
            return self.linear(self.table(tokens) + self.places).mean(1)

    torch.manual_seed(0)
    batches = [torch.randint(0, 11, (4, 5)) for _ in range(2)]
    model = qfunc.calibrate(batches, progress=False)(qfunc.quantize(targets.ncnn)(Tokens().eval()))
    report = qfunc.verify(targets.ncnn)(model, batches)
    assert report.outside_float_units, report
    assert report.tensors == 1


@needs_ncnn
def test_codes_are_compared_where_the_examples_are_another_axis():
    class Sequence(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(6, 8), nn.Linear(8, 3)

        def forward(self, x: Tensor) -> Tensor:
            """[N, L, 6] -> [N, L, 3], by rows of the positions."""
            y = F.relu(self.first(x.transpose(0, 1)))
            return self.second(y).transpose(0, 1)

    model, batches = _calibrated(Sequence(), targets.ncnn, 3, 3, 6)  # as many examples as positions
    report = qfunc.verify(targets.ncnn)(model, batches)
    assert report.agreement.startswith("bit-exact: "), report
    assert [row.name for row in report.of("codes")] == ["transpose"]


@needs_ncnn
@pytest.mark.parametrize("value", [3e9, -3e9, 3.3e38])
def test_values_beyond_the_integers_saturate(value):
    model, batches = _calibrated(nn.Sequential(nn.Conv2d(2, 3, 1), nn.Softplus(), nn.Conv2d(3, 2, 1)), targets.ncnn, 2, 2, 4, 4)
    x = batches[0] * 1
    x[0, 0, 0, 0] = value
    report = qfunc.verify(targets.ncnn)(model, [x])
    assert not any(row.mismatches for row in report.of("codes")), report
    _, codes = NcnnRunner().inside(qfunc.deploy(targets.ncnn)(model)).run([x])
    assert codes["input.codes"][0, 0, 0, 0] == np.copysign(127, value)


@needs_ncnn
def test_a_module_may_have_the_name_of_an_output_and_a_token_is_repeated():
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.in0, self.out0, self.token = nn.Linear(6, 4), nn.Linear(4, 3), nn.Parameter(torch.randn(1, 1, 4))

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            y = F.relu(self.in0(x))
            return self.out0(torch.cat([self.token.repeat(x.shape[0], 1, 1), y], 1)), y

    model, batches = _calibrated(Named(), targets.ncnn, 2, 5, 6)
    report = qfunc.verify(targets.ncnn)(model, batches)
    assert report.agreement.startswith("bit-exact: "), report


@needs_ncnn
def test_copies_of_a_blob_have_names_that_no_blob_has():
    class Rolled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(1, 2, 1)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            once = torch.roll(self.conv(x), (1, 1), (2, 3))
            twice = torch.roll(once, (1, 2), (2, 3))  # "roll_1.0" is its first axis, and would be its first copy
            return twice.relu(), twice.sigmoid()

    model, batches = _calibrated(Rolled(), targets.ncnn, 2, 1, 8, 8)
    report = qfunc.verify(targets.ncnn)(model, batches)
    assert report.agreement.startswith("bit-exact"), report


@needs_ncnn
def test_a_network_without_codes_says_so():
    target = edit.skip(edit.op("conv"))(targets.ncnn)
    model, batches = _calibrated(nn.Sequential(nn.Conv2d(1, 8, 5), nn.GELU()), target, 2, 1, 9, 9)
    report = qfunc.verify(target)(model, batches)
    assert (report.tensors, report.mismatches > 0) == (0, True)
    counts = f"{report.elements:,} elements, {report.mismatches:,} of them unequal"
    assert report.agreement == f"within 1 LSB or their bounds: {counts}; no tensor was compared bit by bit"
    assert "bit-exact" not in report.verdict


class Outer(nn.Module):
    """A linear layer before an op that a file of single examples cannot hold."""

    def __init__(self, call) -> None:
        super().__init__()
        self.linear, self.call = nn.Linear(6, 4), call

    def forward(self, x: Tensor) -> Tensor:
        """[N, 6] -> what the op returns."""
        return self.call(self.linear(x))


REFUSED = {
    "integer powers": (
        lambda x: x ** torch.tensor([2.0, 0.5, 3.0, 1.0]),
        "op 'pow': found powers of [2.0, 0.5, 3.0, 1.0], wanted one number from -8 to 8, or fractions: "
        "ncnn's power of negative values is NaN. Multiply.",
    ),
    "sum of examples": (
        lambda x: x.unsqueeze(-2).flatten(0, 1).cumsum(0),
        "op 'cumsum': found CumSum that mixes the examples of a batch, wanted each by itself, because the file computes one "
        "example. Compute it outside of the deployed model, or deploy Q/DQ ONNX by edit.deploy(QdqLowering()).",
    ),
}


@needs_ncnn
def test_a_batch_of_constant_matrices_multiplies_rows_of_the_batch():
    class Heads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.heads = nn.Linear(8, 8), nn.Parameter(torch.randn(4, 8, 5))

        def forward(self, x: Tensor) -> Tensor:
            """[N, 4, 8] -> [N, 4, 5]: a matrix for each head."""
            return torch.einsum("bhd,hde->bhe", self.linear(x), self.heads)

    model, batches = _calibrated(Heads(), targets.ncnn, 2, 4, 8)
    report = qfunc.verify(targets.ncnn)(model, [*batches, batches[0][:1]])
    assert report.tensors >= 2
    assert "mismatch" not in report.verdict, report  # products in float32 are compared within their bounds


@pytest.mark.parametrize("name", REFUSED)
def test_what_a_file_of_single_examples_cannot_hold_is_refused(name):
    call, message = REFUSED[name]
    model, _ = _calibrated(Outer(call), targets.ncnn, 4, 6)
    with pytest.raises(QfuncError) as caught:
        qfunc.deploy(targets.ncnn)(model)
    assert isinstance(caught.value, DeployError)
    assert " ".join(str(caught.value).split()) == message

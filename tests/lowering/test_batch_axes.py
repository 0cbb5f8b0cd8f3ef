"""Ops beside and across the batch axis: the runtimes compute what the emulation does, or the op is refused."""

from __future__ import annotations

from itertools import combinations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import qfunc
from qfunc import targets
from qfunc.errors import DeployError, SpecError
from qfunc.targets.runtimes import ExecuTorchRunner, LiteRtRunner

RUNTIMES = {"litert": (targets.litert, LiteRtRunner()), "executorch": (targets.executorch_xnnpack, ExecuTorchRunner())}


def reductions(t: Tensor) -> list[Tensor]:
    """Every reduction of a tensor [2, B, 4, 6] over axes that are not the batch."""
    over = [axes for count in (1, 2, 3) for axes in combinations((0, 2, 3), count)]
    kept = [f(t, axes, keep) for f in (torch.mean, torch.amax) for axes in over for keep in (False, True)]
    others = [
        f(t, axis, keepdim=keep) for f in (torch.sum, torch.logsumexp, torch.var) for axis in (0, 2) for keep in (False, True)
    ]
    return kept + others


def pools(t: Tensor) -> list[Tensor]:
    """Pools of images and signals whose channels are the examples."""
    signal = t[:, :, 0]
    return [F.max_pool2d(t, 2), F.avg_pool2d(t, 2), F.max_pool1d(signal, 2), F.avg_pool1d(signal, 2)]


class Stacked(nn.Module):
    """A linear layer, whose results are stacked before the batch; some values of each example are the outputs."""

    def __init__(self, values) -> None:
        super().__init__()
        self.linear, self.values = nn.Linear(6, 6), values

    def forward(self, x):
        y = self.linear(x)
        return tuple(self.values(torch.stack([y, y * 0.5], 0)))


@pytest.mark.parametrize("values", [reductions, pools])
@pytest.mark.parametrize("name", RUNTIMES)
def test_the_batch_may_be_another_axis(name, values):
    target, runner = RUNTIMES[name]
    if missing := runner.missing():
        pytest.skip(missing)
    torch.manual_seed(0)
    batches = [torch.randn(n, 4, 6) for n in (2, 2, 3, 1)]
    quantized = qfunc.quantize(target, batches[0])(Stacked(values).eval())
    report = qfunc.verify(target)(qfunc.calibrate(batches[:2], progress=False)(quantized), batches[1:])
    assert report.agreement.startswith("bit-exact")


class Mixed(nn.Module):
    """A function of a linear layer's results."""

    def __init__(self, function) -> None:
        super().__init__()
        self.linear, self.function = nn.Linear(6, 6), function

    def forward(self, x):
        return self.function(self.linear(x))


def _of(y: Tensor) -> Tensor:
    return y.permute(1, 2, 0)  # the examples last


def shipped(model, target, batches, example):
    quantized = qfunc.quantize(target, example)(model)
    return qfunc.deploy(target)(qfunc.calibrate(batches, progress=False)(quantized))


MIXING = {  # op -> functions of y [B, 4, 6]
    "MatMul": (lambda y: y.transpose(0, 1) @ _of(y), lambda y: _of(y) @ y.transpose(0, 1), lambda y: y[:, 0] @ y[:, 0].t()),
    "ReduceMean": (lambda y: y - y.mean(0, keepdim=True), lambda y: y.mean(0), lambda y: y.mean((0, 2))),
    "ReduceMax": (lambda y: y - y.amax(0, keepdim=True),),
    "ReduceSum": (lambda y: y.sum(0) * y,),
    "ReduceL2": (lambda y: y / y.norm(dim=0, keepdim=True),),
    "Softmax": (lambda y: y.softmax(0), lambda y: _of(y).softmax(-1)),
    "Mul": (lambda y: y[:, None] * y[None],),
    "Concat": (lambda y: torch.cat([y, y], 0),),
    "Reshape": (lambda y: y.transpose(0, 1).reshape(-1, 6) * 2.0,),
    "Flatten": (lambda y: _of(y).flatten(1) * 2.0,),
    "Pad": (lambda y: F.pad(y, (0, 0, 0, 0, 1, 1)) * 2.0,),
    "MaxPool": (lambda y: F.max_pool1d(_of(y), 3, 1, 1) * 2.0,),
}


ONE_EXAMPLE = {t.name: t for t in (targets.executorch_xnnpack, targets.tosa, targets.ncnn)}
KINDS = {"tosa": ("ReduceSum", "ReduceL2")}  # ops that `quantize` refuses
ALTERNATE = dict.fromkeys(("Reshape", "Flatten"), "examples that alternate")
FOLLOWED = {
    "executorch_xnnpack": ALTERNATE, "tosa": ALTERNATE, "ncnn": ALTERNATE | {"Flatten": "examples along axis 1"},
}  # fmt: skip
"""What is refused at the output: before it, ops may compute rows of all examples."""


@pytest.mark.thorough
# torch.export fixes the batch size of a pool over the examples.
@pytest.mark.parametrize(("op", "exported"), [(op, e) for op in MIXING for e in (False, True) if op != "MaxPool" or not e])
@pytest.mark.parametrize("name", ONE_EXAMPLE)
def test_a_file_of_one_example_refuses_what_mixes_examples(name, op, exported):
    wanted = "wanted each by itself, because the file computes one example. Compute it outside of the deployed model, "
    found = f"found {op} that mixes the examples of a batch, {wanted}or deploy Q/DQ ONNX by edit.deploy(QdqLowering())."
    if op in FOLLOWED.get(name, ()):
        found = f"found {FOLLOWED[name][op]}, wanted axis 0. Make the batch the first axis."
    for function in MIXING[op] if op not in KINDS.get(name, ()) else ():
        target, batches = ONE_EXAMPLE[name], [torch.randn(n, 4, 6) for n in (3, 3)]
        with pytest.raises((DeployError, SpecError)) as caught:  # the graph decides some forms, sizes the others
            shipped(Mixed(function).eval(), target, batches, batches[0] if exported else None)
        message = str(caught.value)
        mixed = "mixes=True" in message and "the file computes one example of a batch" in message
        early = mixed or ("with batch_axis=" in message and "NcnnLowering() writes: a blob is one example" in message)
        assert early if isinstance(caught.value, SpecError) else message.partition(": ")[2] == found


APART = (
    lambda y: y.reshape(-1, 6) * 2.0, lambda y: y.reshape(-1) * 2.0, lambda y: y.transpose(0, 1) * 2.0,
    lambda y: y.transpose(0, 1).softmax(-1), lambda y: y @ y.transpose(1, 2),
    lambda y: y.transpose(0, 1).transpose(0, 1).reshape(-1, 2, 12) * 2.0, lambda y: torch.cat([y, y], 1),
)  # fmt: skip


@pytest.mark.parametrize("name", RUNTIMES)
def test_examples_that_stay_apart_are_written(name):
    target, runner = RUNTIMES[name]
    if missing := runner.missing():
        pytest.skip(missing)
    for function in APART:
        batches = [torch.randn(n, 4, 6) for n in (2, 2, 3, 1)]
        model = qfunc.calibrate(batches[:2], progress=False)(qfunc.quantize(target, batches[0])(Mixed(function).eval()))
        assert qfunc.verify(target)(model, batches[1:]).agreement.startswith("bit-exact")


def test_a_network_of_one_batch_size_is_no_file_of_one_example():
    target, batches = targets.executorch_xnnpack, [torch.randn(2, 4, 6)] * 2
    quantized = qfunc.quantize(target, batches[0])(Mixed(lambda y: y.reshape(2, 4, 6) * 2.0).eval())
    with pytest.raises(DeployError) as caught:
        qfunc.deploy(target)(qfunc.calibrate(batches, progress=False)(quantized))
    found = "found a first axis of 2 that the network does not let vary"
    wanted = "wanted a batch of any size, because the file computes one example"
    do = "Reshape by sizes of the input, such as x.shape[0], or calibrate with one example."
    assert str(caught.value) == f"input 'x': {found}, {wanted}. {do}"


class Repeated(nn.Module):
    """Rows of all examples as one axis, joined with constants and computed rows that are repeated for each example."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 6)
        self.register_buffer("rows", torch.linspace(-2, 2, 24).reshape(4, 6))

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        count, y = x.shape[0], self.linear(x).reshape(-1, 6)
        twice = self.rows.repeat(2 * count, 1).reshape(count, -1, 6)
        return (
            y + self.rows.repeat(count, 1),
            y * self.linear(self.rows).relu().repeat(count, 1),
            twice * y.reshape(count, -1, 6)[:, :1],
        )


@pytest.mark.parametrize("name", RUNTIMES)
def test_rows_are_repeated_for_each_example(name):
    """As anchors are: `box_coder.decode_single(offsets.reshape(-1, 4), anchors.repeat(n, 1))` of torchvision's detectors."""
    target, runner = RUNTIMES[name]
    if missing := runner.missing():
        pytest.skip(missing)
    torch.manual_seed(0)
    batches = [torch.randn(n, 4, 6) for n in (2, 2, 3, 1)]
    model = Repeated().eval()
    calibrated = qfunc.calibrate(batches[:2], progress=False)(qfunc.quantize(target, batches[0])(model))
    report = qfunc.verify(target)(calibrated, batches[1:])
    assert report.agreement.startswith("bit-exact")
    found = runner.run(qfunc.deploy(target)(calibrated), batches[:1])  # in the range of calibration
    with torch.no_grad():
        for wanted, value in zip(model(batches[0]), found, strict=True):
            assert (torch.as_tensor(value) - wanted).abs().max() < 0.02 * wanted.abs().max()  # a few steps of 1 / 255


@pytest.mark.parametrize("name", RUNTIMES)
@pytest.mark.parametrize(
    ("shifts", "dims"), [(0, -1), (6, -1), (7, -1), (-7, 2), ((0, 2), (1, 2)), ((4, 6), (1, 2)), ((5, -9), (1, 2))]
)
def test_a_roll_by_whole_turns_and_beyond(name, shifts, dims):
    target, runner = RUNTIMES[name]
    if missing := runner.missing():
        pytest.skip(missing)
    batches = [torch.randn(n, 4, 6) for n in (2, 2, 3)]
    net = Mixed(lambda y: torch.roll(y, shifts, dims) * 2.0).eval()
    model = qfunc.calibrate(batches[:2], progress=False)(qfunc.quantize(target)(net))
    assert qfunc.verify(target)(model, batches[1:]).agreement.startswith("bit-exact")

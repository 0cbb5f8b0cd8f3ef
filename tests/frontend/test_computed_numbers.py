"""Numbers that a forward computes from sizes: both ways to capture give the same codes, and the files load and agree."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import qfunc
from qfunc import targets
from qfunc.errors import CaptureError, DeployError
from qfunc.ops.node import kind_of
from qfunc.ops.sizes import is_number

AXES = (
    "y.softmax(y.dim() - 1)", "y.mean(y.dim() - 1)", "y.mean((y.dim() - 2, y.dim() - 1))", "y.sum(y.ndim - 1)",
    "y.amax(y.ndim - 1)", "y.max(y.dim() - 3)[0]", "y.flatten(y.dim() - 3)", "y.transpose(y.dim() - 1, 1)",
    "y.permute(0, y.dim() - 1, 1, 2)", "torch.cat([y, y], y.dim() - 3)", "y.unsqueeze(y.dim() - 2)",
    "torch.stack([y, y], y.dim() - 3)", "F.glu(y, y.dim() - 3)", "y.flip(y.dim() - 1)", "y.cumsum(y.dim() - 3)",
    "torch.tile(y, (1,) * (y.dim() - 2) + (2,) * 2)",
)  # fmt: skip
NUMBERS = (
    "y / y.size(1)", "y / math.sqrt(y.size(-1))", "y * (y.shape[1] // 4) ** -0.5", "y.size(1) / (y.abs() + 1)", "y.size(1) - y",
    "y * math.log(y.shape[1])", "y.sum((2, 3)) / (y.size(2) * y.size(3))", "(y.abs() + 0.1) ** (y.shape[1] // 4)",
    "y.std(1, correction=y.size(1) // 8)",
    "torch.add(y, y, alpha=1 / y.size(1))", "torch.lerp(y, y * 2, 1 / y.size(1))", "y * (y.size(1) > 4)", "y + y.dim()",
    "F.pad(y, (0, 1), value=1 / y.size(1))", "torch.where(y > 0, y, 1 / y.size(1))", "y / y[0].numel()",
    "F.scaled_dot_product_attention(y, y, y, scale=y.size(-1) ** -0.5)", "y * math.gcd(y.size(1), 12)",
    "y + torch.arange(y.size(3)) / y.size(3)",
)  # fmt: skip
SHAPES = (
    "F.avg_pool2d(y, y.shape[2:])", "F.max_pool2d(y, (y.shape[2] // 2, 2))", "F.adaptive_avg_pool2d(y, y.size(2) // 2)",
    "F.adaptive_max_pool2d(y, (y.size(2) // 4, y.size(3) // 2))", "F.interpolate(y, size=y.shape[3] // 2, mode='bilinear')",
    "F.interpolate(y, size=(y.shape[2] * 2, y.shape[3] // 2))", "F.interpolate(y, scale_factor=y.shape[1] / 4)",
    "y.tile(1, y.size(1) // 4, 1, 1)", "y.repeat(1, y.size(1) // 4, 1, 1)", "y.repeat_interleave(y.size(1) // 4, 1)",
    "y.narrow(1, 0, y.size(1) // 2)", "y.narrow(1, y.size(1) // 2, 2)", "torch.narrow(y, -1, y.size(3) - 3, y.size(3) // 4)",
    "y.narrow(dim=1, start=-3, length=2)", "y.narrow(1, 1, y.size(1) - 2)", "y.narrow(-2, 2 - y.size(2), y.size(2) - 2)",
    "torch.split(y, y.size(1) // 2, 1)[1]", "y.chunk(y.size(1) // 4, 1)[1]",
    "y[:, : y.size(1) // 2]", "y[..., -(y.size(3) // 2) :, :: y.size(1) // 4]", "y[:, y.size(1) // 2]",
    "y.unflatten(1, (2, y.size(1) // 2))", "F.layer_norm(y, y.shape[1:])", "F.group_norm(y, y.shape[1] // 4)",
    "torch.roll(y, y.shape[-1] // 2, -1)", "torch.roll(y, (y.shape[2] // 2, -(y.shape[3] // 2)), (2, 3))",
    "F.pad(y, (y.shape[-1] // 4,) * 2)", "F.pixel_shuffle(y, y.size(1) // 4)", "F.channel_shuffle(y, y.size(1) // 4)",
    "y.topk(y.size(1) // 2, 1)[0]", "y.tril(y.size(2) // 4)",
    "torch.cat([y, torch.zeros(y.size(0), 2, y.size(2), y.size(3))], 1)",
)  # fmt: skip


class Formulas(nn.Module):
    """A convolution, and formulas of its output; the model has one output for each."""

    def __init__(self, formulas):
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Conv2d(3, 8, 3, padding=1)
        self.computed = eval(f"lambda y: ({', '.join(formulas)},)", {"F": F, "torch": torch, "math": math})

    def forward(self, x):
        return self.computed(self.conv(x))


def calibrated_by(model, batches, example=None):
    return qfunc.calibrate(batches, progress=False)(qfunc.quantize(targets.onnxruntime, example)(model))


@pytest.mark.parametrize("formulas", [AXES, NUMBERS, SHAPES], ids=["axes", "numbers", "shapes"])
def test_both_ways_to_capture_give_the_same_codes_and_the_runtime_agrees(formulas):
    model, batches, x = Formulas(formulas).eval(), [torch.randn(2, 3, 8, 8)], torch.randn(3, 3, 8, 8)
    traced, exported = calibrated_by(model, batches), calibrated_by(model, batches, (batches[0],))
    codes = [qfunc.emulate(targets.onnxruntime)(calibrated)(x) for calibrated in (traced, exported)]
    assert [f for f, a, b in zip(formulas, *codes, strict=True) if not torch.equal(a, b)] == []
    report = qfunc.verify(targets.onnxruntime)(traced, [x])
    assert report.agreement.startswith("bit-exact"), report


def test_a_reader_of_sizes_is_no_reader_of_the_codes_that_ops_move():
    model = nn.Sequential(nn.MaxPool2d(2), Viewed(), nn.Linear(128, 5)).eval()
    batches = [torch.randn(2, 4, 8, 8)]
    traced, exported = calibrated_by(model, batches), calibrated_by(model, batches, (batches[0],))
    codes = [qfunc.emulate(targets.onnxruntime)(calibrated)(batches[0]) for calibrated in (traced, exported)]
    assert torch.equal(*codes)


class Viewed(nn.Module):
    def forward(self, x):
        y = x.unsqueeze(1).expand(-1, 2, -1, -1, -1).flatten(1, 2)
        return y.view(y.size(0), -1)


def test_numbers_follow_the_sizes_of_each_call():
    model, batches = Formulas(("F.avg_pool2d(y, y.shape[2:])", "y / y.size(-1)")).eval(), [torch.randn(2, 3, 8, 8)]
    emulated, x = qfunc.emulate(targets.onnxruntime)(calibrated_by(model, batches)), torch.randn(2, 3, 4, 4)
    pooled, scaled = emulated(x)
    real = model(x)
    assert pooled.shape == real[0].shape == (2, 8, 1, 1)
    assert (scaled - real[1]).abs().max() < 0.01


def test_a_number_is_no_site():
    quantized = qfunc.quantize(targets.onnxruntime)(Formulas(NUMBERS).eval())
    numbers = [n for n in quantized.graph.nodes if is_number(n)]
    assert len(numbers) > 20
    assert not [user for n in numbers for user in n.users if kind_of(user) == "fake_quantize"]


def test_numbers_that_decide_how_an_op_is_quantized_need_an_example():
    class Blur(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("taps", torch.ones(3, 1, 3, 3) / 9)

        def forward(self, x):
            return F.conv2d(x, self.taps, groups=x.shape[1])

    with pytest.raises(CaptureError) as e:
        qfunc.quantize(targets.onnxruntime)(Blur())
    line = Blur.forward.__code__.co_firstlineno + 1
    assert str(e.value) == (
        f"{__file__}:{line}: found conv2d with groups computed from sizes, wanted numbers that capture knows. "
        "Give example_inputs=(...,), so that the model is captured by torch.export, which knows the sizes."
    )
    calibrated_by(Blur(), [torch.randn(2, 3, 8, 8)], (torch.randn(2, 3, 8, 8),))
    with pytest.raises(CaptureError, match="found clamp with max computed from sizes"):
        qfunc.quantize(targets.onnxruntime)(Formulas(("y.clamp(max=y.size(1) / 4)",)))
    with pytest.raises(CaptureError, match="found leaky_relu with negative_slope computed from sizes"):
        qfunc.quantize(targets.litert)(Formulas(("F.leaky_relu(y, 1 / y.size(1))",)))


def test_tensors_of_computed_lengths_without_a_record_need_an_example():
    model, x = Formulas(("y + torch.linspace(0, 1, y.size(3))", "y @ torch.eye(y.size(3))")).eval(), torch.randn(2, 3, 8, 8)
    with pytest.raises(CaptureError, match="found linspace of numbers computed from sizes, wanted an op of tensors"):
        qfunc.quantize(targets.onnxruntime)(model)
    calibrated = calibrated_by(model, [x], (x,))
    assert qfunc.verify(targets.onnxruntime)(calibrated, [x]).agreement.startswith("bit-exact")


def test_a_number_that_varies_with_the_batch_is_no_constant_of_a_file():
    model, x = Formulas(("y.sum(0, keepdim=True) / (y.size(0) / 3)",)).eval(), torch.randn(2, 3, 8, 8)
    with pytest.raises(DeployError) as e:
        qfunc.deploy(targets.onnxruntime)(calibrated_by(model, [x]))
    assert str(e.value) == (
        "op 'truediv_1': found a size computed by %truediv : [num_users=1] = call_function[target=operator.truediv]"
        "(args = (%size, 3), kwargs = {}), wanted a size of an input, or +, -, *, // and % of sizes. "
        "Export with that axis fixed, or compute the size from sizes of the inputs."
    )


def test_maxima_of_an_exported_adaptive_pool():
    class Pooled(nn.Module):
        def forward(self, x):
            return F.adaptive_max_pool2d(x, 1)

    class Placed(nn.Module):
        def forward(self, x):
            values, places = F.adaptive_max_pool2d(x, 1, return_indices=True)
            return values + places

    x = torch.randn(2, 3, 8, 8)
    assert torch.equal(qfunc.capture((x,))(Pooled())(x), Pooled()(x))
    with pytest.raises(CaptureError, match="found the places of the maxima of a pool, wanted the maxima alone"):
        qfunc.capture((x,))(Placed())

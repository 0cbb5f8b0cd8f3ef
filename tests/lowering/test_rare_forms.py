"""Forms of ops that networks rarely have: each file loads, and the runtime computes the float network to a few LSB."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import qfunc
from qfunc import targets
from qfunc.errors import QfuncError
from qfunc.execution.joined_examples import in_model_order
from qfunc.specs import PerTensor, Target, edit

NHWC = (targets.litert, targets.litert_reference, targets.executorch_xnnpack)
CHANNELS_LAST = (*NHWC, targets.tosa)


class Net(nn.Module):
    """A function of a module's parts and its input."""

    def __init__(self, function: Callable[[Any, Tensor], Any], **parts: nn.Module | Tensor) -> None:
        super().__init__()
        self.function = function
        for name, part in parts.items():
            setattr(self, name, part if isinstance(part, nn.Module) else nn.Parameter(part))

    def forward(self, x: Tensor) -> Any:
        """The function's value."""
        return self.function(self, x)


def calibrated(model: nn.Module, target: Target, *shape: int, example: bool = False) -> tuple[Any, list[Tensor]]:
    """Return (the calibrated model, batches of 2, 3 and 1 examples, of which calibration saw the first)."""
    torch.manual_seed(0)
    batches = [torch.randn(n, *shape) for n in (2, 3, 1)]
    quantized = qfunc.quantize(target, (batches[0],))(model.eval()) if example else qfunc.quantize(target)(model.eval())
    return qfunc.calibrate(batches, progress=False)(quantized), batches


def runner_of(target: Target) -> Any:
    """Return the runner of a target; skip the test if its package is missing."""
    runner = target.runtime.runner
    if missing := getattr(runner, "missing", str)():
        pytest.skip(missing)
    return runner


def require_right(model: nn.Module, target: Target, *shape: int, steps: float = 8.0) -> None:
    """Require that the runtime equals the emulation, and is near the float network."""
    runner = runner_of(target)
    quantized, batches = calibrated(model, target, *shape)
    report = qfunc.verify(target)(quantized, batches)
    assert report.agreement.startswith("bit-exact"), report
    artifact = qfunc.deploy(target)(quantized)
    for batch in batches:
        wanted = [value.detach() for value in as_list(model(batch))]
        for found, value in zip(runner.run(artifact, [batch]), wanted, strict=True):
            lsb = max(float(value.max() - value.min()), 1e-6) / 255
            assert (torch.as_tensor(found) - value).abs().max() <= steps * lsb


def as_list(value: Any) -> Sequence[Tensor]:
    """Return tensors as a list."""
    return list(value) if isinstance(value, tuple | list) else [value]


def refusal(model: nn.Module, target: Target, *shape: int) -> str:
    """Return the message with which quantize or deploy refuses a model."""
    runner_of(target)
    with pytest.raises(QfuncError) as raised:
        qfunc.deploy(target)(calibrated(model, target, *shape)[0])
    return str(raised.value)


def conv(inputs: int = 3, outputs: int = 4) -> nn.Conv2d:
    """Return a convolution that keeps the size."""
    return nn.Conv2d(inputs, outputs, 3, padding=1)


@pytest.mark.parametrize("target", [*NHWC, targets.ncnn], ids=lambda t: t.name)
def test_glu_is_split_in_halves(target):
    require_right(Net(lambda s, x: F.glu(s.conv(x), 1), conv=conv()), target, 3, 6, 5, steps=16)
    require_right(Net(lambda s, x: F.glu(s.fc(x)), fc=nn.Linear(6, 8)), target, 5, 6, steps=16)


PADS = [(-1, -1, -1, -1), (-1, 2, 0, -1), (0, -2), (1, 0, -1, 0), (-1, 0, 0, 0, 1, -1)]


@pytest.mark.parametrize("pads", PADS, ids=str)
@pytest.mark.parametrize("target", [*NHWC, targets.ncnn], ids=lambda t: t.name)
def test_negative_pads_cut(target, pads):
    require_right(Net(lambda s, x: (F.pad(x, pads), F.pad(s.conv(x), pads)), conv=conv()), target, 3, 6, 5)


@pytest.mark.parametrize("pads", PADS, ids=str)
def test_negative_pads_of_codes_cut_in_tosa(pads):
    require_right(Net(lambda s, x: F.pad(s.conv(x), pads), conv=conv()), targets.tosa, 3, 6, 5)


MOVES = {
    "max_pool": lambda x: F.max_pool2d(x, 2),
    "nearest": lambda x: F.interpolate(x, scale_factor=2),
    "pool of a pool": lambda x: F.max_pool2d(F.avg_pool2d(x, 2), 1),
    "slice": lambda x: F.max_pool2d(x, 2)[:, 1:],
}


@pytest.mark.parametrize("move", MOVES.values(), ids=MOVES)
@pytest.mark.parametrize("target", [*CHANNELS_LAST, targets.ncnn], ids=lambda t: t.name)
def test_a_moved_input_is_flattened_in_the_model_s_order(target, move):
    def forward(net, x):
        moved = move(x)
        return net.head(moved.reshape(moved.size(0), -1))

    columns = move(torch.zeros(1, 3, 6, 8)).numel()
    require_right(Net(forward, head=nn.Linear(columns, 5)), target, 3, 6, 8)


@pytest.mark.parametrize("shape", [(5, 3, 3), (3, 5, 7), (1, 3, 3), (7, 5)], ids=str)
def test_ncnn_reads_inputs_of_any_size(shape):
    model = Net(lambda s, x: (F.relu(x), F.pad(x, (0, 1)), s.fc(x)), fc=nn.Linear(shape[-1], 4))
    require_right(model, targets.ncnn, *shape)


@pytest.mark.parametrize("target", [t for t in NHWC if not t.name.startswith("litert")], ids=lambda t: t.name)
@pytest.mark.parametrize("name", ["argmax", "argmin"])
def test_indices_that_a_model_computes_are_refused(target, name):
    message = refusal(Net(lambda s, x: getattr(s.conv(x), name)(1), conv=conv()), target, 3, 6, 5)
    if target is targets.ncnn:
        do = "Return or compute it outside of the deployed model."
        assert message == f"tensor '{name}': found int64 values, wanted float32. {do}"
        return
    because = "ExecuTorch 1.5, backends/xnnpack/serialization/schema.fbs: no such node, or not in that form"
    assert message == (
        f"target {target.name!r}, op '{name}': found the kind '{name}', wanted an op that XnnpackLowering() writes: {because}. "
        "Compute it outside the deployed model, or deploy Q/DQ ONNX by edit.deploy(QdqLowering()). "
        "To simulate it without a file, use attrs.evolve(target, lowering=None)."
    )


@pytest.mark.parametrize("token", [(1, 1, 6), (1, 6), (6,)], ids=str)
@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("target", NHWC, ids=lambda t: t.name)
def test_a_token_is_expanded_to_any_batch(target, token, count):
    def forward(net, x):
        return net.fc(torch.cat([net.token.expand(x.shape[0], count, -1), x], 1))

    require_right(Net(forward, token=torch.randn(token), fc=nn.Linear(6, 4)), target, 5, 6)


@pytest.mark.parametrize("order", ["indices", "indices, image", "image, indices"])
@pytest.mark.parametrize("kind", [torch.int64, torch.int32], ids=str)
def test_a_token_beside_indices_is_expanded_to_any_batch(order, kind):
    class Words(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding, self.token, self.fc = nn.Embedding(9, 6), nn.Parameter(torch.randn(1, 1, 6)), nn.Linear(6, 4)

        def forward(self, *given):
            indices, *images = given if not given[0].is_floating_point() else given[::-1]
            return self.fc(torch.cat([self.token.expand(indices.shape[0], -1, -1), self.embedding(indices), *images], 1))

    inputs = {"indices": torch.randint(0, 9, (2, 5), dtype=kind), "image": torch.randn(2, 3, 6)}
    batch = tuple(inputs[name] for name in order.split(", "))
    export = torch.export.export(Words().eval(), batch)
    model = qfunc.calibrate([batch], progress=False)(qfunc.quantize(targets.litert)(export))
    assert qfunc.verify(targets.litert)(model, [batch]).verdict.startswith("bit-exact: 0 of ")


PRODUCTS = {
    "linear": lambda: nn.Linear(9, 5),
    "conv": lambda: nn.Conv2d(4, 6, 3),
    "depthwise": lambda: nn.Conv2d(4, 4, 3, groups=4),
    "two filters a channel": lambda: nn.Conv2d(4, 8, 3, groups=4),
    "grouped": lambda: nn.Conv2d(4, 8, 3, groups=2, bias=False),
    "transposed": lambda: nn.ConvTranspose2d(4, 6, 2, 2),
    "norm": lambda: nn.BatchNorm2d(4),
}


@pytest.mark.parametrize("make", PRODUCTS.values(), ids=PRODUCTS)
@pytest.mark.parametrize("target", NHWC, ids=lambda t: t.name)
def test_weights_have_one_scale(target, make):
    one = edit.weights(granularity=PerTensor())(target)
    require_right(Net(lambda s, x: s.product(x), product=make()), one, 4, 9, 9)


@pytest.mark.parametrize("target", NHWC, ids=lambda t: t.name)
@pytest.mark.filterwarnings("ignore:quantize. found weights of zeros only")
@pytest.mark.parametrize("make", [lambda: nn.Linear(4, 5), lambda: nn.Conv2d(4, 5, 1)], ids=["linear", "conv"])
def test_a_multiplier_that_xnnpack_does_not_load_is_refused(target, make):
    product = make()
    with torch.no_grad():
        product.weight.zero_()
        product.bias.fill_(1e-9)
    message = refusal(Net(lambda s, x: s.product(x), product=product), target, 4, *[4] * (product.weight.ndim - 2 or 1))
    wanted = (
        r"tensor 'product(\.inner)?\.codes(\.nhwc)?': found s_x \* s_w / s_y = [0-9.e+]+, wanted a ratio below 2\^8\. "
        r"Calibrate on inputs of the deployed range\."
    )
    assert re.fullmatch(wanted, message), message


def test_ncnn_squares_negative_values():
    require_right(Net(lambda s, x: (x**2, s.conv(x) ** 2.0), conv=conv()), targets.ncnn, 3, 6, 5, steps=16)
    message = refusal(Net(lambda s, x: s.conv(x) ** 9, conv=conv()), targets.ncnn, 3, 6, 5)
    wanted = "one number from -8 to 8, or fractions: ncnn's power of negative values is NaN"
    assert message == f"op 'pow': found powers of [9.0], wanted {wanted}. Multiply."


def test_examples_are_joined_along_the_axis_of_the_batch():
    def forward(net, x):
        n, length, _ = x.shape
        q, k, v = net.qkv(x).view(n, length, 3, 2, 4).permute(2, 0, 3, 1, 4)
        return q @ k.transpose(-1, -2), v, net.qkv(x).view(n, length, 3, 8).permute(2, 0, 1, 3)

    target = targets.executorch_xnnpack
    runner_of(target)
    report = qfunc.verify(target)(*calibrated(Net(forward, qkv=nn.Linear(8, 24)), target, 5, 8))
    assert report.agreement.startswith("bit-exact: 0 of "), report
    assert not report.float_units


def test_a_wrong_example_is_not_joined_right():
    value = torch.arange(24.0).reshape(3, 2, 4)
    joined = torch.cat([value[:, i : i + 1] for i in range(2)])
    assert torch.equal(in_model_order(joined, value, 2), value)
    assert not torch.equal(in_model_order(joined.flip(0), value, 2), value)
    assert torch.equal(in_model_order(torch.cat([value, value]), value, 2), value)
    assert in_model_order(torch.cat([value, value + 1]), value, 2).shape == (6, 2, 4)


def test_examples_inside_of_a_merged_axis_are_compared_in_the_order_of_the_model():
    attention = nn.MultiheadAttention(12, 1, batch_first=True)
    target = targets.executorch_xnnpack
    runner_of(target)
    model = Net(lambda net, x: net.attention(x, x, x, need_weights=False)[0], attention=attention)
    report = qfunc.verify(target)(*calibrated(model, target, 4, 12, example=True))
    assert report.agreement.startswith("bit-exact"), report


EDITS = {
    "signed": edit.activations(signed=True),
    "symmetric": edit.activations(symmetric=True),
    "4 bits": edit.activations(bits=4),
}


@pytest.mark.parametrize("change", EDITS.values(), ids=EDITS)
def test_parts_of_a_split_have_codes_without_an_integer_kernel(change):
    def forward(net, x):
        a, b = net.conv(x).chunk(2, 1)
        first, _ = torch.split(torch.cat([x, x], 1), 3, 1)
        return a * b.sigmoid(), first

    require_right(Net(forward, conv=conv()), change(targets.onnxruntime), 3, 6, 5, steps=64)


@pytest.mark.parametrize("name", ["zeros", "ones"])
def test_a_size_among_separate_sizes_is_traced(name):
    model = Net(lambda s, x: s.fc(torch.cat([getattr(torch, name)(x.shape[0], 1, 6), x], 1)), fc=nn.Linear(6, 4))
    require_right(model, targets.onnxruntime, 5, 6)


@pytest.mark.parametrize("target", [*NHWC, targets.ncnn], ids=lambda t: t.name)
def test_a_window_that_begins_after_the_image_is_none(target):
    pool = nn.AvgPool2d(2, 2, padding=1, ceil_mode=True, count_include_pad=False)
    require_right(Net(lambda s, x: F.interpolate(pool(s.conv(x)), size=14), conv=conv()), target, 3, 12, 9)

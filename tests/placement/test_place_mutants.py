"""Where sites stand and which ops run as one unit, on graphs small enough to be read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from attrs import evolve
from torch import Tensor, fx, nn

import qfunc
from qfunc import targets
from qfunc.frontend.capture import capture
from qfunc.graph.selectors import Context, matches
from qfunc.graph.sites import quantizer_nodes
from qfunc.graph.view import QuantizedModel
from qfunc.ops.node import kind_of
from qfunc.placement.partition import Partition
from qfunc.placement.place import plan
from qfunc.specs import Int, KeepFloat, NonNegative, Op, Rule, Scheme, ZeroPoint, edit
from tests.onnxruntime_target import ONNXRUNTIME

ORT, TENSORRT = ONNXRUNTIME, targets.tensorrt


class Net(nn.Module):
    """A function of x and of two convolutions."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function
        self.a, self.b = nn.Conv2d(3, 3, 1), nn.Conv2d(3, 3, 1)

    def forward(self, x: Tensor) -> Any:
        return self.function(x, self.a, self.b)


def image() -> Tensor:
    return torch.randn(2, 3, 4, 5, generator=torch.Generator().manual_seed(1))


def units(function: Callable[..., Any]) -> list[list[str]]:
    """The kinds of each unit's ops on TensorRT, which fuses conv, add and activation."""
    model = capture()(Net(function).eval())
    return [[kind_of(n) for n in g.nodes] for g in plan(model, TENSORRT).groups.groups]


def coded(model: fx.GraphModule, *slots: str) -> list[str]:
    """The float tensors that have a site of these slots."""
    return [s.tensor for s in quantizer_nodes(model) if s.module.site.slot in slots]


def test_the_later_conv_absorbs_the_add() -> None:
    found = capture()(Net(lambda x, a, b: F.relu(a(x) + b(x))).eval())
    groups = [[n.name for n in g.nodes] for g in plan(found, TENSORRT).groups.groups]
    assert groups == [["a"], ["b", "add", "relu"]]
    made = qfunc.quantize(TENSORRT)(Net(lambda x, a, b: F.relu(a(x) + b(x))))
    assert coded(made, "input") == ["x", "a"]  # the earlier branch is the quantized residual


def test_a_sum_of_one_tensor_is_no_residual() -> None:
    assert units(lambda x, a, b: F.relu((lambda y: y + y)(a(x)))) == [["conv"], ["add", "relu"]]


def test_what_is_read_twice_is_not_fused_away() -> None:
    assert units(lambda x, a, b: (lambda y: (F.relu(y), y))(a(x))) == [["conv"], ["relu"]]
    assert units(lambda x, a, b: F.relu(a(x))) == [["conv", "relu"]]


class Product(nn.Module):
    """A product with a constant matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(7, 5))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.w


@pytest.mark.parametrize(
    ("model", "axis"),
    [(nn.Conv2d(3, 5, 2), 0), (nn.ConvTranspose2d(4, 6, 2), 1), (nn.Linear(7, 5), 0), (Product(), 1), (nn.Conv1d(4, 6, 3), 0)],
)
def test_weights_are_scaled_along_their_output_channels(model: nn.Module, axis: int) -> None:
    """A channel's scale is the largest magnitude of its own weights / 127."""
    (site,) = [s.module for s in quantizer_nodes(qfunc.quantize(TENSORRT)(model)) if s.module.site.slot == "weight"]
    weight = next(p for p in model.parameters() if p.ndim > 1).detach()
    largest = weight.movedim(axis, 0).flatten(1).abs().amax(1)
    assert site.scale.shape == tuple(n if i == axis else 1 for i, n in enumerate(weight.shape))
    assert torch.equal(site.scale.flatten(), (largest.double() / 127).float())


def test_a_bias_needs_both_scales() -> None:
    """s_bias = s_input * s_weight, so where either is missing the bias stays float."""
    net = nn.Linear(4, 3)
    for slots, wanted in (({}, True), ({"input": KeepFloat()}, False), ({"weight": KeepFloat()}, False)):
        target = edit.pipe(ORT, edit.add(edit.op("linear"), **slots)) if slots else ORT
        assert bool(coded(qfunc.quantize(target)(net), "bias")) is wanted


def test_no_two_quantizers_stand_in_series() -> None:
    made = qfunc.quantize(ORT)(Net(lambda x, a, b: b(F.max_pool2d(a(x), 2).flatten(2)[..., None])))
    assert coded(made, "input", "output") == ["x", "a", "b"]
    # The pooled tensor is also read by an op without a rule: it still carries the codes of what was pooled.
    made = qfunc.quantize(ORT)(Net(lambda x, a, b: (lambda m: (b(m), torch.tanh(m)))(F.max_pool2d(a(x), 2))))
    assert coded(made, "input", "output") == ["x", "a", "b"]


def test_nothing_is_quantized_inside_a_unit() -> None:
    made = qfunc.quantize(ORT)(Net(lambda x, a, b: b(F.relu(a(x)))))
    assert coded(made, "input", "output") == ["x", "relu", "b"]


@pytest.mark.parametrize(
    ("function", "wanted"),
    [
        (F.relu, True),
        (lambda x: x, False),
        (lambda x: x.clamp(0, 6), True),
        (lambda x: x.clamp(min=0.5), True),
        (lambda x: x.clamp(-0.5, 1), False),
        (lambda x: x.clamp(max=1), False),
        (lambda x: F.relu(x) + x.sigmoid(), True),
        (lambda x: F.relu(x) + x, False),
        (lambda x: F.relu(x) * 2.0, True),
        (lambda x: F.relu(x) * -2.0, False),
        (lambda x: F.relu(x) - 1.0, False),
        (lambda x: F.max_pool2d(F.relu(x), 2), True),
        (lambda x: F.pad(F.relu(x), (1, 1), value=-1.0), False),
        (lambda x: F.pad(F.relu(x), (1, 1)), True),
        (lambda x: torch.cat([F.relu(x), x.exp()]), True),
        (lambda x: torch.cat([F.relu(x), x]), False),
    ],
)
def test_what_has_no_negative_value_is_known_from_the_graph(function: Callable[[Tensor], Tensor], wanted: bool) -> None:
    model = capture()(Net(lambda x, a, b: function(a(x))).eval())
    (last,) = next(n for n in model.graph.nodes if n.op == "output").all_input_nodes
    assert matches(NonNegative(), last, Context(model)) is wanted
    assert not wanted or bool((model(image()) >= 0).all())


def partition(target: Any, function: Callable[..., Any]) -> dict[str, str]:
    """Unit -> why it runs in float, "" for integer units."""
    model = qfunc.calibrate([image()], progress=False)(qfunc.quantize(target)(Net(function).eval()))
    return {u.path: u.reason for u in Partition(QuantizedModel(model), target).units}


def test_a_kernel_takes_its_own_formats_only() -> None:
    four = edit.pipe(ORT, edit.activations(bits=4))
    assert partition(ORT, lambda x, a, b: a(x)) == {"a": ""}
    assert partition(four, lambda x, a, b: a(x)) == {"a": "the kernel does not take its formats"}


def test_a_relu_inside_the_codes_makes_a_float_unit() -> None:
    """With a zero point of 128 the clamp to the codes does not do the ReLU's work."""
    centred = Scheme(Int(8, signed=False), zero_point=ZeroPoint(value=128))
    target = evolve(ORT, rules=(Rule(Op("conv"), output=centred), *ORT.rules))
    assert partition(ORT, lambda x, a, b: F.relu(a(x))) == {"a": ""}
    assert partition(target, lambda x, a, b: F.relu(a(x))) == {"a": "ClampImplied does not hold"}


@pytest.mark.parametrize(("value", "wanted"), [(0.0, ["x", "a", "b"]), (50.0, ["x", "a", "pad", "b"])])
def test_a_pad_by_a_value_outside_the_range_has_its_own_qparams(value: float, wanted: list[str]) -> None:
    """Zero is in every range; any other value may not be, and must not be clamped to the range of what is padded."""
    net = Net(lambda x, a, b: b(F.pad(a(x), (1, 1), value=value))).eval()
    made = qfunc.calibrate([image()], progress=False)(qfunc.quantize(ORT)(net))
    assert coded(made, "input", "output") == wanted
    want, got = net(image()), made(image())
    assert (got - want).abs().max() < 0.02 * (want.max() - want.min())


@pytest.mark.parametrize(("low", "high"), [(-0.4, 0.3), (-0.3, 0.4)])
def test_both_bounds_of_a_clip_must_lie_at_the_ends_of_the_codes(low: float, high: float) -> None:
    """Around a zero point of 128 the wider side fills the codes, and the other bound lies inside them."""
    centred = Scheme(Int(8, signed=False), zero_point=ZeroPoint(value=128))
    target = evolve(ORT, rules=(Rule(Op("conv"), output=centred), *ORT.rules))
    assert partition(ORT, lambda x, a, b: a(x).clamp(low, high)) == {"a": ""}
    assert partition(target, lambda x, a, b: a(x).clamp(low, high)) == {"a": "ClampImplied does not hold"}


def test_codes_are_copied_between_equal_qparams_only() -> None:
    """A max pool with qparams of its own, for a range that is narrower than its input's, computes in float."""
    target = edit.pipe(ORT, edit.outputs(edit.op("max_pool"), ORT.rules[0].output))
    function = lambda x, a, b: F.max_pool2d(a(x), 2)  # noqa: E731
    assert partition(ORT, function) == {"a": "", "max_pool2d": ""}
    assert partition(target, function) == {"a": "", "max_pool2d": "SameQParams does not hold"}

"""The parts of reconstruction, each against its definition: soft rounding, losses, the cache, which axis runs over images."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import qfunc
from qfunc.frontend.capture import capture
from qfunc.functions import AdaRound
from qfunc.graph.sites import quantizer_nodes
from qfunc.quantizers.fake_quantize import FakeQuantize
from qfunc.reconstruction import Fisher, Regulariser, SquaredError
from qfunc.reconstruction.cache import Cache, Key
from qfunc.reconstruction.layout import BatchAxis, MixedBatchAxis, NoBatchAxis, NoTensor, layouts
from qfunc.reconstruction.losses import divergence, gradients_of_divergence, normalize
from qfunc.reconstruction.rounding import RoundingState, harden
from qfunc.specs import edit
from tests.reconstruction.small_nets import Chain, calibrated, images

# h, its slope and their products are computed in another order than autograd's: a few roundings of values up to 8.
ROUNDINGS = 64 * 2.0**-23


def sites(bits: tuple[int, int] = (3, 2)) -> list[tuple[FakeQuantize, Tensor]]:
    """Two weights of other shapes, widths and stretches, with their quantizers."""
    made = []
    for width, zeta, shape in zip(bits, (1.1, 1.3), ((4, 3, 2), (5, 7)), strict=True):
        function = AdaRound(zeta=zeta, gamma=1 - zeta)
        target = edit.weights(bits=width, function=function)(qfunc.targets.onnxruntime)
        layer: nn.Module = nn.Conv1d(3, 4, 2) if len(shape) == 3 else nn.Linear(7, 5)
        module = next(s.module for s in quantizer_nodes(qfunc.quantize(target)(layer)) if s.module.site.slot == "weight")
        weight: Any = layer.weight.detach()
        module.set_qparams(module.qparams(), weight)
        made.append((module, weight))
    return made


def test_the_weights_are_adarounds_soft_value_and_its_gradient_is_autograds() -> None:
    torch.manual_seed(0)
    given = sites()
    rounding = RoundingState(given)
    with torch.no_grad():
        for v in rounding.v:
            v.copy_(torch.randn_like(v) * 3)  # beyond where h is clipped, too
    weight, exponent = 0.3, 4.5
    rounding.soften()
    wanted = torch.zeros(())
    vs, upstreams = [], []
    for (module, w), soft, v in zip(given, rounding.weights, rounding.v, strict=True):
        vs.append(v.detach().view_as(w).clone().requires_grad_())
        function: Any = module.site.function
        params = module.params()._replace(v=vs[-1])
        upstreams.append(torch.randn_like(w))
        value = function.relax(params, w, module.scheme)
        assert (value - soft).abs().max() < ROUNDINGS
        wanted = wanted + (value * upstreams[-1]).sum() + weight * function.regulariser(params, exponent)
    wanted.backward()  # type: ignore[no-untyped-call]
    sum((w * u).sum() for w, u in zip(rounding.weights, upstreams, strict=True)).backward()  # type: ignore[union-attr]
    rounding.differentiate(weight, exponent)
    for found, v in zip(rounding.v, vs, strict=True):
        assert found.grad is not None
        assert v.grad is not None
        assert (found.grad.view_as(v) - v.grad).abs().max() < ROUNDINGS


def test_hardening_decides_and_soft_is_hard() -> None:
    (module, weight), _ = sites()
    up = torch.rand_like(weight) < 0.5
    harden(module, up)
    soft = module.train()(weight)
    assert torch.equal(soft, module.eval()(weight))
    low = module.site.function.apply(module.stored_params()._replace(v=torch.full_like(weight, -1)), weight, module.scheme)  # type: ignore[attr-defined]
    high = module.site.function.apply(module.stored_params()._replace(v=torch.full_like(weight, 1)), weight, module.scheme)  # type: ignore[attr-defined]
    assert torch.equal(soft, torch.where(up, high, low))


@pytest.mark.parametrize("weighted", [False, True])
def test_losses_are_sums_over_channels_and_means_over_the_rest(weighted: bool) -> None:
    found, wanted, importance = (torch.randn(2, 3, 4, 5, dtype=torch.float64) for _ in range(3))
    total = 0.0
    for n in range(2):
        for y in range(4):
            for x in range(5):
                for c in range(3):
                    square = float(found[n, c, y, x] - wanted[n, c, y, x]) ** 2
                    total += square * (float(importance[n, c, y, x]) if weighted else 1)
    loss: Any = Fisher() if weighted else SquaredError()
    assert float(loss.of(found, wanted, 3, importance)) == pytest.approx(total / (2 * 4 * 5), rel=1e-12)


def test_the_schedule_of_the_exponent() -> None:
    schedule = Regulariser(start=10, end=4, warm_up=0.5)
    assert [schedule.exponent(i, 8) for i in range(8)] == [None] * 4 + [10, 8.5, 7, 5.5]


@pytest.mark.parametrize("damping", [0.0, 0.5])
def test_importances_are_squared_gradients_of_the_divergence_of_each_image(damping: float) -> None:
    """By autograd, image by image; damped, and divided by their mean."""
    from qfunc.graph.float_network import float_network, network_so_far

    x = images(5)
    model = calibrated(Chain(1), [x])
    real, quantized = float_network(model), network_so_far(model)
    layout = layouts(real, {"x": x[:3]}, {"x"})
    with Cache(5, 1 << 20) as cache:
        cache.write(Key("float", "x"), 0, x, BatchAxis())
        sums = gradients_of_divergence(real, quantized, ["x"], ["relu"], layout, cache, [(0, 2), (2, 4), (4, 5)])
        normalize([sums], damping, cache)
        found = cache.part(Key("gradient", "relu"), 0, 5)
    rows = []
    for image in x:
        seen: list[Tensor] = []
        net = Chain(1)
        net.load_state_dict({k: v for k, v in model.state_dict().items() if not k.startswith("quantizers")})
        wanted = net(image[None]).log_softmax(-1).detach()
        hidden = torch.relu(nn.functional.conv2d(_hat(model, "x", image[None]), *_weights(model, "body.0"), padding=1))
        seen.append(hidden.detach().requires_grad_())
        scores = nn.functional.linear(_hat(model, "mean", seen[0].mean((2, 3))), *_weights(model, "head"))
        loss = (wanted.exp() * (wanted - scores.log_softmax(-1))).sum()
        rows.append(torch.autograd.grad(loss, seen[0])[0])
    size = torch.cat(rows).abs()
    square = (size / (size**2).mean().sqrt() + damping) ** 2
    assert torch.allclose(found, square / square.mean(), rtol=1e-3, atol=1e-5)  # gradients of 1e-3, from sums in float32
    assert float(divergence(torch.tensor([[1.0, 2.0]]), torch.tensor([[1.0, 2.0]]))) == 0


def _hat(model: Any, name: str, x: Tensor) -> Tensor:
    return next(s.module for s in quantizer_nodes(model) if s.tensor == name).eval()(x)


def _weights(model: Any, path: str) -> tuple[Tensor, Tensor]:
    module = next(s.module for s in quantizer_nodes(model) if s.module.site.name == f"{path}.weight")
    return module.eval()(model.get_parameter(f"{path}.weight")), model.get_parameter(f"{path}.bias")


def test_the_cache_takes_gives_and_spills() -> None:
    value = torch.randn(5, 4, 3)
    rows = BatchAxis(axis=1, each=2)
    wide = torch.randn(7, 10, 3)
    with Cache(5, memory=5 * 12 * 4) as cache:
        for start in (0, 2, 4):
            cache.write(Key("float", "a"), start, value[start : start + 2], BatchAxis())
            cache.write(Key("float", "b"), start, wide[:, 2 * start : 2 * start + 4], rows)
        index = torch.tensor([4, 1])
        assert cache.spilled == wide.numel() * 4
        assert cache.used == cache.most == value.numel() * 4
        assert torch.equal(cache.take(Key("float", "a"), index), value[index])
        assert torch.equal(cache.take(Key("float", "b"), index), wide[:, [8, 9, 2, 3]])
        assert torch.equal(cache.part(Key("float", "b"), 1, 3), wide[:, 2:6])
        folder = cache._folder
        assert folder is not None
        assert os.path.isdir(folder.name)
        cache.drop(Key("float", "a"))
        assert cache.used == 0
        cache.write(Key("float", "c"), 0, value[:3, :2], BatchAxis())
        assert cache.spilled == wide.numel() * 4
    assert not os.path.exists(folder.name)


def test_the_axis_of_the_images_is_found() -> None:
    class Windows(nn.Module):
        def forward(self, x: Tensor, table: Tensor) -> Any:
            b, n, c = x.shape
            windows = x.reshape(b * 2, n // 2, c)
            turned = x.transpose(0, 1)
            fixed = table * 2
            mixed = x - x.mean(0, keepdim=True)
            mean = x.mean(0)
            return windows, turned, fixed, mixed, mean

    network = capture()(Windows())
    found = layouts(network, {"x": torch.randn(3, 4, 5), "table": torch.randn(4, 5)}, {"x"})
    kinds = {
        k: v for k, v in found.items() if k in ("reshape", "transpose", "mul", "mul_1", "sub", "mean_1", "x", "table", "output")
    }
    assert kinds == {
        "x": BatchAxis(), "table": NoBatchAxis(), "reshape": BatchAxis(0, 2), "transpose": BatchAxis(1, 1),
        "mul_1": NoBatchAxis(),
        "mul": NoTensor(), "sub": MixedBatchAxis(),
        "mean_1": MixedBatchAxis(), "output": NoTensor(),
    }  # fmt: skip

"""Targets whose ops compute in float between codes: Tengine, NNIE, and ONNX's Q/DQ as its operators are defined."""

from __future__ import annotations

from fractions import Fraction
from math import floor

import numpy as np
import pytest
import torch
from attrs import evolve
from torch import Tensor, nn

import qfunc
from qfunc import targets
from qfunc.graph.interpreter import ObservingInterpreter
from qfunc.graph.sites import quantizer_nodes
from qfunc.graph.view import QuantizedModel
from qfunc.numerics.qparams import from_range
from qfunc.placement.partition import Partition
from qfunc.specs import Int
from qfunc.targets.runtimes import OnnxRuntimeRunner
from qfunc.testing.oracle import rounded
from qfunc.testing.small_models import Block, SmallNet

TENGINE = targets.tengine_u8
STEPS = (
    Block("conv", 3, 8, 3, act="relu", norm=True), Block("add", 8, 8, 3, act="relu6"), Block("concat", 8, 4, 1),
    Block("avg_pool", kernel=3, stride=2), Block("mul", 12, 12, 1), Block("max_pool", kernel=3, stride=2),
    Block("conv", 12, 12, 3, groups=12), Block("mean"), Block("linear", 12, 5),
)  # fmt: skip


def _calibrated(target, net: nn.Module, x: Tensor):
    return qfunc.calibrate([x], progress=False)(qfunc.quantize(target)(net))


def test_zero_points_of_tengine_are_truncated() -> None:
    """z = int(-min / s), which is one less than the rounded one half of the time."""
    scheme = TENGINE.rules[0].input
    assert scheme.format == Int(8, signed=False)
    truncated = 0
    for k in range(1, 200):
        low, high = torch.tensor(-k / 64), torch.tensor(1.0)
        scale, zero = from_range(low, high, scheme)[:2]
        exact = Fraction(k, 64) / Fraction(float(scale))
        assert int(zero) == floor(exact)
        truncated += rounded(exact, "half_even") != floor(exact)
    assert truncated > 50


class Layer(nn.Module):
    """A convolution with dyadic weights: every float32 sum is exact, so that its order does not count."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)
        with torch.no_grad():
            self.conv.weight.mul_(64).round_().div_(64).clamp_(-1.5, 1.5)
            self.conv.weight[0, 0, 0, 0], self.conv.weight[1, 0, 0, 0] = -1.5, 2.484375  # s = 1/64, z = 96
            self.conv.bias.mul_(4096).round_().div_(4096)

    def forward(self, x: Tensor) -> Tensor:
        """[N, 3, H, W]."""
        return torch.relu(self.conv(x))


def test_tengine_dequantizes_multiplies_in_float_and_rounds_half_away() -> None:
    """Exact rationals, one output at a time: sum of (q_x - z_x) s_x (q_w - z_w) s_w + bias, R(y / s) + z."""
    torch.manual_seed(0)
    net, x = Layer().eval(), torch.randint(-96, 160, (2, 3, 6, 7)) / 64
    x[0, 0, 0, :2] = torch.tensor([-1.5, 2.484375])
    weight = net.conv.weight.detach()  # between the codes, but for the extremes, from which the scale follows
    weight[(weight > weight.min()) & (weight < weight.max())] += 1 / 256
    model = _calibrated(TENGINE, net, x)
    found: dict[str, Tensor] = {}
    ObservingInterpreter(qfunc.emulate(TENGINE)(model), found.__setitem__).run(x, enable_io_processing=False)
    held = {s.module.site.name: s.module.qparams() for s in quantizer_nodes(model)}
    (s_x, z_x, *_), (s_w, z_w, *_), (s_y, z_y, *_) = (held[n] for n in ("x", "conv.weight", "relu"))
    assert float(s_x) == float(s_w) == 1 / 64
    assert (int(z_x), int(z_w)) == (96, 96)
    bias = [rounded(Fraction(b) * 4096, "half_away") for b in net.conv.bias.tolist()]
    q = np.pad(found["x_codes"].numpy().astype(np.int64) - 96, [(0, 0), (0, 0), (1, 1), (1, 1)])
    w = torch.round(net.conv.weight.detach() * 64).long().numpy()
    above = 0
    for n, o, i, j in np.ndindex(2, 4, 6, 7):
        acc = int((q[n, :, i : i + 3, j : j + 3] * w[o]).sum()) + bias[o]
        code = rounded(Fraction(float(np.float32(acc / 4096) / np.float32(s_y))), "half_away") + int(z_y)
        assert int(found["relu"][n, o, i, j]) == min(max(code, int(z_y)), 255)
        above += acc > 0
    assert above > 50


def test_every_unit_of_tengine_computes_on_codes() -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 3, 33, 31)
    partition = Partition(QuantizedModel(_calibrated(TENGINE, SmallNet(STEPS), x)), TENGINE)
    assert [u.path for u in partition.units if not u.integer] == []


def test_tengine_writes_softmax_in_255ths() -> None:
    torch.manual_seed(0)
    model = _calibrated(TENGINE, nn.Sequential(nn.Linear(4, 5), nn.Softmax(-1)).eval(), torch.randn(3, 4))
    (site,) = [s.module for s in quantizer_nodes(model) if s.tensor == "_1"]
    assert site.qparams().scale == torch.tensor(1 / 255)
    assert int(site.qparams().zero_point) == 0


def _nnie(x: float, z: int) -> float:
    # The vendor's format as documented: 16 steps an octave, one code for 0, no code for the smallest negative.
    if x > 2 ** ((z - 16) / 16):
        return 2 ** ((min(max(round(16 * np.log2(x)) - z, 0), 127) + z) / 16)
    if x < -(2 ** ((z + 1 - 16) / 16)):
        return -(2 ** ((min(max(round(16 * np.log2(-x)) - z, 1), 127) + z) / 16))
    return 0.0


def test_nnie_decodes_its_codes_and_computes_in_float() -> None:
    torch.manual_seed(0)
    net, x = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 4)).eval(), torch.randn(7, 6)
    model = _calibrated(targets.nnie, net, x)
    held = {s.module.site.name: round(16 * float(torch.log2(s.module.qparams().scale))) for s in quantizer_nodes(model)}

    def coded(value: Tensor, name: str) -> Tensor:
        return torch.tensor([_nnie(v, held[name]) for v in value.flatten().tolist()]).reshape(value.shape)

    with torch.no_grad():
        hidden = torch.relu(coded(x, "input") @ coded(net[0].weight, "0.weight").T + net[0].bias)
        wanted = coded(hidden, "1") @ coded(net[2].weight, "2.weight").T + net[2].bias
        found = qfunc.emulate(targets.nnie)(model)(x)
    # Sums of six terms in float32, whose order is the library's; a code more or less would be 4 %.
    assert torch.allclose(found, wanted, rtol=1e-5, atol=1e-6)


def test_nnie_between_units_travel_codes() -> None:
    torch.manual_seed(0)
    net, x = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 2, 1)).eval(), torch.randn(2, 3, 6, 7)
    model, found = _calibrated(targets.nnie, net, x), {}
    emulated = qfunc.emulate(targets.nnie)(model)
    ObservingInterpreter(emulated, found.__setitem__).run(x, enable_io_processing=False)
    codes = [v for n, v in found.items() if n.endswith("_codes")]
    assert len(codes) == 2
    for c in codes:
        assert torch.equal(c, torch.round(c))
        assert 0 <= int(c.min()) <= int(c.max()) <= 255
    assert torch.equal(emulated(x), model.eval()(x)), "every op of the simulation is float too"


def test_qdq_is_what_onnx_runtime_evaluates_without_optimisations() -> None:
    """Dyadic weights and inputs: every float sum is exact, so that codes and outputs are equal bit for bit."""
    torch.manual_seed(0)
    net = SmallNet(STEPS)
    x = torch.randint(-64, 64, (2, 3, 33, 31)) / 32
    with torch.no_grad():
        for p in net.parameters():
            p.mul_(64).round_().div_(64)
    model = _rounded(_calibrated(targets.qdq, net, x))
    artifact = qfunc.deploy(targets.qdq)(model)
    (found,) = OnnxRuntimeRunner(optimise=False, threads=1).run(artifact, [x])
    emulated = qfunc.emulate(targets.qdq)(model)(x).detach()
    assert [u.path for u in Partition(QuantizedModel(model), targets.qdq).units if u.integer] == []
    assert torch.equal(emulated, torch.from_numpy(found))


def _rounded(model):
    from qfunc.testing.pipeline import _rounded as powers

    return powers(model, ())


@pytest.mark.parametrize("target", [targets.qdq, targets.nnie], ids=lambda t: t.name)
def test_the_emulation_of_float_ops_is_the_simulation(target) -> None:
    torch.manual_seed(1)
    x = torch.randn(2, 3, 33, 31)
    dense = tuple(evolve(s, stride=1) if "pool" in s.kind else s for s in STEPS)  # NNIE rounds the sizes of others up
    model = _calibrated(target, SmallNet(dense), x)
    with torch.no_grad():
        assert torch.equal(qfunc.emulate(target)(model)(x), model.eval()(x))

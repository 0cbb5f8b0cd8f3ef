"""The DPU: every code of a network against integers and shifts written out here."""

from __future__ import annotations

from fractions import Fraction
from math import ceil, floor, log2

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from attrs import evolve
from torch import Tensor, nn

import qfunc
from qfunc import targets
from qfunc.errors import EmulationError
from qfunc.functions import Tqt
from qfunc.graph.interpreter import ObservingInterpreter
from qfunc.graph.sites import quantizer_nodes
from qfunc.graph.view import QuantizedModel
from qfunc.numerics.kernels import addition, pooling, requantize
from qfunc.numerics.qparams import Affine
from qfunc.placement.partition import Partition
from qfunc.specs import Scale, edit

DPU = targets.vitis


class Net(nn.Module):
    """Convolutions with ReLU, ReLU6 and nothing, depthwise, a residual, a concat, a product, four pools, a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1, groups=4)
        self.c, self.d = nn.Conv2d(4, 2, 1, bias=False), nn.Conv2d(6, 6, (3, 1), stride=2)
        self.e, self.fc = nn.Conv2d(6, 6, 1), nn.Linear(6, 5)

    def forward(self, x: Tensor) -> Tensor:
        """[N, 3, 17, 19] -> [N, 5]."""
        a = F.relu6(self.a(x))
        s = F.relu(a + self.b(a))
        p = F.avg_pool2d(F.max_pool2d(torch.cat([s, self.c(s)], 1), 2), 3, stride=1, padding=1)
        d = F.avg_pool2d(self.d(p), (1, 5), stride=1)
        m = d * self.e(d)
        return self.fc(m.mean((2, 3)))


def _half_up(value, shift: int):
    """floor(value / 2^shift + 1/2) of int64."""
    return value << -shift if shift <= 0 else (value + (1 << (shift - 1))) >> shift


def _clamp(value, low: int = -128, high: int = 127):
    return np.clip(value, low, high)


def _stored(value: Tensor, position: int):
    """Codes of a constant: half away from zero, by exact rationals."""
    flat = [Fraction(v) * Fraction(2) ** position for v in value.flatten().tolist()]
    codes = [(1 if v >= 0 else -1) * floor(abs(v) + Fraction(1, 2)) for v in flat]
    return _clamp(np.array(codes, dtype=np.int64)).reshape(tuple(value.shape))


def _convolved(x, w, stride: int, pads: tuple[int, int], groups: int):
    x = np.pad(x, [(0, 0), (0, 0), (pads[0],) * 2, (pads[1],) * 2])
    (n, _, height, width), (outs, ins, kh, kw) = x.shape, w.shape
    rows, columns = (height - kh) // stride + 1, (width - kw) // stride + 1
    y = np.zeros((n, outs, rows, columns), dtype=np.int64)
    for o in range(outs):
        first = o // (outs // groups) * ins
        for i in range(rows):
            for j in range(columns):
                window = x[:, first : first + ins, i * stride : i * stride + kh, j * stride : j * stride + kw]
                y[:, o, i, j] = (window * w[o]).sum((1, 2, 3))
    return y


class Chip:
    """The network on codes; `p` are positions by the names of sites, `codes` what each unit writes."""

    def __init__(self, net: Net, positions: dict[str, int]) -> None:
        self.net, self.p, self.codes = net, positions, {}
        self.shifts: dict[str, int] = {}

    def layer(self, x, name: str, i: str, o: str, low: int = -128, high: int = 127):
        """A convolution or linear layer: the bias stands at its own position, behind the point if it must."""
        module, p = getattr(self.net, name), self.p
        w = _stored(module.weight.detach(), p[f"{name}.weight"])
        linear = isinstance(module, nn.Linear)
        acc = x @ w.T if linear else _convolved(x, w, module.stride[0], module.padding, module.groups)
        place, bits = p[f"{name}.weight"] + p[i], 0
        if module.bias is not None:
            shift = self.shifts[name] = place - p[f"{name}.bias"]
            bits = max(0, -shift)
            b = _stored(module.bias.detach(), p[f"{name}.bias"]) << (shift + bits)
            acc = (acc << bits) + (b if linear else b.reshape(-1, 1, 1))
        self.codes[o] = _clamp(_half_up(acc, place + bits - p[o]), low, high)
        return self.codes[o]

    def pool(self, total, i: str, o: str, k: int, n: int):
        """sum * k / 2^n, shifted to the output's position."""
        self.codes[o] = _clamp(_half_up(total * k, n + self.p[i] - self.p[o]))
        return self.codes[o]

    def run(self, x: Tensor) -> None:
        """Fills `codes`, named after the nodes of the float network."""
        p = self.p
        q = np.array([floor(Fraction(v) * Fraction(2) ** p["x"] + Fraction(1, 2)) for v in x.flatten().tolist()])
        self.codes["x_codes"] = q = _clamp(q.astype(np.int64)).reshape(tuple(x.shape))
        a = self.layer(q, "a", "x", "relu6", 0, min(127, 6 << p["relu6"]))
        b = self.layer(a, "b", "relu6", "b")
        last = max(p["relu6"], p["b"])
        total = (a << (last - p["relu6"])) + (b << (last - p["b"]))
        self.codes["relu"] = s = _clamp(_half_up(total, last - p["relu"]), 0)
        c = self.layer(s, "c", "relu", "c")
        assert p["relu"] == p["c"] == p["cat"], "the tie of concat"
        t = np.concatenate([s, c], 1)
        t = t[:, :, :16, :18].reshape(t.shape[0], 6, 8, 2, 9, 2).max((3, 5))
        padded = np.pad(t, [(0, 0), (0, 0), (1, 1), (1, 1)])
        nine = sum(padded[:, :, i : i + 8, j : j + 9] for i in range(3) for j in range(3))
        v = self.pool(nine, "cat", "avg_pool2d", 7, 6)
        d = self.layer(v, "d", "avg_pool2d", "d")
        five = sum(d[..., j : j + d.shape[-1] - 4] for j in range(5))
        k, n = _nearest(5)
        d = self.pool(five, "d", "avg_pool2d_1", k, n)
        e = self.layer(d, "e", "avg_pool2d_1", "e")
        self.codes["mul"] = m = _clamp(_half_up(d * e, p["avg_pool2d_1"] + p["e"] - p["mul"]))
        k, n = _nearest(m.shape[2] * m.shape[3])
        g = self.pool(m.sum((2, 3)), "mul", "mean", k, n)
        self.layer(g, "fc", "mean", "fc")


def _nearest(count: int) -> tuple[int, int]:
    """k / 2^n nearest to 1 / count, by trying all of them: n < 7 + ceil(log2 count)."""
    tries = [(k, n) for n in range(7 + ceil(log2(count))) for k in range(2**n + 1)]
    return min(tries, key=lambda t: abs(Fraction(t[0], 2 ** t[1]) - Fraction(1, count)))


def _made(size: float) -> tuple[Net, Tensor]:
    torch.manual_seed(5)
    net = Net().eval()
    with torch.no_grad():
        net.d.weight.mul_(24 * size)  # large products and a small bias: shift_bias is negative
        net.d.bias.mul_(0.02)
        net.a.bias.mul_(4)
    return net, 1.5 * size * torch.randn(2, 3, 17, 19)


@pytest.mark.parametrize("size", [1.0, 8.0])
def test_every_code_is_that_of_shifts_on_integers(size: float) -> None:
    net, x = _made(size)
    model = qfunc.calibrate([x, 2 * x], progress=False)(qfunc.quantize(DPU)(net))
    partition = Partition(QuantizedModel(model), DPU)
    assert [u.path for u in partition.units if not u.integer] == []
    positions = {s.module.site.name: -int(torch.log2(s.module.qparams().scale)) for s in quantizer_nodes(model)}
    chip, found = Chip(net, positions), {}
    compared = 0
    for batch in (x, 3 * x.flip(0)):  # the second saturates
        ObservingInterpreter(qfunc.emulate(DPU)(model), found.__setitem__).run(batch, enable_io_processing=False)
        chip.run(batch)
        for name, codes in chip.codes.items():
            assert np.array_equal(found[name].numpy(), codes), name
            compared += codes.size
    assert compared > 20_000
    assert len(chip.codes) == 12
    if size > 1:
        assert chip.shifts["d"] < 0 < chip.shifts["a"]


def test_rounding_is_half_up_for_activations_and_half_away_for_constants() -> None:
    schemes = {s.module.site.slot: s.module.site.scheme for s in quantizer_nodes(qfunc.quantize(DPU)(_made(1.0)[0]))}
    x, one = torch.tensor([-1.5, -0.5, 0.5, 1.5]), Affine(torch.tensor(1.0), torch.tensor(0.0))
    scaled = {slot: Tqt().apply(Tqt().init(one, x, scheme), x, scheme) for slot, scheme in schemes.items()}
    assert scaled["output"].tolist() == [-1.0, 0.0, 1.0, 2.0]
    assert scaled["weight"].tolist() == scaled["bias"].tolist() == [-2.0, -1.0, 1.0, 2.0]


@pytest.mark.parametrize("bits", [0, 1, 6])
def test_a_bias_behind_the_point_is_rounded_once(bits: int) -> None:
    """R((acc + b 2^-n) / 2^k): rounding the bias first would move ties."""
    accs, b, k = list(range(-40, 41)), [-1, 0, 1, 3, 31], 2
    for bias in b:
        acc = requantize.add_fractional_bias(torch.tensor(accs).float(), torch.tensor([bias]), bits, 0)
        found = requantize.requantize_shift(acc, torch.tensor(k + bits), 0, -128, 127, "half_up")
        exact = [(a + Fraction(bias, 2**bits)) / 2**k for a in accs]
        assert found.tolist() == [floor(v + Fraction(1, 2)) for v in exact]


@pytest.mark.parametrize(("left", "shift"), [([0, 3], 4), ([7, 0], 7), ([2, 0], -1), ([0, 0], 0)])
def test_sums_by_shifts(left: list[int], shift: int) -> None:
    a, b = list(range(-128, 128)), [(61 * k) % 256 - 128 for k in range(256)]
    found = addition.add_by_shifts(
        torch.tensor(a).float(), torch.tensor(b).float(), (3, -2), left, shift, "half_up", 5, -128, 127
    )
    pairs = zip(a, b, strict=True)
    exact = [Fraction((p - 3) * 2 ** left[0] + (q + 2) * 2 ** left[1]) / Fraction(2) ** shift for p, q in pairs]
    assert found.tolist() == [min(max(floor(v + Fraction(1, 2)) + 5, -128), 127) for v in exact]


@pytest.mark.parametrize("window", [(1, 1), (1, 2), (2, 3), (4, 4), (5, 3), (9, 9), (31, 7)])
def test_reciprocals_that_are_not_listed_are_the_nearest(window: tuple[int, int]) -> None:
    assert pooling.reciprocal(list(window), [], 7) == _nearest(window[0] * window[1])


def test_pools_of_one_and_three_axes_and_without_reciprocals() -> None:
    """Sums by `unfold`, zero points counted as padding, an exact division."""
    line = torch.randint(-128, 128, (2, 3, 11)).float()
    found = pooling.average_codes(line, -7, 1, [[3], [2], [1]], True, 1.0, [], None, "half_up", -7, -128, 127)
    windows = F.pad(line + 7, (1, 1)).unfold(2, 3, 2).sum(-1)
    assert found.tolist() == [
        [[floor(Fraction(int(v), 3) + Fraction(1, 2)) - 7 for v in r] for r in n] for n in windows.tolist()
    ]
    cube = torch.randint(-128, 128, (1, 2, 4, 4, 6)).float()
    found = pooling.average_codes(cube, 0, 3, [[2, 2, 2], [2, 2, 2], [0, 0, 0]], True, 0.5, [], None, "half_up", 0, -128, 127)
    total = cube.unfold(2, 2, 2).unfold(3, 2, 2).unfold(4, 2, 2).sum((-1, -2, -3))
    assert torch.equal(found, torch.floor(total / 16 + 0.5))


def test_scales_that_are_no_powers_of_two_are_refused() -> None:
    free = evolve(DPU, rules=tuple(_free(r) for r in DPU.rules), limits=(), legality=())
    free = edit.activations(function=qfunc.functions.Fixed(), estimator=qfunc.estimators.MinMax())(free)
    free = edit.weights(function=qfunc.functions.Fixed(), estimator=qfunc.estimators.MinMax())(free)
    net, x = _made(1.0)
    with pytest.raises(
        EmulationError, match=r"unit 'a': found scales by ratios of .* wanted powers of two, 2\^-40 to 2\^40 apart"
    ):
        qfunc.emulate(free)(qfunc.calibrate([x], progress=False)(qfunc.quantize(free)(net)))


def _free(rule):
    slots = {s: evolve(v, scale=Scale()) for s in ("input", "weight", "output") if (v := getattr(rule, s)) is not None}
    return evolve(rule, **slots)

"""Ranges of weights are those that the chip stores: with the norms after a reader, however they are written, folded."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import qfunc
from qfunc import targets
from qfunc.specs import edit


class Frozen(nn.Module):
    """x * scale + shift with buffers, as detectors write a frozen BatchNorm."""

    def __init__(self, scale: Tensor, shift: Tensor) -> None:
        super().__init__()
        self.register_buffer("scale", scale)
        self.register_buffer("shift", shift)

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale.view(1, -1, 1, 1) + self.shift.view(1, -1, 1, 1)


class Functional(nn.Module):
    """F.batch_norm with the tensors of a BatchNorm."""

    def __init__(self, norm: nn.BatchNorm2d) -> None:
        super().__init__()
        self.tensors = [("w", norm.weight), ("b", norm.bias), ("mean", norm.running_mean), ("var", norm.running_var)]
        for name, value in self.tensors:
            self.register_buffer(name, value.detach().clone())

    def forward(self, x: Tensor) -> Tensor:
        return F.batch_norm(x, self.mean, self.var, self.w, self.b, False, 0.0, 1e-5)


def norm(channels: int, spread: float) -> nn.BatchNorm2d:
    """A BatchNorm whose factors differ by orders of magnitude, without a channel that is constant: |beta| <= 3 |gamma|."""
    made = nn.BatchNorm2d(channels)
    made.running_mean.normal_()
    made.running_var.copy_(10 ** torch.empty(channels).uniform_(-spread, spread))
    made.weight.data.copy_(10 ** torch.empty(channels).uniform_(-spread, spread))
    made.bias.data.copy_(made.weight.data * torch.empty(channels).uniform_(-2.9, 2.9))
    return made


def factor(made: nn.BatchNorm2d) -> Tensor:
    """gamma / sqrt(var + eps) in float64."""
    return (made.weight.double() / (made.running_var.double() + made.eps).sqrt()).detach()


READERS = {
    "conv": lambda: nn.Conv2d(8, 6, 3, padding=1, bias=False),
    "grouped": lambda: nn.Conv2d(8, 6, 3, padding=1, groups=2),
    "depthwise": lambda: nn.Conv2d(8, 8, 3, padding=1, groups=8, bias=False),
    "transposed": lambda: nn.ConvTranspose2d(8, 6, 2, groups=2),
}
NORMS = {
    "module": lambda n: n,
    "function": Functional,
    "arithmetic": lambda n: Frozen(factor(n).float(), (n.bias - n.running_mean * factor(n)).detach().float()),
    "after a dropout": lambda n: nn.Sequential(nn.Dropout(), n),
}


class Block(nn.Module):
    """A conv with a norm, a ReLU, and a reader with a norm that an addition follows, as in a ResNet."""

    def __init__(self, reader: nn.Module, after: nn.Module, first: nn.BatchNorm2d, front: nn.Module) -> None:
        super().__init__()
        self.front, self.a, self.na, self.b, self.nb = front, nn.Conv2d(3, 8, 3, bias=False), first, reader, after

    def forward(self, x: Tensor) -> Tensor:
        y = self.nb(self.b(torch.relu(self.na(self.a(self.front(x))))))
        return y + y.mean()


def by_channel(weight: Tensor, op: nn.Module, f: Tensor) -> list[float]:
    """The largest |w f| of each input channel, read one output at a time."""
    groups, transposed = op.groups, isinstance(op, nn.ConvTranspose2d)
    ins, outs = op.in_channels // groups, op.out_channels // groups
    found = []
    for i in range(op.in_channels):
        g, inner = divmod(i, ins)
        outputs = range(g * outs, (g + 1) * outs)
        windows = {o: weight[i, o - g * outs] if transposed else weight[o, inner] for o in outputs}
        found.append(max(float(w.abs().max() * f[o].abs()) for o, w in windows.items()))
    return found


@pytest.mark.parametrize("front", [False, True], ids=["", "norm in front"])
@pytest.mark.parametrize("spelling", NORMS)
@pytest.mark.parametrize("reader", READERS)
def test_rows_and_columns_of_folded_weights_are_equal(reader, spelling, front):
    torch.manual_seed(sum(map(ord, reader + spelling)) + front)
    op = READERS[reader]()
    op.weight.data.mul_(10 ** torch.empty_like(op.weight).uniform_(-1, 1))
    first, last, before = norm(8, 0.5), norm(op.out_channels, 1.5), norm(3, 1.0)
    net = Block(op, NORMS[spelling](last), first, before if front else nn.Identity()).eval()
    equal = qfunc.equalize()(net)
    f, along = factor(equal.na), factor(before) if front else torch.ones(3).double()
    rows = (equal.a.weight.double() * f.view(-1, 1, 1, 1) * along.view(1, -1, 1, 1)).abs().flatten(1).amax(1).tolist()
    columns = by_channel(equal.get_parameter("b.weight").detach().double(), op, factor(last))
    # The last step of each s is within 1e-3 of 1, and weights are rounded to float32.
    assert rows == pytest.approx(columns, rel=2.1e-3)
    pairs = qfunc.corrections.equalization_pairs(net).rows
    stored = (
        (net.a.weight.detach().double() * factor(net.na).view(-1, 1, 1, 1) * along.view(1, -1, 1, 1)).abs().flatten(1).amax(1)
    )
    read = torch.tensor(by_channel(op.weight.detach().double(), op, factor(last)))
    assert [(p.first, p.second) for p in pairs] == [pytest.approx(tuple(float((r / r.max()).mean()) for r in (stored, read)))]


def test_a_network_folded_by_hand_gets_the_same_factors():
    """Three convs with BatchNorms, of which the last one's output is added: all folded weights are the same."""
    torch.manual_seed(4)
    sizes = [(3, 8), (8, 8), (8, 5)]
    convs, norms = [nn.Conv2d(i, o, 3, bias=False) for i, o in sizes], [norm(o, 1.0) for _, o in sizes]
    layers = [m for c, n in zip(convs, norms, strict=True) for m in (c, n, nn.ReLU())]
    net, by_hand = nn.Sequential(*layers[:-1]).eval(), []
    for c, n in zip(convs, norms, strict=True):
        held = nn.Conv2d(c.in_channels, c.out_channels, 3)
        held.weight.data.copy_(c.weight.double() * factor(n).view(-1, 1, 1, 1))
        held.bias.data.copy_(n.bias.double() - n.running_mean.double() * factor(n))
        by_hand += [held, nn.ReLU()]
    left, right = qfunc.equalize()(net), qfunc.equalize()(nn.Sequential(*by_hand[:-1]).eval())
    for i in range(3):
        found = left.get_parameter(f"{3 * i}.weight").double() * factor(left.get_submodule(str(3 * i + 1))).view(-1, 1, 1, 1)
        # Both stop within 1e-3 of the same fixed point.
        assert torch.allclose(found, right.get_parameter(f"{2 * i}.weight").double(), rtol=2e-3, atol=0)


def token_block(seed: int) -> nn.Sequential:
    torch.manual_seed(seed)
    net = nn.Sequential(nn.LayerNorm(6), nn.Linear(6, 5), nn.BatchNorm1d(5)).eval().requires_grad_(False)
    net[0].weight.copy_(10 ** torch.empty(6).uniform_(-1, 1))
    net[2].weight.copy_(10 ** torch.empty(5).uniform_(-2, 2))
    net[2].running_var.copy_(10 ** torch.empty(5).uniform_(-2, 2))
    return net


@pytest.mark.parametrize("seed", range(3))
def test_smoothing_takes_the_weight_with_the_norm_after_it(seed):
    net, x = token_block(seed), torch.randn(32, 6)
    smooth = qfunc.smooth_quant([x], alpha=0.4, progress=False)(net)
    largest = net[0](x).double().abs().amax(0)
    weight = (net[1].weight.double() * factor(net[2])[:, None]).abs().amax(0)
    s = largest**0.4 / weight**0.6
    assert torch.allclose(smooth.get_parameter("0.weight").double(), net[0].weight.double() / s, rtol=1e-6)
    assert torch.allclose(smooth.get_parameter("1.weight").double(), net[1].weight.double() * s, rtol=1e-6)


@pytest.mark.parametrize("seed", range(3))
def test_awq_measures_the_error_after_the_norm(seed):
    """Of all candidates it takes the one with the least error of the network's outputs, which are behind the BatchNorm."""
    net, x, target = token_block(seed), torch.randn(64, 6), edit.weights(bits=3)(targets.tensorrt)
    found = qfunc.awq(target, [x], progress=False, candidates=5)(net)
    y, f = net[0](x).double(), factor(net[2])
    weight, size = net[1].weight.double() * f[:, None], net[0](x).abs().double().mean(0)
    errors, candidates = [], []
    for i in range(5):
        by = size ** (i / 5)
        by = by / (by.max() * by.min()).sqrt()
        scaled = (weight * by).float()
        scale = (scaled.abs().amax(1) / 3)[:, None]
        rounded = ((scaled / scale).round().clamp(-3, 3) * scale).double() / by
        errors.append(float((y @ (weight - rounded).T).square().sum()))
        candidates.append(net[0].weight.double() / by)
    best = candidates[min(range(5), key=errors.__getitem__)]
    assert torch.allclose(found.get_parameter("0.weight").double(), best, rtol=1e-6)

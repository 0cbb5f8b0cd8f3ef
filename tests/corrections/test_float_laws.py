"""The float function stays: each op within the roundings of its weights, on random networks."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from torch import nn

import qfunc
from qfunc.errors import SpecError
from qfunc.passes.fold_batch_norm import fold_batch_norms
from qfunc.testing.laws.corrections import worst_violation
from tests.corrections.channel_nets import Branches, Convs, Temporal, images, unequal

SEEDS = st.integers(0, 2**31)
FEW = settings(max_examples=4, deadline=None, phases=[Phase.generate])
"""No smaller seed is simpler."""


class Joined(nn.Module):
    """A concatenation between, and norms before and behind convolutions."""

    size = (3, 6, 7)

    def __init__(self):
        super().__init__()
        self.first, self.a, self.b = nn.BatchNorm2d(3), nn.Conv2d(3, 4, 1), nn.Conv2d(3, 5, 1, bias=False)
        self.norm, self.c, self.d = nn.BatchNorm2d(5), nn.Conv2d(9, 6, 3, groups=3), nn.Conv2d(6, 2, 2)

    def forward(self, x):
        """Two channels."""
        x = self.first(x)
        return self.d(F.relu(self.c(torch.cat([F.relu(self.a(x)), F.relu(self.norm(self.b(x)))], 1))))


class Tokens(nn.Module):
    """Linear layers behind a LayerNorm, an RMSNorm, a ReLU, and a norm that a residual reads, too."""

    size = (5, 6)

    def __init__(self):
        super().__init__()
        self.norm, self.q, self.k = nn.LayerNorm(6), nn.Linear(6, 6, bias=False), nn.Linear(6, 6)
        self.rms, self.up, self.down = nn.RMSNorm(6), nn.Linear(6, 9), nn.Linear(9, 6)
        self.last, self.head = nn.LayerNorm(6), nn.Linear(6, 3)

    def forward(self, x):
        """Three scores a token."""
        y = self.norm(x)
        x = x + self.q(y) * self.k(y).sigmoid()
        x = self.last(x + self.down(torch.relu(self.up(self.rms(x)))))
        return x[..., :3] + self.head(x)


class Aside(nn.Module):
    """A norm beside a convolution that reads the same, which becomes a convolution of its own, and one behind both."""

    size = (3, 6, 7)

    def __init__(self):
        super().__init__()
        self.a, self.norm, self.b = nn.Conv2d(3, 5, 3, bias=False), nn.BatchNorm2d(5), nn.Conv2d(5, 5, 3, 1, 1, groups=5)
        self.own, self.aside, self.c = nn.BatchNorm2d(5), nn.BatchNorm2d(5), nn.Conv2d(5, 4, 2)

    def forward(self, x):
        """Four channels."""
        x = self.norm(self.a(x))
        return self.c(F.relu(self.own(self.b(x)) + self.aside(x)))


CHANGES = {
    "equalize": (qfunc.equalize(), (Convs, Branches, Temporal, Joined)),
    "folding": (fold_batch_norms, (Convs, Branches, Joined, Aside)),
}


@pytest.mark.parametrize(("change", "net"), [(c, net) for c, (_, nets) in CHANGES.items() for net in nets])
@FEW
@given(seed=SEEDS)
def test_each_op_stays(change, net, seed):
    model = qfunc.capture()(unequal(net, seed))
    worst, op = worst_violation(model, CHANGES[change][0](model), (images(net, 2),))
    assert worst <= 1, (op, worst)


@FEW
@given(seed=SEEDS, alpha=st.floats(0, 1))
def test_smoothing_keeps_each_op(seed, alpha):
    model = qfunc.capture()(unequal(Tokens, seed))
    smooth = qfunc.smooth_quant([images(Tokens, 3)], alpha=alpha, progress=False)(model)
    worst, op = worst_violation(model, smooth, (images(Tokens, 2),))
    assert worst <= 1, (op, worst)
    assert not torch.equal(smooth.get_parameter("norm.weight"), model.get_parameter("norm.weight"))
    assert torch.equal(smooth.get_parameter("last.weight"), model.get_parameter("last.weight"))


@pytest.mark.parametrize("name", ["a.weight", "norm.bias", "depthwise.weight", "slopes.weight", "fc.bias", "last.weight"])
def test_the_law_sees_what_roundings_cannot_be(name):
    model = qfunc.capture()(unequal(Convs))
    changed = qfunc.equalize()(model)
    with torch.no_grad():
        changed.get_parameter(name).mul_(1 + 2**-12)
    assert worst_violation(model, changed, (images(Convs, 2),))[0] > 1


class Clipped(nn.Module):
    """ReLU6 between convolutions, some of whose channels lie below 6, and the folded weights of others are small."""

    size = (3, 8, 9)

    def __init__(self):
        super().__init__()
        self.a, self.one, self.b = nn.Conv2d(3, 6, 3, bias=False), nn.BatchNorm2d(6), nn.Conv2d(6, 6, 3, 1, 1, 1, 6)
        self.two, self.c, self.act = nn.BatchNorm2d(6), nn.Conv2d(6, 4, 1), nn.ReLU6()

    def forward(self, x):
        """Four channels."""
        return self.c(self.act(self.two(self.b(self.act(self.one(self.a(x)))))))


def clipped(seed):
    """Such a network, images, and by how many deviations their values lie from their means at most."""
    net = unequal(Clipped, seed)
    x, seen = images(Clipped, 8), []
    for norm in (net.one, net.two):
        norm.momentum = 1.0
        norm.weight.data.copy_(torch.tensor([0.1, 0.4, 0.2, 3.0, 0.05, 0.3]))
        norm.bias.data.copy_(torch.tensor([0.2, -0.5, 0.1, 1.0, 5.9, 0.4]))
        norm.register_forward_hook(
            lambda m, _, y: seen.append(((y - m.bias.view(-1, 1, 1)).abs().amax((0, 2, 3)) / m.weight).max().item())
        )
    with torch.no_grad():
        net.train()(x)
        seen.clear()
        net.eval()(x)
    return net, x, max(seen) * (1 + 2**-20)


@FEW
@given(seed=SEEDS)
def test_clips_stay_and_channels_below_them_are_equalized(seed):
    net, x, far = clipped(seed)
    model = qfunc.capture()(net)
    equal = qfunc.equalize(far)(model)
    worst, op = worst_violation(model, equal, (x,))
    assert worst <= 1, (op, worst)
    assert [n.name for n in equal.graph.nodes] == [n.name for n in model.graph.nodes]
    for old, new in ((net.one, equal.one), (net.two, equal.two)):
        reach, then = ((n.bias + far * n.weight).detach() for n in (old, new))
        below = reach <= 6
        assert torch.equal(new.weight[~below], old.weight[~below])
        assert not torch.equal(new.weight[below], old.weight[below])
        # two roundings to float32
        assert float(then[below].max()) <= 6 * (1 + 2**-22)


def test_every_channel_meets_its_clip():
    net, _, _ = clipped(3)
    with pytest.raises(SpecError) as e:
        qfunc.equalize(1000.0)(net)
    assert str(e.value) == (
        "equalize: found every channel reaches its clip within 1000.0 deviations (after 'one', 'two'), wanted a channel that "
        "stays below its clip, so that it can be scaled. Lower deviations, or replace the clips by ReLUs with "
        "qfunc.corrections.replace_relu6()."
    )


class Taken(nn.Module):
    """A convolution that a norm reads, which the next one takes in, and a pool, as it is: MaxViT's first block."""

    size = (3, 6, 7)

    def __init__(self):
        super().__init__()
        self.a, self.norm, self.b, self.c = nn.Conv2d(3, 5, 3), nn.BatchNorm2d(5), nn.Conv2d(5, 4, 1), nn.Conv2d(5, 4, 1)

    def forward(self, x):
        """Four channels."""
        x = self.a(x)
        return self.b(self.norm(x)) + self.c(F.avg_pool2d(x, 1))


def test_a_norm_that_one_of_two_readers_takes_in():
    net, x = unequal(Taken, 5), images(Taken, 4)
    model = qfunc.capture()(net)
    folded = fold_batch_norms(model)
    assert "norm" not in {n.name for n in folded.graph.nodes}
    worst, op = worst_violation(model, folded, (x,))
    assert worst <= 1, (op, worst)


@pytest.mark.parametrize("given", [-1, True, "3", float("nan"), float("inf")])
def test_deviations(given):
    with pytest.raises(SpecError) as e:
        qfunc.equalize(given)
    assert str(e.value) == (
        f"equalize, deviations: found {given!r}, wanted a finite number from 0, or None. "
        "Write qfunc.equalize(deviations=3.0), or qfunc.equalize()."
    )


def test_a_clip_without_a_norm():
    with pytest.raises(SpecError, match=r"'0', at '1': a clip at 6.0 that is not directly after a BatchNorm"):
        qfunc.equalize(3)(nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU6(), nn.Conv2d(4, 2, 1)))

"""What the targets of MQBench say beyond placement, on one small calibrated network."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx, nn

import qfunc
from qfunc import targets
from qfunc.graph.sites import quantizer_nodes
from qfunc.specs import Log, Target


class Net(nn.Module):
    """A depthwise convolution, a concat of two branches with other ranges, an addition, a sigmoid, a scaled convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.depthwise, self.left, self.right = nn.Conv2d(4, 4, 3, groups=4), nn.Conv2d(4, 2, 1), nn.Conv2d(4, 3, 1)
        self.last, self.fc = nn.Conv2d(5, 5, 1), nn.Linear(5, 3)
        self.pool, self.gain = nn.MaxPool2d(2, ceil_mode=True), nn.Parameter(torch.rand(5, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        """[N, 4, H, W] -> [N, 3]."""
        x = self.depthwise(x)
        x = torch.cat([self.left(x), 9.0 * self.right(x)], 1)
        x = self.pool(torch.relu(self.last(x) * self.gain) + x)
        return self.fc(torch.sigmoid(x).mean((2, 3)))


def calibrated(target: Target) -> fx.GraphModule:
    torch.manual_seed(4)
    net, x = Net().eval(), torch.randn(2, 4, 9, 11)
    return qfunc.calibrate([x], progress=False)(qfunc.quantize(target)(net))


def held(model: fx.GraphModule) -> dict[str, Any]:
    return {s.module.site.name: s.module for s in quantizer_nodes(model)}


def scale(model: fx.GraphModule, name: str) -> float:
    return held(model)[name].qparams().scale.item()


def test_snpe_widens_narrow_ranges_to_a_hundredth() -> None:
    torch.manual_seed(0)
    net, x = nn.Conv2d(2, 3, 1, bias=False).eval(), torch.rand(1, 2, 4, 4) * 1e-3
    made = qfunc.calibrate([x], progress=False)(qfunc.quantize(targets.snpe)(net))
    (site,) = (s.module for s in quantizer_nodes(made) if s.module.site.slot == "input")
    assert site.qparams().scale.item() == torch.tensor(0.01 / 255).item()
    assert site.qparams().zero_point.item() == 0  # a range without negative values starts at 0


def test_max_pool_keeps_its_inputs_qparams() -> None:
    for target in (targets.snpe, targets.ppl_w8a16, targets.ppl_cuda, targets.stpu):
        assert scale(calibrated(target), "pool") == scale(calibrated(target), "add"), target.name


def test_stpu_folds_the_product_behind_a_convolution() -> None:
    made = calibrated(targets.stpu)
    names = set(held(made))
    assert "relu" in names
    assert not names & {"last", "mul_1", "gain"}  # one unit: convolution, product, relu


def test_stpu_writes_sigmoids_at_one_whatever_was_seen() -> None:
    torch.manual_seed(0)
    net, x = nn.Sequential(nn.Conv2d(2, 3, 1), nn.Sigmoid()).eval(), torch.rand(1, 2, 4, 4)  # sigmoids of at most 0.7
    made = qfunc.calibrate([x], progress=False)(qfunc.quantize(targets.stpu)(net))
    assert scale(made, "1") == torch.tensor(1 / 127).item()


def test_stpu_gives_the_inputs_of_a_concat_its_outputs_range() -> None:
    made = calibrated(targets.stpu)
    assert scale(made, "left") == scale(made, "right") == scale(made, "cat")
    assert scale(made, "right") > 2 * scale(calibrated(targets.snpe), "left")


def test_ppl_cuda_divides_by_half_the_range() -> None:
    made = calibrated(targets.ppl_cuda)
    weight = next(s for s in quantizer_nodes(made) if s.module.site.name == "fc.weight")
    value = made.get_parameter("fc.weight").detach()
    assert torch.equal(weight.module.qparams().scale, value.abs().amax(1, keepdim=True) / 127.5)


def test_nnie_leaves_group_convolutions_and_gives_the_inputs_of_an_addition_one_range() -> None:
    made = calibrated(targets.nnie)
    names = set(held(made))
    assert "depthwise.weight" not in names
    assert "x" not in names  # only the depthwise convolution reads it
    assert {type(m.site.scheme.format) for m in held(made).values()} == {Log}
    assert scale(made, "relu") == scale(made, "cat")  # both read by the addition
    assert scale(made, "left.weight") != scale(made, "right.weight")


def test_the_papers_widths_hold_between_the_ends_only() -> None:
    found = {n: m.site.scheme.format.bits for n, m in held(calibrated(targets.academic(3, 5))).items()}
    assert found["depthwise.weight"] == found["fc.weight"] == found["x"] == 8
    assert found["left.weight"] == found["right.weight"] == found["last.weight"] == 3
    assert found["depthwise"] == found["cat"] == 5

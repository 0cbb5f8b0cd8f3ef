"""OpenVINO computes arithmetic with one constant a channel as the emulation, for any batch and also for single entries.

Without barriers the plugin omits the op after a quantizer (also in large images), and reads other constants after a
convolution whose result has the shape [1, C, 1, 1].
"""

from __future__ import annotations

import importlib.util

import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import qfunc
from qfunc import targets
from tests.lowering.drawn_law import EXAMPLES

pytestmark = pytest.mark.skipif(importlib.util.find_spec("openvino") is None, reason="openvino is not installed")
OPS = {
    "mul": torch.mul,
    "add": torch.add,
    "sub": torch.sub,
    "rsub": lambda x, c: c - x,
    "div": lambda x, c: x / (1 + c.abs()),
    "prelu": lambda x, c: F.prelu(x, c.flatten()[: x.shape[1]]),
}
BEFORE = {
    "conv": lambda: nn.Conv2d(4, 4, 1),
    "depthwise": lambda: nn.Conv2d(4, 4, 3, padding=1, groups=4),
    "transposed": lambda: nn.ConvTranspose2d(4, 4, 1),
    "relu": nn.ReLU,
    "means": lambda: nn.AdaptiveAvgPool2d(1),
    "conv and relu": lambda: nn.Sequential(nn.Conv2d(4, 4, 1), nn.ReLU()),
}


class Arithmetic(nn.Module):
    """A layer, a sum or none, an op with constants, and a sum, a convolution or none."""

    def __init__(self, before: str, added: str, op: str, shape: tuple[int, ...], last: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.before, self.constants = BEFORE[before](), nn.Parameter(torch.randn(shape))
        self.added, self.call, self.last = added, OPS[op], nn.Conv2d(4, 3, 1) if last else nn.Identity()

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """Two [N, 4, H, W] -> [N, 4 or 3, H, W]."""
        x = self.before(x)
        x = self.call(x + y if self.added == "before" else x, self.constants)
        return self.last(x + y if self.added == "after" else x)


@settings(max_examples=EXAMPLES or 40, derandomize=not EXAMPLES, deadline=None, database=None,
          suppress_health_check=list(HealthCheck))  # fmt: skip
@given(st.data())
def test_codes_of_arithmetic_with_constants_of_channels(data: st.DataObject) -> None:
    op = data.draw(st.sampled_from(sorted(OPS)))
    size = data.draw(st.sampled_from([1, 1, 2, 4]))
    shapes = [(4, 1, 1), (1, 4, 1, 1)] + [(4, size, size), (size,), (1,)] * (op != "prelu")
    parts = (data.draw(st.sampled_from(sorted(BEFORE))), data.draw(st.sampled_from(["", "before", "after"])))
    last = parts[0] in ("relu", "means") or data.draw(st.booleans())  # a product at least
    net = Arithmetic(*parts, op, data.draw(st.sampled_from(shapes)), last).eval()
    note(f"{net}, {parts}, {op}, {tuple(net.constants.shape)}, {size}")

    def batch(count: int) -> tuple[Tensor, Tensor]:
        return torch.randn(count, 4, size, size), torch.randn(count, 4, size, size)

    batches = [batch(2), batch(3)]
    model = qfunc.quantize(targets.openvino, batches[0])(net)
    report = qfunc.verify(targets.openvino)(qfunc.calibrate(batches, progress=False)(model), [*batches, batch(1)])
    assert "mismatch" not in report.verdict, report


ARITHMETIC = {
    "negative": lambda x: -x,
    "constants of channels": lambda x: x + torch.tensor([0.3, -0.5, 0.7, 1.1]).view(4, 1, 1),
    "difference from a number": lambda x: 0.7 - x,
    "product": lambda x: F.relu(x * 1.3),
}


class Sum(nn.Module):
    """A convolution, a function of its result, and an addition that a convolution reads."""

    def __init__(self, function) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.last, self.function = nn.Conv2d(4, 4, 3, padding=1), nn.Conv2d(4, 3, 1), function

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """Two [N, 4, H, W] -> [N, 3, H, W]."""
        return self.last(self.function(self.conv(x)) + y.relu())


@pytest.mark.parametrize("name", ARITHMETIC)
def test_the_quantizer_between_arithmetic_and_a_sum_stays(name: str) -> None:
    """The plugin would add to the convolution without the rounding between the two."""
    net = Sum(ARITHMETIC[name]).eval()
    batch = torch.randn(8, 4, 6, 6), torch.randn(8, 4, 6, 6)
    model = qfunc.calibrate([batch], progress=False)(qfunc.quantize(targets.openvino)(net))
    report = qfunc.verify(targets.openvino)(model, [batch])
    outputs = [r for r in report.of("output") if r.largest_lsb > 1e-3]  # a rounding that is omitted moves outputs by tenths
    assert not outputs, report

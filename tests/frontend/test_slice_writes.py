"""Writes into parts of tensors, on both roads of capture: the pure graph computes what torch computes in place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import qfunc
from qfunc import targets
from qfunc.frontend.slice_writes import slice_indices
from qfunc.targets.runtimes import OnnxRuntimeRunner

SHAPE = (5, 3, 4)


class Net(nn.Module):
    """Runs steps on a tensor of its own, and keeps a parameter that it copies before it writes."""

    def __init__(self, steps: Any) -> None:
        super().__init__()
        self.steps, self.bias = steps, nn.Parameter(torch.arange(4.0))

    def forward(self, x: Tensor) -> Tensor:
        y = x * 1.0
        for step, index, value in self.steps:
            step(y, x, index, value)
        bias = self.bias.clone()
        bias[1:3].zero_()
        return y + bias


def set_number(y: Tensor, x: Tensor, index: Any, value: float) -> None:
    y[index] = value


def set_part(y: Tensor, x: Tensor, index: Any, value: float) -> None:
    y[index] = x[index] * value


def add_to_part(y: Tensor, x: Tensor, index: Any, value: float) -> None:
    y[index] += value


def scale_view(y: Tensor, x: Tensor, index: Any, value: float) -> None:
    y[index].mul_(value)


def fill_view_of_view(y: Tensor, x: Tensor, index: Any, value: float) -> None:
    y[1:][..., index[-1] if isinstance(index, tuple) else slice(0, 2)].fill_(value)


def copy_into_view(y: Tensor, x: Tensor, index: Any, value: float) -> None:
    y[index].copy_(x[index])


def zero_and_set(y: Tensor, x: Tensor, index: Any, value: float) -> None:
    y.zero_()
    y[index] = value


def of_axis(length: int) -> st.SearchStrategy[Any]:
    """Ints and slices of an axis, with bounds from either end, empty ones and ones beyond the end."""
    ends = st.tuples(st.integers(0, length + 2), st.integers(0, length + 2)) | st.tuples(
        st.integers(-length - 2, -1), st.integers(-length - 2, -1)
    )
    half = st.builds(slice, st.integers(-length, length)) | st.builds(lambda v: slice(v, None), st.integers(-length, length))
    crossed = st.builds(slice, st.integers(0, length), st.integers(-length, -1))
    return (
        st.integers(-length, length - 1) | st.builds(slice, *[st.none()] * 2) | half | crossed | ends.map(lambda v: slice(*v))
    )


INDICES = (
    of_axis(SHAPE[0])
    | st.tuples(*(of_axis(n) for n in SHAPE))
    | st.tuples(of_axis(SHAPE[0]), st.just(...), of_axis(SHAPE[2]))
    | st.tuples(st.just(...), of_axis(SHAPE[1]), of_axis(SHAPE[2]))
)
STEPS = st.sampled_from([set_number, set_part, add_to_part, scale_view, fill_view_of_view, copy_into_view, zero_and_set])
PROGRAMS = st.lists(st.tuples(STEPS, INDICES, st.sampled_from([0, 2.5, -1])), min_size=1, max_size=3)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("road", ["fx", "export"])
def test_a_captured_program_equals_torch_bit_for_bit(road: str) -> None:
    """Both roads, random programs of writes; the oracle is torch, which writes in place."""

    @settings(max_examples=25 if road == "fx" else 8, deadline=None, derandomize=True)
    @given(PROGRAMS)
    def check(steps: Any) -> None:
        x = torch.randn(SHAPE, generator=torch.Generator().manual_seed(1))
        model = Net(steps).eval()
        wanted = model(x)
        captured = qfunc.capture(*(() if road == "fx" else ((x,),)))(model)
        with torch.no_grad():
            assert torch.equal(captured(x), wanted)
        assert model.bias.tolist() == [0.0, 1.0, 2.0, 3.0]

    check()


@pytest.mark.parametrize("index", [torch.tensor([0]), None, True, slice(None, None, 2), slice(-3, 2), (0, slice(None, "a"))])
def test_other_indices_are_not_known(index: Any) -> None:
    """Those are refused as before."""
    assert slice_indices(index) is None


def decoded(y: Tensor) -> Tensor:
    """A detector's boxes: centres, sizes and scores written in place."""
    y[..., 0:2] = y[..., 0:2] * 2.0 - 0.5
    y[..., 2:3] *= 3.0
    return y


class Detector(nn.Module):
    """A convolution whose channels become boxes."""

    def __init__(self, decode: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.conv, self.decode = nn.Conv2d(3, 4, 3), decode

    def forward(self, x: Tensor) -> Tensor:
        return self.decode(self.conv(x).sigmoid().permute(0, 2, 3, 1))


def test_a_detector_that_decodes_in_place_is_deployed() -> None:
    """The artifact computes what is simulated, and that is the same detector written with torch.cat."""
    torch.manual_seed(0)
    model, x = Detector(decoded).eval(), torch.randn(2, 3, 6, 7)
    pure = Detector(lambda y: torch.cat([y[..., :2] * 2.0 - 0.5, y[..., 2:3] * 3.0, y[..., 3:]], -1)).eval()
    pure.load_state_dict(model.state_dict())
    made = [qfunc.calibrate([x], progress=False)(qfunc.quantize(targets.onnxruntime)(m)) for m in (model, pure)]
    ran = OnnxRuntimeRunner(optimise=False).run(qfunc.deploy(targets.onnxruntime)(made[0]), [x])[0]
    with torch.no_grad():
        found, other = made[0](x), made[1](x)
    step = max(float(m.qparams().scale) for m in made[0].modules() if hasattr(m, "site") and not m.site.constant)
    # A tie may fall to the other side where sums are ordered otherwise: one step.  Each part that is written is one cat
    # more, whose output is rounded once more: half a step for each of two.
    assert (torch.as_tensor(ran) - found).abs().max() <= 1.001 * step
    assert (found - other).abs().max() <= 1.001 * step
    assert found.unique().numel() > 30

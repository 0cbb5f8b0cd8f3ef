"""Buffers that a forward assigns are refused, with the line, because a graph has no place for what the next call would get."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import qfunc
from qfunc import targets
from qfunc.errors import CaptureError

WANTED = "a forward that does not change the model. Return the new value instead of storing it."


class Stream(nn.Module):
    """A convolution with a buffer that `step` assigns."""

    def __init__(self, step: Callable[[Any, Tensor], Any]) -> None:
        super().__init__()
        self.step, self.conv, self.seen = step, nn.Conv1d(3, 4, 3), None
        self.register_buffer("cache", torch.zeros(1, 3, 2))
        self.register_buffer("empty", None)

    def forward(self, x: Tensor) -> Tensor:
        self.step(self, x)
        return self.conv(x)


def assign(name: str, value: Callable[[Any, Tensor], Any]) -> Callable[[Any, Tensor], Any]:
    return lambda net, x: setattr(net, name, value(net, x))


COMPUTED = {
    "window": assign("cache", lambda net, x: torch.cat([net.cache, x], 2)[:, :, -2:]),
    "average": assign("cache", lambda net, x: 0.9 * net.cache + 0.1 * x.mean()),
    "counter": assign("cache", lambda net, x: net.cache + 1),
    "last": assign("cache", lambda net, x: x.detach()),
}
WITHOUT_LINE = {
    "input": ("cache", assign("cache", lambda net, x: x)),
    "new tensor": ("cache", assign("cache", lambda net, x: torch.ones(1, 3, 2))),
    "nothing": ("cache", assign("cache", lambda net, x: None)),
    "first value": ("empty", assign("empty", lambda net, x: x)),
    "deleted": ("cache", lambda net, x: delattr(net, "cache")),
    "registered": ("fresh", lambda net, x: net.register_buffer("fresh", x)),
}


@pytest.mark.parametrize("name", COMPUTED)
def test_a_computed_buffer_is_refused_with_its_line(name: str) -> None:
    line = COMPUTED[name].__closure__[1].cell_contents.__code__.co_firstlineno  # type: ignore[index]
    with pytest.raises(CaptureError) as raised:
        qfunc.quantize(targets.onnxruntime)(Stream(COMPUTED[name]).eval())
    assert str(raised.value) == f"{__file__}:{line}: found an assignment to the buffer 'cache', wanted {WANTED}"


@pytest.mark.parametrize("name", WITHOUT_LINE)
def test_an_assigned_buffer_is_refused(name: str) -> None:
    buffer, step = WITHOUT_LINE[name]
    with pytest.raises(CaptureError) as raised:
        qfunc.quantize(targets.onnxruntime)(Stream(step).eval())
    assert str(raised.value) == f"buffer {buffer!r}: found an assignment to the buffer {buffer!r}, wanted {WANTED}"


def test_a_buffer_of_an_inner_module_is_named_by_its_path() -> None:
    with pytest.raises(CaptureError, match=r"found an assignment to the buffer '0\.cache', wanted"):
        qfunc.quantize(targets.onnxruntime)(nn.Sequential(Stream(COMPUTED["counter"])).eval())


@pytest.mark.parametrize("name", ["cache", "seen"])
def test_the_same_value_and_attributes_may_be_assigned(name: str) -> None:
    net, x = Stream(assign(name, lambda net, x: net.cache if name == "cache" else x * 2)).eval(), torch.randn(1, 3, 8)
    done = qfunc.calibrate([x], progress=False)(qfunc.quantize(targets.onnxruntime)(net))
    assert qfunc.verify(targets.onnxruntime)(done, [x]).verdict.startswith("bit-exact: 0 of ")
    assert net.cache.equal(torch.zeros(1, 3, 2))
    assert net.seen is None


@pytest.mark.parametrize("deep", [False, True])
@pytest.mark.parametrize("name", [*COMPUTED, *WITHOUT_LINE])
def test_torch_export_drops_no_assignment_silently(name: str, deep: bool) -> None:
    step = COMPUTED[name] if name in COMPUTED else WITHOUT_LINE[name][1]
    net = nn.Sequential(Stream(step)).eval() if deep else Stream(step).eval()
    with pytest.raises(CaptureError):
        qfunc.quantize(targets.onnxruntime, example_inputs=(torch.randn(2, 3, 8),))(net)


@pytest.mark.parametrize("example_inputs", [None, (torch.randn(2, 3, 8),)])
def test_data_of_a_buffer_is_not_assigned(example_inputs: Any) -> None:
    def step(net: Any, x: Tensor) -> None:
        net.cache.data = x * 2

    with pytest.raises(CaptureError) as raised:
        qfunc.quantize(targets.onnxruntime, example_inputs=example_inputs)(Stream(step).eval())
    line = step.__code__.co_firstlineno + 1
    assert str(raised.value) == f"{__file__}:{line}: found an assignment to the attribute 'data' of a tensor, wanted {WANTED}"

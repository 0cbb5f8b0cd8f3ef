"""A parameter or buffer that several units read: each reader gets the values or the codes that it reads in the runtime."""

from __future__ import annotations

import importlib.util
import random
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import qfunc
from qfunc import targets
from qfunc.emulation.builder import EmulationBuilder
from qfunc.errors import QfuncError
from qfunc.specs import KeepFloat, edit

WIDTH = 6
PACKAGES = {
    "onnxruntime": "onnxruntime",
    "openvino": "openvino",
    "litert": "ai_edge_litert",
    "executorch_xnnpack": "executorch",
}
READERS: dict[str, Any] = {
    "product": lambda x, p, q: q @ x,
    "linear": lambda x, p, q: F.linear(x, q, p),
    "factor": lambda x, p, q: x * p,
    "addend": lambda x, p, q: x + p,
    "square": lambda x, p, q: x * (p * p),
    "factor and addend": lambda x, p, q: x * p + p,
    "matrix of factors": lambda x, p, q: x * q,
    "norm": lambda x, p, q: F.layer_norm(x, (WIDTH,), p, p),
    "convolution": lambda x, p, q: F.conv1d(x, q.unsqueeze(-1), p),
}


class Readers(nn.Module):
    """Ops in a row that read one vector and one matrix."""

    def __init__(self, names: list[str], buffer: bool) -> None:
        super().__init__()
        self.names = names
        vector, matrix = torch.randn(WIDTH), 0.6 * torch.randn(WIDTH, WIDTH)
        if buffer:
            self.register_buffer("p", vector)
            self.register_buffer("q", matrix)
        else:
            self.p, self.q = nn.Parameter(vector), nn.Parameter(matrix)

    def forward(self, x: Tensor) -> Tensor:
        for name in self.names:
            x = READERS[name](x, self.p, self.q)
        return x


def _with_floats(target: Any, net: nn.Module, draw: random.Random) -> Any:
    nodes = [n.name for n in qfunc.capture()(net).graph.nodes if n.op == "call_function"]
    for name in (n for n in nodes if draw.random() < 0.3):
        kept = (edit.skip(edit.node(name)), edit.outputs(edit.node(name), KeepFloat()))
        target = draw.choice(kept)(target)
    return target


def _agrees(target: Any, net: nn.Module, batches: list[Tensor]) -> bool:
    # The simulation rounds the same tensors in PyTorch's float ops; the runtime runs the file. False for refusals.
    try:
        calibrated = qfunc.calibrate(batches, progress=False)(qfunc.quantize(target)(net))
        emulation = qfunc.emulate(target)(calibrated)
    except QfuncError:
        return False
    with torch.no_grad():
        wanted, found = calibrated(batches[0]), emulation(batches[0])
    largest = float(wanted.abs().max())
    assert float((found - wanted).abs().max()) <= 0.1 * largest, target.name  # codes instead of values are off by 0.9 and more
    assert not qfunc.verify(target)(calibrated, batches).agreement.startswith("mismatch"), target.name
    return True


@pytest.mark.filterwarnings("ignore:quantize, op", "ignore:calibrate, op")
@pytest.mark.parametrize("name", PACKAGES)
@pytest.mark.parametrize("order", ["integer first", "float first"])
def test_a_constant_of_an_integer_unit_and_of_a_float_unit(name: str, order: str) -> None:
    """The second reader gets values after the first one has got codes, and codes after values."""
    if importlib.util.find_spec(PACKAGES[name]) is None:
        pytest.skip(f"{PACKAGES[name]} is not installed")
    torch.manual_seed(0)
    net, batches = Readers(["product", "product"], buffer=False).eval(), [torch.randn(2, WIDTH, WIDTH) for _ in range(2)]
    target, kept = getattr(targets, name), {"integer first": "matmul_1", "float first": "matmul"}[order]
    if (name, order) != ("openvino", "integer first"):  # of the two, it has the second in float of itself
        target = edit.outputs(edit.node(kept), KeepFloat())(target)
    assert _agrees(target, net, batches) or order == "float first"


@pytest.mark.filterwarnings("ignore:quantize", "ignore:calibrate")
@pytest.mark.parametrize("name", PACKAGES)
def test_drawn_readers_of_constants(name: str) -> None:
    if importlib.util.find_spec(PACKAGES[name]) is None:
        pytest.skip(f"{PACKAGES[name]} is not installed")
    agreed = 0
    for seed in range(4):
        draw = random.Random(seed)
        torch.manual_seed(seed)
        names = [draw.choice(sorted(READERS)) for _ in range(draw.randint(2, 4))]
        net, batches = Readers(names, buffer=draw.random() < 0.4).eval(), [torch.randn(2, WIDTH, WIDTH) for _ in range(2)]
        agreed += _agrees(_with_floats(getattr(targets, name), net, draw), net, batches)
    assert agreed  # the others are refused


def test_an_emulation_beyond_a_bound_is_a_mismatch(monkeypatch: pytest.MonkeyPatch) -> None:
    """The runtime computes what the float unit should, and the emulation does not: the bound explains no difference."""
    torch.manual_seed(0)
    net, batches = Readers(["product", "product"], buffer=False).eval(), [torch.randn(2, WIDTH, WIDTH)]
    target = edit.outputs(edit.node("matmul_1"), KeepFloat())(edit.weights(bits=7)(targets.onnxruntime))
    calibrated = qfunc.calibrate(batches, progress=False)(qfunc.quantize(target)(net))
    assert qfunc.verify(target)(calibrated, batches).agreement.startswith("bit-exact")
    constant = EmulationBuilder.constant

    def planted(self: EmulationBuilder, value: Tensor, path: str) -> Any:
        of_float_unit = path == "q" and bool((value != value.round()).any())  # no codes
        return constant(self, 8 * value if of_float_unit else value, path)

    monkeypatch.setattr(EmulationBuilder, "constant", planted)
    report = qfunc.verify(target)(calibrated, batches)
    assert [row.mismatches for row in report.of("float")] == [0]
    assert report.agreement.startswith("mismatch: "), report

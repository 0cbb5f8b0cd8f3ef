"""Tengine's lines of qparams, executed on the float model as its reference kernels compute."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
import torch
from attrs import evolve
from onnx import numpy_helper
from torch import Tensor, nn

from qfunc import targets
from qfunc.errors import DeployError
from qfunc.lowering.program import Program
from qfunc.lowering.quantized_tensor import Place
from qfunc.specs import Int
from qfunc.targets.runtimes import TengineLowering
from tests.lowering.onnx.reader import execute, tensors
from tests.lowering.onnx.test_qdq_nodes import Net, parts


def lowered(net: nn.Module, x: Tensor) -> tuple[Any, dict[str, bytes], dict[str, tuple[float, int]], Any]:
    done, model, sites = parts(targets.tengine_u8, net, x)
    files = dict(TengineLowering().lower(Program(model, sites)))
    assert dict(TengineLowering().lower(Program(model, sites))) == files
    assert set(files) == {"model.onnx", "model.scale"}
    onnx.checker.check_model(onnx.load_from_string(files["model.onnx"]))
    return done, files, lines(files["model.scale"].decode()), sites


def lines(text: str) -> dict[str, tuple[float, int]]:
    """As quant_save_graph.cpp reads them: the name before the first space, the zero point behind the last."""
    found = {}
    for line in text.splitlines():
        first, last = line.index(" "), line.rindex(" ")
        assert first < last
        found[line[:first]] = (float(line[first + 1 : last]), int(line[last + 1 :]))
    assert len(found) == text.count("\n")
    return found


def test_every_activation_has_a_line_and_so_has_a_convolution_before_a_relu() -> None:
    torch.manual_seed(0)
    _, files, table, sites = lowered(Net(), torch.randn(2, 3, 8, 6))
    graph = onnx.load_from_string(files["model.onnx"]).graph
    assert set(table) <= tensors(files["model.onnx"]) - {i.name for i in graph.initializer}
    assert {t for s in sites if s.role == "activation" for t in s.tensors} <= set(table)
    (relu,) = (n for n in graph.node if n.op_type == "Relu" and n.input[0] == "a")
    assert table["a"] == table[relu.output[0]]
    assert table["x"][0] == np.float32(table["x"][0])
    x = next(s for s in sites if s.name == "x")
    assert table["x"] == (x.scale[0], x.zero_point[0])


class Clamped(nn.Module):
    """A relu6, a clamp that is none, a relu whose convolution is read twice, and one that is an output."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c, self.d = (nn.Conv2d(3, 3, 1) for _ in range(4))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = nn.functional.relu6(self.a(x))
        x = torch.clamp(self.b(x), -1.0, 1.0)
        y = self.c(x)
        last = self.d(torch.relu(y) + y)
        return torch.relu(last), last


def test_the_rule_is_for_relu_and_relu6_alone() -> None:
    torch.manual_seed(1)
    _, files, _, sites = lowered(Clamped(), torch.randn(2, 3, 4, 5))
    own = {t for s in sites if s.role == "activation" for t in s.tensors}
    graph = onnx.load_from_string(files["model.onnx"]).graph
    made = {n.input[0]: n.output[0] for n in graph.node if n.op_type in ("Relu", "Clip")}
    table = lines(files["model.scale"].decode())
    assert set(table) - own == {"a"}
    assert table["a"] == table[made["a"]]
    assert "b" in made
    assert "b" not in table


def test_the_lines_executed_on_the_float_model_are_the_simulation() -> None:
    torch.manual_seed(2)
    done, files, table, _ = lowered(Net(), torch.randn(2, 3, 8, 6))
    x = torch.randn(4, 3, 8, 6)

    def written(tensor: str, value: Any) -> Any:
        if tensor not in table:
            return value
        scale, zero = np.float32(table[tensor][0]), table[tensor][1]
        code = np.clip(np.sign(value) * np.floor(np.abs(value / scale) + 0.5) + zero, 0, 255)  # roundf
        return ((code - zero) * scale).astype(np.float32)

    got = torch.from_numpy(execute(files["model.onnx"], x.numpy(), written)[0])
    # Codes are equal; the products with the scales may differ in the last bits.
    assert torch.allclose(got, done(x), rtol=1e-5, atol=1e-6)


def test_the_tool_finds_weights_that_reach_both_ends_of_the_codes_again() -> None:
    """quant_save_graph.cpp: scale (max - min) / 255, zero point trunc(-min / scale), of the stored weights."""
    torch.manual_seed(3)
    net = nn.Conv2d(3, 4, 1, bias=False)
    with torch.no_grad():
        net.weight.copy_(torch.linspace(-100, 155, 12).round().reshape(4, 3, 1, 1) / 64)
    _, files, _, sites = lowered(net, torch.randn(2, 3, 4, 5))
    site = next(s for s in sites if s.role == "weight")
    (w,) = (numpy_helper.to_array(i) for i in onnx.load_from_string(files["model.onnx"]).graph.initializer)
    assert (w.max() - w.min()) / np.float32(255) == site.scale[0] == 1 / 64
    assert int(-w.min() / site.scale[0]) == site.zero_point[0] == 100


def test_what_tengine_cannot_say_is_refused_by_name() -> None:
    _, model, sites = parts(targets.tengine_u8, nn.Conv2d(3, 2, 1), torch.randn(2, 3, 4, 5))
    x = next(s for s in sites if s.role == "activation")
    others = [s for s in sites if s is not x]
    do = "Use the schemes of targets.tengine_u8, or edit.deploy(QdqLowering())."
    wanted = "wanted Int(8, signed=False), biases Int(32): Tengine's uint8 has no other formats."
    for changed, said in (
        (evolve(x, format=Int(8)), f"found Int(8), {wanted} {do}"),
        (
            evolve(x, scale=(1.0, 2.0), zero_point=(0, 0)),
            "found 2 scales, wanted one scale, as Tengine's uint8 has it. Use granularity=PerTensor().",
        ),
        (
            evolve(x, places=(Place("my net", "x.real"),)),
            "found the name ['my net'], wanted names without spaces, which end a name in the file. Rename the module.",
        ),
    ):
        with pytest.raises(DeployError) as e:
            TengineLowering().lower(Program(model, [changed, *others]))
        assert str(e.value) == f"tensor 'input': {said}"

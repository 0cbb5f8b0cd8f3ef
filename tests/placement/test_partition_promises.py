"""Which values the emulation promises bit for bit, and which units are integer, of a net with floats between the integers."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import qfunc
from qfunc.graph.view import QuantizedModel
from qfunc.placement.partition import Partition
from qfunc.specs import KeepFloat, edit
from tests.onnxruntime_target import ONNXRUNTIME

TARGET = edit.outputs(edit.op("linear"), KeepFloat())(ONNXRUNTIME)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.three = nn.Linear(6, 5), nn.Linear(5, 4), nn.Linear(4, 3)
        self.norm = nn.LayerNorm(3)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        known = F.gelu(self.one(x))
        real = torch.relu(self.two(known))
        unknown = torch.log1p(real)
        return self.norm(self.three(real)), F.gelu(unknown)


def parts() -> Partition:
    torch.manual_seed(0)
    calibrated = qfunc.calibrate([torch.randn(9, 6)], progress=False)(qfunc.quantize(TARGET)(Net().eval()))
    return Partition(QuantizedModel(calibrated), TARGET)


def test_a_product_is_integer_whether_codes_come_of_it_or_not_and_a_curve_in_float_is_not() -> None:
    integer = {u.path: u.integer for u in parts().units}
    assert integer == {"one": True, "gelu": False, "two": True, "log1p": False, "three": True, "norm": False, "gelu_1": False}


def test_what_follows_an_unknown_float_op_is_not_exact_until_it_has_codes() -> None:
    partition = parts()
    ops = {n.name for n in partition.network.graph.nodes if n.op == "call_function"}
    exact = {n.name for n in partition.exact_nodes()} & ops
    unknown = {u.path for u in partition.float_units if u.kernel is None}
    assert unknown == {"log1p"}
    assert exact == {"one", "gelu", "relu", "three", "norm"}


def test_what_a_cpu_computes_otherwise_is_not_exact() -> None:
    partition = parts()
    assert {n.name for n in partition.exact_nodes() - partition.exact_nodes(("layer_norm", "linear"))} == {"norm"}

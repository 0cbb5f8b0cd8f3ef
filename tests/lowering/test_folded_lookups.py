"""Lookups that constants and sizes alone determine are computed before the file is written, whatever a chip runs."""

from __future__ import annotations

import importlib.util

import pytest
import torch
from torch import Tensor, nn

import qfunc
from qfunc import targets

RUNTIMES = {"openvino": "openvino", "ncnn": "ncnn", "onnxruntime": "onnxruntime"}


class Kinds(nn.Module):
    """A table of 80 numbers, looked up at the positions of each example, as BERT does with its token types."""

    def __init__(self, table: int = 80) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(6, 6), nn.Linear(6, 3)
        self.register_buffer("table", torch.randn(1, table), persistent=False)
        self.register_buffer("positions", torch.randint(0, table, (1, 6)), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """[N, 6] -> [N, 3]."""
        n = x.shape[0]
        looked = torch.gather(self.table.expand(n, -1), 1, self.positions.expand(n, -1))
        return self.last(torch.relu(self.first(x)) + looked)


@pytest.mark.parametrize("name", RUNTIMES)
def test_a_gather_of_constants_is_folded(name: str) -> None:
    if importlib.util.find_spec(RUNTIMES[name]) is None:
        pytest.skip(f"{RUNTIMES[name]} is not installed")
    target, batches = getattr(targets, name), [torch.randn(4, 6) for _ in range(2)]
    quantized = qfunc.quantize(target, batches[0])(Kinds().eval())
    report = qfunc.verify(target)(qfunc.calibrate(batches, progress=False)(quantized), [*batches, batches[0][:1]])
    assert "mismatch" not in report.verdict, report


@pytest.mark.parametrize(("table", "positions"), [(80, 6), (3, 2)])
def test_shorter_rows_of_indices(table: int, positions: int) -> None:
    """GatherElements reads the rows that the indices have; the oracle is torch.gather."""
    from onnx import TensorProto, helper, numpy_helper

    from qfunc.lowering.constant_folding import folded

    data, indices = torch.randn(3, table), torch.randint(-table, table, (2, positions))
    node = helper.make_node("GatherElements", ["data", "indices"], ["looked"], axis=1)
    constants = [numpy_helper.from_array(t.numpy(), n) for t, n in ((data, "data"), (indices, "indices"))]
    output = helper.make_tensor_value_info("looked", TensorProto.FLOAT, None)
    model = helper.make_model(helper.make_graph([node], "g", [], [output], constants))
    assert folded(model)[1]["looked"].tolist() == torch.gather(data, 1, indices % table).tolist()

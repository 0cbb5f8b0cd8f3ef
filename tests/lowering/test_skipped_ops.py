"""An op that an edit leaves in float is float in the file, also between layers that compute on codes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import qfunc
from qfunc import targets
from qfunc.specs import edit
from qfunc.targets.litert.builder import schema

OPS = {
    "hardswish": F.hardswish,
    "gelu": F.gelu,
    "leaky_relu": F.leaky_relu,
    "sigmoid": torch.sigmoid,
    "softmax": lambda y: y.softmax(1),
    "add": lambda y: y + y.flip(3),
    "mul": lambda y: y * y.flip(3),
    "avg_pool": lambda y: F.avg_pool2d(y, 2, 1),
    "concat": lambda y: torch.cat([y, y.flip(3)], 1)[:, 1:5],
}
FLOAT_ALREADY = {("onnxruntime", "hardswish"), ("onnxruntime", "gelu")}


class Net(nn.Module):
    def __init__(self, op: str) -> None:
        super().__init__()
        self.first, self.op, self.last = nn.Conv2d(3, 4, 3), op, nn.Conv2d(4, 4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(OPS[self.op](self.first(x)))  # type: ignore[no-any-return]


def skipped(target: Any, op: str) -> tuple[Any, Any, Tensor]:
    torch.manual_seed(0)
    x, target = torch.randn(2, 3, 8, 8), edit.skip(edit.op(op))(target)
    return target, qfunc.calibrate([x], progress=False)(qfunc.quantize(target)(Net(op).eval())), x


def cases() -> list[Any]:
    found = [(t, op) for t in (targets.onnxruntime, targets.litert, targets.executorch_xnnpack) for op in OPS]
    return [pytest.param(t, op, id=f"{t.name}-{op}") for t, op in found if (t.name, op) not in FLOAT_ALREADY]


@pytest.mark.parametrize(("target", "op"), cases())
def test_the_runtime_computes_a_skipped_op_in_float(target: Any, op: str) -> None:
    runner = target.runtime.runner
    if hasattr(runner, "missing") and runner.missing():
        pytest.skip(runner.missing())
    target, done, x = skipped(target, op)
    units = {u["kind"]: u["integer"] for u in qfunc.deploy(target)(done).report["units"]}
    assert not units[op]
    assert units["conv"]
    report = qfunc.verify(target)(done, [x])  # which compares the units with those that the runtime shows
    assert report.disagreements == ()
    assert "mismatch" not in report.verdict
    assert op in {row.kind for row in qfunc.explain(done).floats}


@pytest.mark.skipif(bool(targets.litert.runtime.runner.missing()), reason="ai-edge-litert is not installed")
def test_the_operator_of_a_skipped_op_has_real_operands() -> None:
    target, done, _ = skipped(targets.litert, "hardswish")
    classes = schema()
    model = classes.ModelT.InitFromPackedBuf(qfunc.deploy(target)(done).files["model.tflite"], 0)
    graph, codes = model.subgraphs[0], [c.builtinCode for c in model.operatorCodes]
    (found,) = (o for o in graph.operators if codes[o.opcodeIndex] == classes.BuiltinOperator.HARD_SWISH)
    assert [graph.tensors[int(i)].type for i in (*found.inputs, *found.outputs)] == [classes.TensorType.FLOAT32] * 2

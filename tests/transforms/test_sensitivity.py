"""sensitivity: each site alone against whole passes of hand-made models; only the ops that it reaches run again."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import qfunc
from qfunc.analysis.lockstep import Ops
from qfunc.graph.float_network import float_network
from qfunc.graph.sites import quantizer_nodes
from qfunc.specs import edit
from tests.onnxruntime_target import ONNXRUNTIME
from tests.transforms.checks import arguments, calibrated, leaves, same_state, state
from tests.transforms.nets import NAMES, network
from tests.transforms.test_errors import told

TARGET = ONNXRUNTIME


def alone(model: Any, path: str) -> Any:
    """The model with one quantizer only, the others removed from a copy by hand."""
    import copy

    made = copy.deepcopy(model)
    for node in list(made.graph.nodes):
        if node.op == "call_module" and str(node.target).startswith("quantizers.") and node.target != path:
            node.replace_all_uses_with(node.all_input_nodes[0])
            made.graph.erase_node(node)
    made.recompile()
    return made.eval()


@pytest.mark.thorough
@pytest.mark.parametrize("export", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_each_loss_is_that_of_a_model_with_this_site_only(name: str, export: bool) -> None:
    _, batch, done = calibrated(name, export=export)
    batches = [arguments(batch), tuple(v.flip(0) for v in arguments(batch))]
    before = state(done)
    found = {r.site: r for r in qfunc.sensitivity(batches)(done).rows}
    assert same_state(before, state(done))
    assert len(found) == len(quantizer_nodes(done))
    for seat in quantizer_nodes(done):
        signal = noise = 0.0
        count = 0
        for b in batches:
            with torch.no_grad():
                pairs = list(zip(leaves(float_network(done)(*b)), leaves(alone(done, seat.path)(*b)), strict=True))
            signal += sum(float(x.double().square().sum()) for x, _ in pairs)
            noise += sum(float((x.double() - y.double()).square().sum()) for x, y in pairs)
            count += sum(x.numel() for x, _ in pairs)
        row = found[seat.module.site.name]
        # Both sides are sums of the same float64 squares, in another order.
        assert row.sqnr == pytest.approx(10 * math.log10(signal / noise) if noise else math.inf, rel=1e-9)
        assert row.mse == pytest.approx(noise / count, rel=1e-9)
        assert (row.slot, row.op) == (seat.module.site.slot, seat.module.site.op)


def test_only_the_ops_that_a_site_reaches_run_again(monkeypatch: pytest.MonkeyPatch) -> None:
    _, x, done = calibrated("branches")
    called: list[str] = []
    call = Ops.call

    def counted(self: Ops, node: Any, value: Any) -> Any:
        called.append(node.name)
        return call(self, node, value)

    monkeypatch.setattr(Ops, "call", counted)
    found = qfunc.sensitivity([x])(done)
    ops = [n for n in called if n in {m.name for m in done.graph.nodes if m.op.startswith("call_")}]
    assert set(ops) == {"stem", "relu", "depthwise", "pointwise", "cat", "head"}
    # One float pass of six ops; the figures below are counted on paper.
    reached = {r.site: r.ops for r in found.rows}
    assert reached["x"] == reached["stem.weight"] == 6
    assert reached["depthwise.weight"] == reached["pointwise.bias"] == 3
    assert reached["head.weight"] == 1
    assert reached["head"] == 0
    assert len(ops) == 6 + found.ops
    assert found.naive_ops == 6 * len(found.rows)
    assert found.ops < found.naive_ops / 2


def test_a_site_that_changes_nothing_costs_nothing() -> None:
    net = nn.Linear(3, 2)
    with torch.no_grad():
        net.weight.copy_(torch.tensor([[1.0, 0, -1], [0, 2, 2]]))
    done = qfunc.calibrate([torch.randn(4, 3)])(qfunc.quantize(TARGET)(net))
    row = next(r for r in qfunc.sensitivity([torch.randn(4, 3)])(done).rows if r.slot == "weight")
    assert (row.sqnr, row.mse, row.cosine) == (math.inf, 0.0, 1.0)


def test_it_finds_the_layer_that_hurts() -> None:
    model, x = network("residual")
    target = edit.override(edit.name("conv2"), weights={"bits": 2})(TARGET)
    done = qfunc.calibrate([x])(qfunc.quantize(target)(model))
    found = qfunc.sensitivity([x])(done)
    assert found.worst(1)[0].site == "conv2.weight"
    assert [r.sqnr for r in found.worst(99)] == sorted(r.sqnr for r in found.rows)
    lines = str(found).splitlines()
    assert lines[0] == f"onnxruntime: one of {len(found.rows)} sites quantized at a time, 1 batch"
    assert lines[3].split()[0] == "conv2.weight"


def test_integer_outputs_are_left_out() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(4, 3)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            y = self.fc(x)
            return y, y.argmax(-1)

    x = torch.randn(5, 4)
    done = qfunc.calibrate([x])(qfunc.quantize(TARGET)(Net()))
    assert {r.agreement.elements for r in qfunc.sensitivity([x])(done).rows} == {15}


def test_the_page(tmp_path: Any) -> None:
    _, x, done = calibrated("residual")
    found = qfunc.sensitivity([x])(done)
    text = found.save(tmp_path / "losses.html").read_text()
    assert text == found.html()
    assert f"{found.ops} ops were rerun for each batch, instead of {found.naive_ops}." in text
    assert text.count("<tr>") == 1 + len(found.rows)
    assert text.count("<title>") == 1 + sum(math.isfinite(r.sqnr) for r in found.rows)


def test_wrong_uses_are_told_whole() -> None:
    model, x = network("residual")
    made = qfunc.quantize(TARGET)(model)
    text = "sensitivity: found no batches, wanted at least one. Pass a non-empty iterable, not one already used up."
    told(lambda: qfunc.sensitivity([])(qfunc.calibrate([x])(made)), "CalibrationError", text)
    text = "sensitivity: found a dict, wanted an iterable of batches. Put a single batch into a list: [batch]."
    told(lambda: qfunc.sensitivity({"x": x}), "CalibrationError", text)
    text = (
        "sensitivity: found a Residual that is not quantized, wanted a calibrated model. "
        "First run qfunc.calibrate(batches)(quantized)."
    )
    told(lambda: qfunc.sensitivity([x])(model), "CalibrationError", text)

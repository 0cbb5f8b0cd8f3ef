"""A wrong prediction fails even if no number differs; without onnx, emulation is the same."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest
import torch
from attrs import evolve
from torch import nn

import qfunc
from qfunc import targets
from qfunc.graph.view import QuantizedModel
from qfunc.placement.partition import Partition
from qfunc.specs import Fusion, FusionStep, Int, Op, Rule, Scheme, ZeroPoint, edit
from qfunc.transforms.verification.units import is_removable
from tests.conformance.modules import Apply
from tests.conformance.running import RUNNER, batches_of, calibrated
from tests.onnxruntime_target import ONNXRUNTIME

TARGET = ONNXRUNTIME
IMAGE = (2, 3, 9, 11)


def _without(kind):
    # The same hardware, except that it has no integer kernel for one kind of op.
    found = []
    for kernel in TARGET.kernels:
        kinds = tuple(k for k in getattr(kernel.unit, "kinds", ()) if k != kind)
        if kinds or not getattr(kernel.unit, "kinds", ()):
            found.append(evolve(kernel, unit=Op(kinds)) if kinds else kernel)
    return evolve(TARGET, kernels=tuple(found))


def _report(target, model, *shape):
    batches = batches_of(*shape)
    return qfunc.verify(target, RUNNER)(calibrated(model, *batches, target=target), batches)


@pytest.mark.parametrize(
    ("kind", "model", "shape"),
    [
        ("conv", nn.Conv2d(3, 4, 3), IMAGE),
        ("linear", nn.Linear(7, 4), (5, 7)),
        ("max_pool", nn.Sequential(nn.Conv2d(3, 4, 3), nn.MaxPool2d(2)), IMAGE),
        ("transpose", Apply(lambda x, a, b: b(a(x).transpose(1, 2)), nn.Linear(7, 4), nn.Linear(5, 3)), (2, 5, 7)),
        ("sigmoid", nn.Sigmoid(), (5, 7)),
        ("concat", Apply(lambda x: torch.cat([x, x], 1)), IMAGE),
        ("add", Apply(lambda x: x + x), IMAGE),
    ],
)
def test_a_kernel_that_the_target_lacks_is_a_disagreement(kind, model, shape):
    report = _report(_without(kind), model, *shape)
    assert any("predicted float, but the runtime runs it as integer" in d for d in report.disagreements), report
    assert report.verdict.startswith("mismatch: the runtime's units are not the predicted ones")


def test_a_wrong_partition_is_reported_though_no_number_differs():
    report = _report(
        _without("transpose"), Apply(lambda x, a, b: b(a(x).transpose(1, 2)), nn.Linear(7, 4), nn.Linear(5, 3)), 2, 5, 7
    )
    assert report.mismatches == 0
    assert report.verdict.startswith("mismatch")


def test_a_fusion_that_is_taken_for_integer_is_a_disagreement():
    # With a zero point of 128 a ReLU does not follow from the codes' range.
    centred = Scheme(Int(8, signed=False), zero_point=ZeroPoint(value=128))
    symmetric = evolve(TARGET, rules=(Rule(Op("conv"), output=centred), *TARGET.rules))
    bold = evolve(symmetric, fusions=tuple(evolve(f, integer_if=()) for f in symmetric.fusions))
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU(), nn.Conv2d(4, 4, 1))
    assert not _report(symmetric, model, *IMAGE).disagreements
    report = _report(bold, model, *IMAGE)
    assert any("predicted integer, but the runtime runs it as float" in d for d in report.disagreements), report


def test_a_fusion_that_no_kernel_computes_is_a_float_unit():
    # A residual add taken for fused into its convolution: no quantizer stands between, so the runtime has none either.
    class Residual(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Conv2d(3, 3, 1), nn.Conv2d(3, 4, 1)

        def forward(self, x):
            return self.b(torch.relu(self.a(x) + x))

    steps = (FusionStep(Op("add"), optional=True), FusionStep(Op("relu"), optional=True))
    greedy = evolve(TARGET, fusions=(Fusion(Op("conv"), steps), *TARGET.fusions))
    assert not _report(TARGET, Residual(), *IMAGE).disagreements
    report = _report(greedy, Residual(), *IMAGE)
    assert not report.disagreements
    assert report.float_units == (("a", "its integer kernel does not compute add, which is fused with it"),)


@pytest.mark.parametrize(
    ("function", "removable"),
    [
        (lambda x, a, b: b(a(x + 0.0)), True),
        (lambda x, a, b: b(a(torch.relu(x + 0.0))), True),
        (lambda x, a, b: b(a(x) + 0.5), False),
        (lambda x, a, b: b(a(x * 1.0)), True),
        (lambda x, a, b: b(a(x / 1)), True),
        (lambda x, a, b: b(torch.sin(a(x)) - torch.zeros(1)), True),
        (lambda x, a, b: b(torch.sin(a(x)) / torch.ones(3, 1, 1)), True),
        (lambda x, a, b: b(torch.sin(a(x)) - torch.tensor([0.0, 0.0, 1e-9]).reshape(3, 1, 1)), False),
        (lambda x, a, b: b(torch.ones(1) - torch.sin(a(x))), False),
        (lambda x, a, b: b(1 / a(x)), False),
        (lambda x, a, b: b(a(x)[:, :]), True),
        (lambda x, a, b: b(torch.relu(torch.relu(a(x)))), False),  # one op
        (lambda x, a, b: b(torch.tanh(a(x))), False),
    ],
)
def test_the_units_that_a_runtime_may_omit(function, removable):
    model = calibrated(Apply(function, nn.Conv2d(3, 3, 1), nn.Conv2d(3, 3, 1)), *batches_of(*IMAGE))
    partition = Partition(QuantizedModel(model), TARGET)
    assert any(is_removable(partition, u) for u in partition.units) is removable


@pytest.mark.thorough
def test_emulation_imports_neither_onnx_nor_a_runtime(tmp_path):
    program = """
        import sys
        sys.modules["onnx"] = sys.modules["onnxruntime"] = None
        import torch, qfunc
        from qfunc import targets
        from qfunc.specs import edit
        from torch import nn
        torch.manual_seed(0)
        net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(48, 5)).eval()
        x, target = torch.randn(2, 3, 9, 11), edit.weights(bits=4)(targets.onnxruntime)
        calibrated = qfunc.calibrate([x], progress=False)(qfunc.quantize(target)(net))
        torch.save(qfunc.emulate(target)(calibrated)(x), sys.argv[1])
        assert sys.modules["onnx"] is None and sys.modules["onnxruntime"] is None
    """
    place = str(tmp_path / "y.pt")
    subprocess.run([sys.executable, "-c", textwrap.dedent(program), place], check=True)
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(48, 5)
    ).eval()
    x, target = torch.randn(2, 3, 9, 11), edit.weights(bits=4)(targets.onnxruntime)
    model = qfunc.calibrate([x])(qfunc.quantize(target)(net))
    emulated = qfunc.emulate(target)(model)(x)
    runtime = torch.from_numpy(RUNNER.run(qfunc.deploy(target)(model), [x])[0])
    assert torch.equal(torch.load(place), emulated)
    assert torch.equal(emulated, runtime)

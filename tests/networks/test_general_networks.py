"""Networks as people have them: calibrated with one sample, emulated, deployed and run by batches of 1, 3 and 8."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import qfunc
from networks.general import CASES, Case
from qfunc import targets
from qfunc.graph.arguments import flatten
from qfunc.specs import edit
from qfunc.targets.runtimes import OnnxRuntimeRunner
from tests.onnxruntime_target import ONNXRUNTIME

pytestmark = pytest.mark.filterwarnings("ignore")  # of torch's own deprecated modules
TARGET = edit.weights(bits=7)(ONNXRUNTIME)  # of 7 bits: any x86-64 computes the same integers
SIZES = (1, 3, 8)
LEAST = 0.9999
OTHERS = ("recurrent: gru, both ways, last state", "recurrent: lstm cell", "attention: cross", "attention: masks",
          "structure: detector", "structure: weight norm", "ops: products", "ops: floats")  # fmt: skip


def tensors(value: Any) -> list[Tensor]:
    return [v for v in flatten(value) if isinstance(v, Tensor)]


def cosine(a: Tensor, b: Tensor) -> float:
    a, b = a.double().flatten(), b.double().flatten()
    if torch.equal(a, b):
        return 1.0
    return float(a @ b / (a.norm() * b.norm()))


def ready(case: Case, target: Any) -> tuple[nn.Module, Any, list[tuple[Tensor, ...]]]:
    torch.manual_seed(0)
    model = case.model()
    batches = [case.inputs(n) for n in SIZES]
    calibrated = qfunc.calibrate(batches[:1], progress=False)(qfunc.quantize(target)(model))
    return model, calibrated.eval(), batches


@pytest.mark.thorough
@pytest.mark.parametrize("name", CASES)
def test_the_runtime_computes_what_was_emulated_and_that_is_close_to_the_simulation(name: str) -> None:
    model, calibrated, batches = ready(CASES[name], TARGET)
    assert sum(hasattr(m, "site") for m in calibrated.modules()) >= CASES[name].sites
    captured = qfunc.capture()(model).eval()
    for expected, found in zip(tensors(model.eval()(*batches[1])), tensors(captured(*batches[1])), strict=True):
        # Attention and recurrence sum in another order than torch's own kernels: some tens of roundings of values below 8.
        assert torch.allclose(found, expected, rtol=0, atol=1e-5)
    emulate = qfunc.emulate(TARGET)(calibrated)
    for batch in batches:
        for simulated, emulated in zip(tensors(calibrated(*batch)), tensors(emulate(*batch)), strict=True):
            assert cosine(emulated, simulated) >= LEAST
    report = qfunc.verify(TARGET, OnnxRuntimeRunner(threads=1))(calibrated, batches)
    assert not report.disagreements
    assert report.agreement.startswith("bit-exact"), report


@pytest.mark.thorough
@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize("target", [targets.tensorrt, targets.qdq], ids=lambda t: t.name)
def test_plain_q_dq_files_compute_the_simulation(name: str, target: Any) -> None:
    _, calibrated, batches = ready(CASES[name], target)
    session = OnnxRuntimeRunner(optimise=False, threads=1).session(qfunc.deploy(target)(calibrated).files["model.onnx"])
    for batch in batches:
        for simulated, found in zip(tensors(calibrated(*batch)), session.run(batch), strict=True):
            assert cosine(torch.from_numpy(found), simulated) >= LEAST


@pytest.mark.parametrize("name", OTHERS)
def test_openvino_s_file_is_written(name: str) -> None:
    _, calibrated, _ = ready(CASES[name], targets.openvino)  # deploy itself compares the model with the simulation
    assert "model.onnx" in qfunc.deploy(targets.openvino)(calibrated).files


def test_recurrent_weights_are_stored_as_codes_in_the_order_of_onnx() -> None:
    onnx = pytest.importorskip("onnx")
    torch.manual_seed(0)
    layer = nn.LSTM(3, 2, batch_first=True)
    calibrated = qfunc.calibrate([torch.randn(2, 5, 3)], progress=False)(qfunc.quantize(targets.qdq)(layer))
    graph = onnx.load_from_string(qfunc.deploy(targets.qdq)(calibrated).files["model.onnx"]).graph
    made = {o: n for n in graph.node for o in n.output}
    (node,) = (n for n in graph.node if n.op_type == "LSTM")
    held = {i.name: onnx.numpy_helper.to_array(i) for i in graph.initializer}
    for place, name in ((1, "weight_ih_l0"), (2, "weight_hh_l0")):
        assert made[node.input[place]].op_type == "DequantizeLinear"
        codes, scale, zero = (held[i] for i in made[node.input[place]].input)
        assert codes.dtype == "int8"
        assert not zero.any()
        weight = torch.from_numpy(codes[0] * scale[:, None])
        # i, o, f, c of ONNX are the blocks 0, 3, 1, 2 of torch; half a step is the error of rounding.
        expected = torch.cat([getattr(layer, name).chunk(4)[k] for k in (0, 3, 1, 2)])
        assert ((weight - expected).abs() <= torch.from_numpy(scale)[:, None] * 0.5001).all()


REFUSED: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "proj_size": (
        lambda: nn.LSTM(6, 7, proj_size=4),
        "nn.LSTM: found proj_size=4, wanted an output of hidden_size. "
        "Pass torch.export.export(model, inputs).run_decompositions(), which has the steps as linear layers.",
    ),
    "add_bias_kv": (
        lambda: nn.MultiheadAttention(6, 2, add_bias_kv=True),
        "nn.MultiheadAttention: found add_bias_kv=True, wanted add_bias_kv=False. "
        "Append the row to key and value before the layer, or give example_inputs=(...,).",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_names_the_cure(name: str) -> None:
    make, message = REFUSED[name]
    with pytest.raises(qfunc.errors.CaptureError) as caught:
        qfunc.capture()(make())
    assert str(caught.value) == message


def test_the_cure_of_proj_size() -> None:
    torch.manual_seed(0)
    model, x = nn.LSTM(6, 7, proj_size=4).eval(), torch.randn(3, 2, 6)
    steps = torch.export.export(model, (x,)).run_decompositions()
    calibrated = qfunc.calibrate([x], progress=False)(qfunc.quantize(targets.onnxruntime)(steps))
    assert cosine(calibrated(x)[0], model(x)[0]) >= 0.999  # 8 bits
    assert "model.onnx" in qfunc.deploy(targets.onnxruntime)(calibrated).files

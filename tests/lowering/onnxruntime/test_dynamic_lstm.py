"""LSTM layers on integers: ONNX Runtime's DynamicQuantizeLSTM, bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper
from torch import nn

import qfunc
from qfunc import targets
from qfunc.errors import SpecError
from qfunc.lowering import QdqLowering
from qfunc.specs import Op, edit
from qfunc.targets.onnxruntime.dynamic_lstm import RUN_TIME, dynamic_lstm
from qfunc.targets.runtimes import OnnxRuntimeLowering, OnnxRuntimeRunner
from tests.onnxruntime_target import on_vnni
from tests.proof.packages import run_check

TARGET = targets.onnxruntime
WIDTH = 64
pytestmark = pytest.mark.filterwarnings("ignore:The tensor attribute")  # torch.export, of the weights that nn.LSTM keeps


def lstm_file(size: int, entries: int, reverse: bool, per_row: bool, bias: bool, states: bool) -> bytes:
    """Return a model of one DynamicQuantizeLSTM whose weights, scales, biases and states are inputs or constants of none."""
    rows = 4 * size
    shapes = {
        "x": (TensorProto.FLOAT, ["T", "N", entries]),
        "W": (TensorProto.INT8, [1, entries, rows]), "R": (TensorProto.INT8, [1, size, rows]),
        "B": (TensorProto.FLOAT, [1, 2 * rows]), "h": (TensorProto.FLOAT, [1, "N", size]),
        "c": (TensorProto.FLOAT, [1, "N", size]),
    }  # fmt: skip
    each = [1, rows] if per_row else [1]
    shapes |= {f"{w}{part}": (kind, each) for w in "WR" for part, kind in (("s", TensorProto.FLOAT), ("z", TensorProto.INT8))}
    absent = {*(() if bias else ("B",)), *(() if states else ("h", "c"))}
    names = ["x", "W", "R", "B", "", "h", "c", "", "Ws", "Wz", "Rs", "Rz"]
    node = helper.make_node(
        "DynamicQuantizeLSTM", ["" if n in absent else n for n in names], ["Y", "Yh", "Yc"], domain="com.microsoft",
        hidden_size=size, direction="reverse" if reverse else "forward",
    )  # fmt: skip
    given = [helper.make_tensor_value_info(n, *shapes[n]) for n in names if n and n not in absent]
    made = [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in ("Y", "Yh", "Yc")]
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    graph = helper.make_graph([node], "lstm", given, made)
    return bytes(helper.make_model(graph, opset_imports=opsets, ir_version=9).SerializeToString())


@on_vnni
@settings(deadline=None, max_examples=60)
@given(st.data())
def test_the_arithmetic_is_that_of_the_operator(data: Any) -> None:
    """Over sizes, directions, scales of rows or one, and inputs with one sign, with zeros alone, and with large values."""
    import onnxruntime as ort

    draw, g = data.draw, torch.Generator().manual_seed(data.draw(st.integers(0, 2**31)))
    steps, examples, entries, size = (draw(st.integers(1, most)) for most in (6, 5, 20, 20))
    reverse, per_row, bias, states = (draw(st.booleans()) for _ in range(4))
    scale, shift = draw(st.sampled_from([0.0, 1e-3, 1.0, 30.0])), draw(st.sampled_from([-2.0, 0.0, 2.0]))
    x = scale * (torch.randn(steps, examples, entries, generator=g) + shift)
    rows = 4 * size
    weights = [torch.randint(-127, 128, (rows, k), generator=g).float() for k in (entries, size)]
    scales = [torch.rand(rows if per_row else 1, generator=g) * 0.05 + 1e-3 for _ in range(2)]
    biases = [torch.randn(rows, generator=g) if bias else None for _ in range(2)]
    initial = [torch.randn(1, examples, size, generator=g) if states else None for _ in range(2)]
    zeros = torch.zeros(1, rows, dtype=torch.int8) if per_row else torch.zeros(1, dtype=torch.int8)

    def gates(w: torch.Tensor) -> torch.Tensor:  # i, f, g, o of torch as i, o, f, c of ONNX
        i, f, c, o = w.chunk(4)
        return torch.cat([i, o, f, c])

    feed = {"x": x, "Wz": zeros, "Rz": zeros}
    for name, weight, each in zip("WR", weights, scales, strict=True):
        feed[name] = gates(weight).T[None].to(torch.int8)
        feed[f"{name}s"] = gates(each)[None] if per_row else each
    if biases[0] is not None and biases[1] is not None:
        feed["B"] = torch.cat([gates(biases[0]), gates(biases[1])])[None]
    feed |= {n: t for n, t in zip("hc", initial, strict=True) if t is not None}
    # The weights are constants, as in files: of inputs the operator takes none.
    model = onnx.load_from_string(lstm_file(size, entries, reverse, per_row, bias, states))
    held = {n: t for n, t in feed.items() if n not in ("x", "h", "c")}
    model.graph.initializer.extend(onnx.numpy_helper.from_array(t.contiguous().numpy(), n) for n, t in held.items())
    kept = [i for i in model.graph.input if i.name not in held]
    del model.graph.input[:]
    model.graph.input.extend(kept)
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(model.SerializeToString(), options)
    wanted = session.run(None, {n: t.numpy() for n, t in feed.items() if n not in held})
    found = dynamic_lstm(x, *initial, weights[0], scales[0], weights[1], scales[1], *biases, reverse)
    for mine, theirs in zip(found, (wanted[0][:, 0], wanted[1], wanted[2]), strict=True):
        assert torch.equal(mine, torch.as_tensor(theirs))


class Stacked(nn.Module):
    """Several layers, and a linear layer on their results."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__()
        self.lstm = nn.LSTM(8, WIDTH, **arguments)
        self.head = nn.Linear(WIDTH * (2 if arguments.get("bidirectional") else 1), 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.lstm(x)[0])


class Streamed(Stacked):
    """The same, whose state is passed."""

    def forward(self, x: torch.Tensor, h: torch.Tensor, c: torch.Tensor) -> tuple[torch.Tensor, ...]:  # type: ignore[override]
        y, (h, c) = self.lstm(x, (h, c))
        return self.head(y), h, c


class Last(nn.Module):
    """The outputs of all steps, of what a recurrent layer returns."""

    def forward(self, found: tuple[torch.Tensor, Any]) -> torch.Tensor:
        return found[0]


FORMS: list[dict[str, Any]] = [
    {"num_layers": 2}, {"num_layers": 2, "batch_first": True}, {"num_layers": 2, "bidirectional": True},
    {"num_layers": 2, "bias": False}, {"num_layers": 3, "dropout": 0.2},
]  # fmt: skip


def network(form: dict[str, Any], examples: int, streamed: bool = False) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    torch.manual_seed(0)
    model = (Streamed if streamed else Stacked)(**form).eval()
    x = torch.randn(examples, 7, 8) if form.get("batch_first") else torch.randn(7, examples, 8)
    layers = form["num_layers"] * (2 if form.get("bidirectional") else 1)
    states = (torch.rand(layers, examples, WIDTH) - 0.5, torch.randn(layers, examples, WIDTH)) if streamed else ()
    return model, (x, *states)


def calibrated(model: nn.Module, inputs: tuple[torch.Tensor, ...], exported: bool = False, target: Any = TARGET) -> Any:
    given = torch.export.export(model, inputs) if exported else model
    return qfunc.calibrate([inputs], progress=False)(qfunc.quantize(target)(given))


@on_vnni
@pytest.mark.parametrize("exported", [False, True], ids=["traced", "exported"])
@pytest.mark.parametrize("examples", [1, 3])
@pytest.mark.parametrize("form", FORMS, ids=str)
def test_layers_are_emulated_bit_for_bit(form: dict[str, Any], examples: int, exported: bool) -> None:
    """All layers but the first, whose input is that of the network, given what the runtime has before them."""
    model, inputs = network(form, examples)
    ready = calibrated(model, inputs, exported)
    artifact = qfunc.deploy(TARGET)(ready)
    operators = [n.op_type for n in onnx.load_from_string(artifact.files["model.onnx"]).graph.node]
    ways = 2 if form.get("bidirectional") else 1
    assert operators.count("DynamicQuantizeLSTM") == ways * (form["num_layers"] - 1)
    assert operators.count("LSTM") == ways
    report = qfunc.verify(TARGET, latency=False)(ready, [inputs])
    assert not report.disagreements
    assert report.integer_products > 0.6 * report.products
    assert report.compared_products == report.integer_products
    assert report.sqnr is not None
    assert report.sqnr > 35
    assert str(report.verdict).startswith(f"{100 * report.integer_products / report.products:.1f} %"[:2])
    assert "mismatch" not in str(report.verdict)


@on_vnni
@pytest.mark.parametrize("exported", [False, True], ids=["traced", "exported"])
def test_states_that_are_passed(exported: bool) -> None:
    model, inputs = network({"num_layers": 2}, 2, streamed=True)
    report = qfunc.verify(TARGET, latency=False)(calibrated(model, inputs, exported), [inputs])
    assert not report.disagreements
    assert "0 of" in str(report.verdict)


def test_an_example_in_a_batch_has_other_codes_than_alone() -> None:
    """One scale covers the batch, in the runtime as in the emulation."""
    model, (x,) = network({"num_layers": 2}, 4)
    x[:, 0] *= 0.1
    emulation = qfunc.emulate(TARGET)(calibrated(model, (x,)))
    alone, together = emulation(x[:, :1]).detach(), emulation(x)[:, :1].detach()
    assert not torch.equal(alone, together)
    assert float((alone - together).abs().max()) < 0.1


@on_vnni
def test_threads_that_divide_the_batch_are_not_compared() -> None:
    """`verify` runs such files on one thread, as each thread has a scale of its own."""
    model, (x,) = network({"num_layers": 2}, 8)
    x[:, :4] *= 0.05
    ready, runner = calibrated(model, (x,)), OnnxRuntimeRunner(threads=2)
    assert "mismatch" not in str(qfunc.verify(TARGET, runner, latency=False)(ready, [x]).verdict)
    artifact = qfunc.deploy(TARGET)(ready)
    outputs = [OnnxRuntimeRunner(threads=n).run(artifact, [x.numpy()])[0] for n in (1, 2)]
    assert (outputs[0] != outputs[1]).any()


@on_vnni
def test_an_edit_puts_the_first_layer_and_a_small_one_on_integers() -> None:
    rule = next(rule for rule in TARGET.rules if rule.input == RUN_TIME)
    every = edit.pipe(TARGET, edit.slower(), edit.add(Op("lstm"), input=rule.input, weight=rule.weight))
    model, x = nn.Sequential(nn.LSTM(8, 16), Last()).eval(), torch.randn(7, 2, 8)
    report = qfunc.verify(every, latency=False)(calibrated(model, (x,), target=every), [x])
    assert report.integer_products == report.products
    assert str(report.verdict).startswith("bit-exact: 0 of")


@on_vnni
def test_a_package_for_a_device_is_checked_on_one_thread(tmp_path: Path) -> None:
    """Where the machine has several, each has scales of its own."""
    rule = next(rule for rule in TARGET.rules if rule.input == RUN_TIME)
    every = edit.pipe(TARGET, edit.slower(), edit.add(Op("lstm"), input=rule.input, weight=rule.weight))
    model, x = nn.Sequential(nn.LSTM(8, 16), Last()).eval(), torch.randn(7, 8, 8)
    x[:, :4] *= 0.05
    qfunc.prove(every)(calibrated(model, (x,), target=every), x).save(tmp_path / "package")
    code, printed, error = run_check(tmp_path / "package", tmp_path)
    assert not code, printed + error


def test_another_lowering_refuses_the_layers_at_once() -> None:
    """The Q/DQ file has no operator for them; the cures work."""
    model, inputs = network({"num_layers": 2}, 1)
    with pytest.raises(SpecError, match=r"lstm(.|\n)*QdqLowering(.|\n)*edit.skip"):
        qfunc.quantize(edit.deploy(QdqLowering(opset=17))(TARGET))(model)
    kept = edit.deploy(OnnxRuntimeLowering(opset=17))(TARGET)
    assert qfunc.deploy(kept)(calibrated(model, inputs, target=kept)).files
    skipped = edit.pipe(TARGET, edit.deploy(QdqLowering(opset=17)), edit.skip(edit.name("lstm.lstm_1")))
    assert qfunc.deploy(skipped)(calibrated(model, inputs, target=skipped)).files

"""save and load, and every other way in which a model travels: bit-equal, also in a new process."""

from __future__ import annotations

import copy
import io
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import fx, nn

import qfunc
from qfunc.errors import CalibrationError
from qfunc.graph.record import record_of
from tests.onnxruntime_target import ONNXRUNTIME
from tests.transforms.checks import arguments, calibrated, equal, quantized, same_state, state
from tests.transforms.nets import NAMES, network

TARGET = ONNXRUNTIME

READER = """
import sys, torch, qfunc
from tests.onnxruntime_target import ONNXRUNTIME  # the same target as here
from tests.transforms.nets import network
for name, export in (a.split(":") for a in sys.argv[2:]):
    model, batch = network(name)
    batch = batch if isinstance(batch, tuple) else (batch,)
    torch.manual_seed(99)
    made = qfunc.load(f"{sys.argv[1]}/{name}{export}", batch if export else None)(model)
    out = {"state": made.state_dict(), "training": made.training}
    if name != "two_inputs":
        out["value"] = made.eval()(*batch)
        out["codes"] = qfunc.emulate(ONNXRUNTIME)(made)(*batch)
        out["files"] = dict(qfunc.deploy(ONNXRUNTIME)(made).files)
    torch.save(out, f"{sys.argv[1]}/{name}{export}.pt")
"""


def trained(done: fx.GraphModule, batch: Any) -> fx.GraphModule:
    """The model after a step of training."""
    done = copy.deepcopy(done).train()
    done(*arguments(batch)).square().sum().backward()
    torch.optim.SGD(done.parameters(), lr=0.01).step()
    done.zero_grad()
    return done


@pytest.mark.thorough
def test_a_new_process_reads_the_same_model(tmp_path: Path) -> None:
    written = {}
    for name, export in (("residual", ""), ("residual", "x"), ("shared_weight", ""), ("tokens", "")):
        _, batch, done = calibrated(name, export=bool(export))
        before = state(done)
        done = trained(done, batch)
        assert not same_state(state(done), before)
        qfunc.save(tmp_path / f"{name}{export}")(done)
        written[f"{name}:{export}"] = (done, batch)
    _, batch, made = quantized("two_inputs")
    qfunc.save(tmp_path / "two_inputs")(made)
    written["two_inputs:"] = (made, batch)
    subprocess.run([sys.executable, "-c", READER, str(tmp_path), *written], check=True, cwd=Path(__file__).parents[2])
    for key, (done, batch) in written.items():
        found = torch.load(tmp_path / f"{key.replace(':', '')}.pt")
        assert same_state(found["state"], state(done))
        assert found["training"] == done.training
        if key != "two_inputs:":
            done.eval()
            assert equal(found["value"], done(*arguments(batch)))
            assert equal(found["codes"], qfunc.emulate(TARGET)(done)(*arguments(batch)))
            assert found["files"] == dict(qfunc.deploy(TARGET)(done).files)


@pytest.mark.parametrize("name", NAMES)
def test_load_gives_the_saved_model(name: str, tmp_path: Path) -> None:
    model, batch, done = calibrated(name)
    place = qfunc.save(tmp_path / "saved", qfunc.FloatWeights())(done)
    assert sorted(p.name for p in place.iterdir()) == ["model.safetensors", "qfunc.json"]
    again = qfunc.load(place)(model)
    assert same_state(state(again), state(done))
    assert record_of(again) == record_of(done)
    assert equal(again(*arguments(batch)), done(*arguments(batch)))
    assert again.code == done.code


def test_a_quantized_model_stays_uncalibrated(tmp_path: Path) -> None:
    model, x, made = quantized("residual")
    again = qfunc.load(qfunc.save(tmp_path / "saved")(made))(model)
    assert record_of(again).stage == "quantized"
    with pytest.raises(CalibrationError, match="no qparams yet"):
        again(x)
    assert same_state(state(qfunc.calibrate([x])(again)), state(qfunc.calibrate([x])(made)))


def test_two_saves_give_the_same_bytes(tmp_path: Path) -> None:
    _, _, done = calibrated("residual")
    a, b = (qfunc.save(tmp_path / n)(done) for n in "ab")
    assert all((a / n).read_bytes() == (b / n).read_bytes() for n in ("model.safetensors", "qfunc.json"))


def wrong_models() -> list[tuple[nn.Module, str]]:
    wider, strided, float64 = (network("residual")[0] for _ in range(3))
    wider.fc = nn.Linear(8, 6)
    strided.conv1.stride = (2, 2)
    return [
        (wider, "tensors that differ from the saved ones: fc.bias, fc.weight"),
        (strided, "an op that differs from the saved one: conv1 = conv2d"),
        (float64.double(), "tensors that differ from the saved ones: conv1.bias, conv1.weight"),
        (network("branches")[0], "tensors that differ from the saved ones: "),
    ]


@pytest.mark.parametrize("weights", [qfunc.CodedWeights(), qfunc.FloatWeights()])
@pytest.mark.parametrize("index", range(4))
def test_load_refuses_another_model(index: int, weights: Any, tmp_path: Path) -> None:
    _, _, done = calibrated("residual")
    place = qfunc.save(tmp_path / "saved", weights)(done)
    model, found = wrong_models()[index]
    with pytest.raises(CalibrationError) as caught:
        qfunc.load(place)(model)
    assert caught.value.where == f"load('{place}')"
    assert found in caught.value.found
    assert str(caught.value).endswith(
        "wanted the saved network. Build the model as it was when it was saved, and pass the arguments of the original "
        "quantize."
    )


def test_load_refuses_other_directories(tmp_path: Path) -> None:
    _, _, done = calibrated("residual")
    model, _ = network("residual")
    qfunc.deploy(TARGET)(done).save(tmp_path / "artifact")
    for place in (tmp_path / "nowhere", tmp_path, tmp_path / "artifact"):
        with pytest.raises(CalibrationError) as caught:
            qfunc.load(place)(model)
        assert str(caught.value) == (
            f"load('{place}'): found no saved model, wanted qfunc.json and model.safetensors. "
            "Pass the directory that qfunc.save wrote."
        )


def test_tensors_outside_the_state_dict_are_saved_too(tmp_path: Path) -> None:
    class Position(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(4, 4)
            self.register_buffer("position", torch.randn(4), persistent=False)
            self.offset = torch.randn(4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(x + self.position) + self.offset

    model, other, x = Position(), Position(), torch.randn(2, 4)
    done = qfunc.calibrate([x])(qfunc.quantize(TARGET)(model))
    again = qfunc.load(qfunc.save(tmp_path / "saved")(done))(other)
    assert torch.equal(again(x), done(x))
    assert not torch.equal(other.position, model.position)


def test_nothing_saved_is_a_pickle(tmp_path: Path) -> None:
    _, _, done = calibrated("residual")
    place = qfunc.save(tmp_path / "saved")(done)
    assert json.loads((place / "qfunc.json").read_text())["stage"] == "calibrated"
    assert (place / "model.safetensors").read_bytes()[8:9] == b"{"


def through_torch(model: fx.GraphModule) -> Any:
    buffer = io.BytesIO()
    torch.save(model, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=False)


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")
@pytest.mark.parametrize("copied", [copy.deepcopy, through_torch])
@pytest.mark.parametrize(
    ("name", "export"), [("residual", False), ("residual", True), ("shared_conv", False), ("dict_output", True)]
)
def test_copies_keep_their_record(copied: Callable[[Any], Any], name: str, export: bool) -> None:
    _, batch, made = quantized(name, export=export)
    done = qfunc.calibrate([batch])(copied(made))
    want = qfunc.calibrate([batch])(made)
    assert same_state(state(done), state(want))
    again = copied(done)
    assert record_of(again) == record_of(want)
    assert equal(qfunc.emulate(TARGET)(again)(*arguments(batch)), qfunc.emulate(TARGET)(want)(*arguments(batch)))
    assert qfunc.deploy(TARGET)(again).files == qfunc.deploy(TARGET)(want).files
    assert str(qfunc.explain(again)) == str(qfunc.explain(want))


def test_a_state_dict_makes_a_fresh_model_ready() -> None:
    model, x, done = calibrated("residual")
    fresh = qfunc.quantize(TARGET)(model)
    fresh.load_state_dict(done.state_dict())
    assert torch.equal(fresh(x), done(x))
    assert torch.equal(qfunc.emulate(TARGET)(fresh)(x), qfunc.emulate(TARGET)(done)(x))
    files = [qfunc.deploy(TARGET, example_inputs=(x,))(m).files for m in (fresh, done)]
    assert files[0] == files[1]
    with pytest.raises(qfunc.errors.DeployError) as caught:
        qfunc.deploy(TARGET)(fresh)
    assert str(caught.value) == (
        "deploy: found no shapes of the inputs, wanted the shapes of x. "
        "Pass deploy(target, example_inputs=(...,)), or calibrate the model."
    )


def test_a_state_dict_without_qparams_takes_them_away() -> None:
    model, _, done = calibrated("residual")
    with pytest.warns(UserWarning, match="a state without the qparams of 'x', 'conv1.bias'"):
        done.load_state_dict(qfunc.quantize(TARGET)(model).state_dict())
    with pytest.raises(CalibrationError, match="emulate: found a calibrated model without qparams at site 'x'"):
        qfunc.emulate(TARGET)(done)

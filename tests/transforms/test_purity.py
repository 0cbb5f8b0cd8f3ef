"""No transform changes its input; no result shares storage with it; modes stay as they were."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import fx, nn

import qfunc
from qfunc import targets
from qfunc.specs import Target, edit
from tests.onnxruntime_target import ONNXRUNTIME
from tests.transforms.checks import arguments, calibrated, equal, leaves, same_state, state
from tests.transforms.nets import NAMES, network

TARGET = ONNXRUNTIME


def steps(model: nn.Module, batch: Any, folder: Any) -> dict[str, tuple[nn.Module, Callable[[], Any]]]:
    """name -> (the transform's input, the transform)."""
    quantized = qfunc.quantize(TARGET)(model)
    done = qfunc.calibrate([batch])(quantized)
    return {
        "quantize": (model, lambda: qfunc.quantize(TARGET)(model)),
        "quantize, export": (model, lambda: qfunc.quantize(TARGET, arguments(batch))(model)),
        "calibrate": (quantized, lambda: qfunc.calibrate([batch])(quantized)),
        "emulate": (done, lambda: qfunc.emulate(TARGET)(done)),
        "deploy": (done, lambda: qfunc.deploy(TARGET)(done)),
        "verify": (done, lambda: qfunc.verify(TARGET)(done, [batch])),
        "explain": (done, lambda: qfunc.explain(done)),
        "save": (done, lambda: qfunc.save(folder / "saved")(done)),
        "compare": (done, lambda: qfunc.compare([batch])(done)),
        "sensitivity": (done, lambda: qfunc.sensitivity([batch])(done)),
        "bypass": (done, lambda: qfunc.bypass(edit.name("conv1"))(done)),
        "calibrate, quantized": (done, lambda: qfunc.calibrate([batch], through=qfunc.QuantizedPass())(done)),
    }


def snapshot(model: nn.Module) -> tuple[Any, ...]:
    modes = [(n, m.training) for n, m in model.named_modules()]
    grads = [(n, p.requires_grad, p.grad is None) for n, p in model.named_parameters()]
    code = model.code if isinstance(model, fx.GraphModule) else ""
    meta = dict(model.meta) if isinstance(model, fx.GraphModule) else {}
    return modes, grads, code, meta, sorted(vars(model))


STEPS = (
    "quantize", "quantize, export", "calibrate", "emulate", "deploy", "verify", "explain", "save", "compare", "sensitivity",
    "bypass", "calibrate, quantized",
)  # fmt: skip


@pytest.mark.thorough
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("training", [False, True])
def test_the_input_is_unchanged(step: str, training: bool, tmp_path: Any) -> None:
    model, batch = network("residual")
    given, transform = steps(model, batch, tmp_path)[step]
    given.train(training)
    given.get_submodule("bn1" if step.startswith("quantize") else "quantizers.conv1").train(not training)  # a mode of its own
    before, tensors, draw = snapshot(given), state(given), torch.get_rng_state()
    transform()
    assert snapshot(given) == before
    assert same_state(state(given), tensors)
    assert torch.equal(torch.get_rng_state(), draw)


@pytest.mark.parametrize("name", NAMES)
def test_training_the_result_leaves_the_input_unchanged(name: str) -> None:
    model, batch, done = calibrated(name)
    again = qfunc.calibrate([batch])(done)
    inputs = {"model": state(model), "calibrated": state(done)}
    again.train()
    optimiser = torch.optim.SGD(again.parameters(), lr=0.1)
    sum(v.square().sum() for v in leaves(again(*arguments(batch)))).backward()
    optimiser.step()
    moved = [n for n, p in again.named_parameters() if not torch.equal(p, done.get_parameter(n))]
    assert moved
    assert same_state(state(model), inputs["model"])
    assert same_state(state(done), inputs["calibrated"])
    with torch.no_grad():
        again.requires_grad_(False)
        for buffer in again.buffers():
            buffer.zero_()
    assert same_state(state(done), inputs["calibrated"])


@pytest.mark.parametrize("name", ["residual", "shared_conv"])
def test_an_emulation_owns_its_tensors(name: str) -> None:
    _, batch, done = calibrated(name)
    emulation = qfunc.emulate(TARGET)(done)
    want = emulation(*arguments(batch))
    before = state(done)
    with torch.no_grad():
        for tensor in (*done.parameters(), *done.buffers()):
            tensor.mul_(2)
    assert equal(emulation(*arguments(batch)), want)
    with torch.no_grad():
        for tensor in (*emulation.parameters(), *emulation.buffers()):
            tensor.zero_()
    assert same_state(state(done), {k: v * 2 for k, v in before.items()})


@pytest.mark.parametrize("target", [targets.vitis, targets.onnxruntime, targets.litert, targets.ncnn], ids=lambda t: t.name)
def test_an_emulation_can_be_copied(target: Target) -> None:
    """Its constants have no history of derivatives, which copies refuse."""
    x = torch.randn(2, 3, 5, 6)
    model = nn.Sequential(nn.Conv2d(3, 3, 1), nn.ConvTranspose2d(3, 4, 3), nn.ReLU(), nn.AvgPool2d(2)).eval()
    done = qfunc.calibrate([x], progress=False)(qfunc.quantize(target, example_inputs=(x,))(model))
    emulation = qfunc.emulate(target)(done)
    assert torch.equal(copy.deepcopy(emulation)(x), emulation(x))


def test_evaluation_semantics_whatever_the_mode() -> None:
    model, batch = network("residual")
    results = []
    for training in (False, True):
        quantized = qfunc.quantize(TARGET)(copy.deepcopy(model).train(training))
        assert quantized.training == training
        done = qfunc.calibrate([batch])(quantized)
        assert done.training == training
        deployed = qfunc.deploy(TARGET)(done).files["model.onnx"]
        report = qfunc.verify(TARGET)(done, [batch])
        assert done.training == training
        results.append((state(done), deployed, qfunc.emulate(TARGET)(done)(batch), report))
    (states, files, outputs, reports) = zip(*results, strict=True)
    assert same_state(*states)
    assert files[0] == files[1]
    assert torch.equal(*outputs)
    assert reports[0] == reports[1]


def test_dropout_still_drops_in_training() -> None:
    _, batch, done = calibrated("residual")
    done.train()
    torch.manual_seed(0)
    assert not torch.equal(done(batch), done(batch))
    done.eval()
    assert torch.equal(done(batch), done(batch))

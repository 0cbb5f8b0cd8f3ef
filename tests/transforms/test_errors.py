"""Every mistake of a user is told whole: where, what was found, what was wanted, what to do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from attrs import evolve, frozen
from torch import Tensor, nn

import qfunc
from qfunc import specs, targets
from qfunc.errors import EmulationError, QfuncError
from qfunc.specs import Op, edit
from qfunc.targets.runtimes import OnnxRuntimeRunner
from tests.onnxruntime_target import ONNXRUNTIME
from tests.transforms.checks import calibrated, quantized
from tests.transforms.nets import network

TARGET = ONNXRUNTIME
OTHER = evolve(TARGET, commuting=TARGET.commuting & ~Op("pad"))
BATCH = torch.randn(2, 3, 8, 8)


@frozen
class Zeros:
    """A wrong runner."""

    def run(self, artifact: Any, inputs: Any) -> Any:
        return [0 * v for v in OnnxRuntimeRunner(optimise=False).run(artifact, inputs)]


def told(action: Callable[[], object], kind: str, text: str) -> None:
    """Requires the whole message of a QfuncError."""
    with pytest.raises(QfuncError) as caught:
        action()
    assert type(caught.value).__name__ == kind
    assert str(caught.value) == text


def test_a_forward_before_calibration() -> None:
    _, x, made = quantized("residual")
    do = "Run qfunc.calibrate(batches)(quantized), or load a calibrated state_dict."
    text = f"site 'x': found no qparams yet, wanted a calibrated model. {do}"
    told(lambda: made(x), "CalibrationError", text)


def test_no_batches() -> None:
    _, _, made = quantized("residual")
    text = "{}: found no batches, wanted at least one. Pass a non-empty iterable, not one already used up."
    told(lambda: qfunc.calibrate([])(made), "CalibrationError", text.format("calibrate"))
    _, _, done = calibrated("residual")
    told(lambda: qfunc.verify(TARGET)(done, iter(())), "VerifyError", text.format("verify"))


@pytest.mark.parametrize(("given", "name"), [(BATCH, "a Tensor"), ({"x": BATCH}, "a dict"), (5, "an int"), ("ab", "a str")])
def test_a_batch_in_place_of_batches(given: Any, name: str) -> None:
    text = f"calibrate: found {name}, wanted an iterable of batches. Put a single batch into a list: [batch]."
    told(lambda: qfunc.calibrate(given), "CalibrationError", text)


def test_only_empty_batches() -> None:
    _, x, made = quantized("residual")
    text = "site 'x': found only empty tensors, wanted some values. Pass batches with at least one example."
    told(lambda: qfunc.calibrate([x[:0]])(made), "CalibrationError", text)


BARE = "Put the inputs of each batch into a tuple, and a single batch into a list: [(a, b)]."
FORWARD = "Pass batches with the arguments of the model's forward."


@pytest.mark.parametrize("export", [False, True])
def test_the_wrong_structure_of_a_batch(export: bool) -> None:
    _, (a, b), made = quantized("two_inputs", export=export)
    required = "2 required"
    names = "a, b, gain" if not export else None
    for batch, found in [
        ((a,), "1 input"),
        (a, "1 input"),
        ((), "0 inputs"),
        ({"a": a}, "a dict with keys 'a'"),
        ({"a": a, "c": b}, "a dict with keys 'a', 'c'"),
        ({"a": a, "b": b, "c": b}, "a dict with keys 'a', 'b', 'c'"),
        ({}, "a dict with keys none"),
        (None, "a NoneType"),
    ]:
        with pytest.raises(QfuncError) as caught:
            qfunc.calibrate([batch])(made)
        assert caught.value.found == found
        assert required in caught.value.wanted
        if names:
            wanted = f"a tensor, tuple or dict for the inputs {names} ({required})"
            do = BARE if batch is a else FORWARD
            assert str(caught.value) == f"calibrate, batch: found {found}, wanted {wanted}. {do}"


def test_shapes_that_the_model_does_not_take() -> None:
    _, _, made = quantized("two_inputs")
    with pytest.raises(QfuncError) as caught:
        qfunc.calibrate([(torch.ones(5, 4), torch.ones(5, 3)), (torch.ones(5, 4), torch.ones(5, 7))])(made)
    assert caught.value.where == "calibrate, batch 2, op 'right'"
    assert caught.value.found == "RuntimeError: mat1 and mat2 shapes cannot be multiplied (5x7 and 3x4)"
    assert str(caught.value).endswith(f"wanted inputs on which the model runs. {FORWARD}")


@pytest.mark.parametrize(("value", "word"), [(torch.nan, "NaN"), (torch.inf, "infinite"), (-torch.inf, "infinite")])
@pytest.mark.parametrize("estimator", [qfunc.estimators.MinMax(), qfunc.estimators.Ema()])
def test_values_that_are_not_finite(value: float, word: str, estimator: Any) -> None:
    model, x = network("residual")
    made = qfunc.quantize(edit.pipe(TARGET, edit.activations(estimator=estimator)))(model)
    bad = x.clone()
    bad[1, 2, 3, 4] = value
    text = (
        f"site 'x': found {word} values in the activations of batch 2, wanted finite values. "
        "Repair the weights, omit the batch, or leave the op in float by edit.skip."
    )
    told(lambda: qfunc.calibrate([x, bad])(made), "CalibrationError", text)


def test_the_first_site_in_graph_order_is_named() -> None:
    class Overflows(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.c(self.b(self.a(x)))

    net = Overflows()
    with torch.no_grad():
        net.b.bias[2] = 3.4e38
        net.b.weight.fill_(3e38)
    made = qfunc.quantize(TARGET)(net)
    with pytest.raises(QfuncError, match=r"site 'b': found .* values in the activations of batch 1"):
        qfunc.calibrate([torch.ones(1, 4) * 100])(made)


def test_the_member_of_a_tie_is_named() -> None:
    class Two(nn.Module):
        def forward(self, a: Tensor, b: Tensor) -> Tensor:
            return torch.cat([a, b])

    made = qfunc.quantize(targets.tensorrt)(Two())
    with pytest.raises(QfuncError, match="site 'b': found NaN values"):
        qfunc.calibrate([(torch.ones(1, 2), torch.full((1, 2), torch.nan))])(made)


@pytest.mark.parametrize(("value", "word"), [(torch.nan, "NaN"), (torch.inf, "infinite")])
def test_weights_that_are_not_finite(value: float, word: str) -> None:
    model, _ = network("residual")
    with torch.no_grad():
        model.fc.weight[1, 2] = value
    text = (
        f"site 'fc.weight': found {word} values in the model's tensors, wanted finite values. "
        "Repair the weights, omit the batch, or leave the op in float by edit.skip."
    )
    told(lambda: qfunc.quantize(TARGET)(model), "CalibrationError", text)


def test_integers_where_activations_should_be() -> None:
    made = qfunc.quantize(TARGET)(nn.Linear(3, 2))
    text = "site 'input': found torch.int64 values, wanted a float tensor. Use edit.skip for ops on such values."
    told(lambda: qfunc.calibrate([torch.ones(1, 3, dtype=torch.int64)])(made), "CalibrationError", text)


def test_a_list_where_activations_should_be() -> None:
    class Sum(nn.Module):
        def forward(self, xs: list[torch.Tensor]) -> torch.Tensor:
            return xs[0] + xs[1]

    pair = [torch.ones(2, 3), torch.ones(2, 3)]
    text = (
        "site 'xs': found a list, wanted a float tensor. "
        "Pass example_inputs=(...,) to quantize, so that each tensor is a separate input, or leave the op in float by "
        "edit.skip."
    )
    told(lambda: qfunc.calibrate([(pair,)])(qfunc.quantize(TARGET)(Sum())), "CalibrationError", text)
    assert len(qfunc.explain(qfunc.calibrate([(pair,)])(qfunc.quantize(TARGET, (pair,))(Sum()))).sites) >= 2


QUANTIZE = "First run qfunc.quantize(target)(model)."
CALIBRATE = "First run qfunc.calibrate(batches)(quantized)."


def test_steps_out_of_order() -> None:
    model, x, made = quantized("residual")
    done = qfunc.calibrate([x])(made)
    emulation = qfunc.emulate(TARGET)(done)
    early: dict[str, Callable[[Any], object]] = {
        "emulate": qfunc.emulate(TARGET),
        "deploy": qfunc.deploy(TARGET),
        "verify": lambda m: qfunc.verify(TARGET)(m, [x]),
    }
    for step, transform in early.items():
        kind = "a quantized model without qparams at site 'x'"
        told(lambda t=transform: t(made), "CalibrationError", f"{step}: found {kind}, wanted a calibrated model. {CALIBRATE}")
    any_time: dict[str, Callable[[Any], object]] = {
        "calibrate": qfunc.calibrate([x]),
        "explain": qfunc.explain,
        "save": qfunc.save("x"),
    }
    for given, found in [
        (model, "a Residual that is not quantized"),
        (qfunc.capture()(model), "a captured model"),
        (emulation, "an emulation"),
        (None, "a NoneType"),
    ]:
        for step, transform in any_time.items():
            text = f"{step}: found {found}, wanted a quantized model. {QUANTIZE}"
            told(lambda t=transform, g=given: t(g), "CalibrationError", text)
        for step, transform in early.items():
            text = f"{step}: found {found}, wanted a calibrated model. {CALIBRATE}"
            told(lambda t=transform, g=given: t(g), "CalibrationError", text)
    for given, found in [(made, "a quantized model"), (done, "a calibrated model"), (emulation, "an emulation")]:
        text = f"quantize: found {found}, wanted a float model. Quantize the float model that it came from."
        told(lambda g=given: qfunc.quantize(TARGET)(g), "CalibrationError", text)


def test_no_target() -> None:
    text = "quantize: found 'onnxruntime', wanted a Target. Pass the value: one of qfunc.targets, or your own specs.Target."
    told(lambda: qfunc.quantize("onnxruntime"), "SpecError", text)  # type: ignore[arg-type]


def test_models_of_different_networks() -> None:
    models = tuple(quantized(n)[2] for n in ("residual", "branches"))
    text = "calibrate: found quantized models of different networks, wanted one network. Calibrate them one by one."
    told(lambda: qfunc.calibrate([BATCH])(models), "CalibrationError", text)
    text = "calibrate: found an empty tuple, wanted at least one model. Pass a quantized model or a tuple of them."
    told(lambda: qfunc.calibrate([BATCH])(()), "CalibrationError", text)


@pytest.mark.parametrize("step", ["emulate", "deploy", "verify"])
def test_another_target(step: str) -> None:
    _, x, done = calibrated("residual")
    actions = {
        "emulate": lambda t: qfunc.emulate(t)(done),
        "deploy": lambda t: qfunc.deploy(t)(done),
        "verify": lambda t: qfunc.verify(t)(done, [x]),
    }
    text = (
        f"{step}(onnxruntime): found a model quantized for other hardware:\n{qfunc.specs.diff(TARGET, OTHER)}\n, wanted the "
        "hardware of 'onnxruntime'. Pass the target that the model was quantized for, or quantize for this one."
    )
    told(lambda: actions[step](OTHER), "EmulationError", text)
    assert "commuting" in text
    # The algorithm half may differ: it has done its work.
    actions[step](edit.pipe(TARGET, edit.activations(estimator=qfunc.estimators.Ema()), edit.weights(bits=4)))


def test_the_runner_of_the_target_may_differ() -> None:
    """A runner decides nothing about the numbers: each step takes the target with another one, and verify runs that one."""
    _, x, done = calibrated("residual")
    other = evolve(TARGET, runtime=evolve(TARGET.runtime, runner=Zeros()))
    assert qfunc.deploy(other)(done).files["model.onnx"] == qfunc.deploy(TARGET)(done).files["model.onnx"]
    assert torch.equal(qfunc.emulate(other)(done)(x), qfunc.emulate(TARGET)(done)(x))
    assert qfunc.verify(other, latency=False)(done, [x]).mismatches > 0
    named = evolve(other, runtime=evolve(other.runtime, name="another"))
    with pytest.raises(EmulationError, match="found a model quantized for other hardware"):
        qfunc.deploy(named)(done)


def test_arithmetic_that_is_not_public() -> None:
    _, _, done = calibrated("residual", target=targets.tensorrt)
    text = (
        "emulate(tensorrt): found no public arithmetic: the engine's rounding and order of fusion are not published, "
        "wanted a target whose kernels are known. The nearest target that can be emulated is targets.onnxruntime."
    )
    told(lambda: qfunc.emulate(targets.tensorrt)(done), "EmulationError", text)


LAYERS = {"compressed_tensors", "executorch_8da4w", "gguf", "onnxruntime_nbits", "openvino_blocks"}  # of multiples of 32 inputs


@pytest.mark.parametrize("name", sorted({*targets.__all__} - LAYERS))
def test_without_a_runtime_of_its_own_a_target_names_the_road(name: str) -> None:
    """ONNX Runtime runs Q/DQ; a float model with a table beside it only the vendor's tools run."""
    found = getattr(targets, name)
    target = found if isinstance(found, specs.Target) else found(8, 8)
    net, x = torch.nn.Linear(3, 2), torch.randn(4, 3)
    done = qfunc.calibrate([x], progress=False)(qfunc.quantize(target)(net))
    if target.runtime.runner is not None:
        known = ("cmsis_nn", "cmsis_nn_16x8", "executorch_xnnpack", "litert", "litert_optimised", "litert_reference",
                 "onnx_qnn", "onnxruntime", "openvino", "ncnn", "qnn_htp", "tosa")  # fmt: skip
        assert name in (*known, "qdq")
        return
    own = "runtime=run, where run(artifact, inputs) -> outputs."
    onnx = "runtime=targets.runtimes.OnnxRuntimeRunner(optimise=False), which runs the Q/DQ of its model.onnx as ONNX defines "
    onnx += "them; or "
    runs = name in ("academic", "academic_nlp", "ppl_cuda_affine", "tensorrt", "tensorrt_nlp", "vitis")
    text = f"verify({target.name}): found no runtime that can be run here, wanted a runner. Pass {onnx if runs else ''}{own}"
    told(lambda: qfunc.verify(target)(done, [x]), "VerifyError", text)
    if runs:  # as the message says
        report = qfunc.verify(target, runtime=targets.runtimes.OnnxRuntimeRunner(optimise=False))(done, [x])
        rows = [r for r in report.rows if r.kind != "float"]  # in bounds, not in LSB
        assert max(r.largest_lsb for r in rows) <= (1 if name == "vitis" else 1e-3)  # its ties; the order of float sums


def test_a_selector_that_matches_nothing() -> None:
    model, _ = network("residual")
    for change, where in [
        (edit.skip(edit.name("conv3")), "rules"),
        (edit.override(edit.name("conv3"), weights={"bits": 4}), "overrides"),
    ]:
        target = edit.pipe(TARGET, change)
        text = (
            f"target 'onnxruntime', {where}: found Name('conv3'), which matches nothing in the model, wanted a selector that "
            "matches an op or a tensor. Use one of: conv2, conv1."
        )
        told(lambda t=target: qfunc.quantize(t)(model), "SpecError", text)


def test_a_dtype_that_no_artifact_holds() -> None:
    model, x = network("residual")
    done = qfunc.calibrate([x.double()])(qfunc.quantize(TARGET)(model.double()))
    text = "deploy, input 'x': found float64, wanted float32. Quantize model.float() and calibrate it with float32 batches."
    told(lambda: qfunc.deploy(TARGET)(done), "DeployError", text)


def test_a_target_without_lowering() -> None:
    bare = evolve(TARGET, lowering=None)
    _, _, done = calibrated("residual", target=bare)
    text = "deploy(onnxruntime): found a target without a lowering, wanted a lowering. Give it one: edit.deploy(QdqLowering())."
    told(lambda: qfunc.deploy(bare)(done), "DeployError", text)


def test_every_error_pickles() -> None:
    import pickle

    with pytest.raises(QfuncError) as caught:
        qfunc.calibrate(5)  # type: ignore[arg-type]
    again = pickle.loads(pickle.dumps(caught.value))
    assert (type(again), str(again)) == (type(caught.value), str(caught.value))

"""`edit.state`: the cache is uint8 in the file, and every code, token and output is that of the emulation."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import onnx
import onnxruntime  # type: ignore[import-untyped]
import pytest
import torch
from attrs import evolve

import qfunc
from qfunc.errors import SpecError, VerifyError
from qfunc.specs import Target, edit
from qfunc.targets.runtimes import OnnxRuntimeRunner
from tests.decoding.decoders import WORDS, tokens
from tests.decoding.made import LENGTH, TARGETS, decoder
from tests.decoding.made import made as plainly_made
from tests.lowering.onnxruntime.test_float_kernels import pytestmark as exact

pytestmark = [exact, pytest.mark.filterwarnings("ignore")]  # torch.export warns of its own use of deprecated names


@cache
def made(name: str, kind: str) -> tuple[Target, Any, Any]:
    """(target, calibrated model, artifact) with the state in codes."""
    target = edit.state()(TARGETS[kind])
    _, small = decoder(name)
    batches = [small.inputs(tokens(4, length, length)) for length in (LENGTH, 5)]
    calibrated = qfunc.calibrate(batches, progress=False)(qfunc.quantize(target)(small.program))
    return target, calibrated, qfunc.deploy(target)(calibrated)


def types(artifact: Any) -> list[tuple[int, ...]]:
    graph = onnx.load_from_string(artifact.files["model.onnx"]).graph
    return [tuple(v.type.tensor_type.elem_type for v in values) for values in (graph.input, graph.output)]


FLOAT, BYTE, INDEX = onnx.TensorProto.FLOAT, onnx.TensorProto.UINT8, onnx.TensorProto.INT64


@pytest.mark.thorough
@pytest.mark.parametrize("kind", TARGETS)
def test_every_step_is_the_runtime_s(kind: str) -> None:
    target, calibrated, artifact = made("llama", kind)
    assert types(artifact) == [(INDEX, INDEX, BYTE, BYTE), (FLOAT, BYTE, BYTE)]
    report = qfunc.verify_tokens(target, 4)(calibrated, decoder("llama")[1].inputs(tokens(2, 5)))
    assert (report.mismatches, report.report.disagreements) == (0, ())
    compared = {r.name: r for r in report.report.of("codes")}
    written = [compared[f"model.layers.0.{name}"] for name in ("scatter", "scatter_1")]
    assert [(r.elements, r.mismatches) for r in written] == [(2 * 2 * LENGTH * 8 * 4, 0)] * 2
    if kind == "static":
        assert report.report.mismatches == 0


def test_the_cache_of_a_session_is_a_quarter() -> None:
    """The file as it is, in ONNX Runtime alone: codes go out and in, and the logits are those of the real interface."""
    _, _, artifact = made("llama", "static")
    _, small = decoder("llama")
    session = onnxruntime.InferenceSession(artifact.files["model.onnx"], providers=["CPUExecutionProvider"])
    names = [i.name for i in session.get_inputs()]
    run, ids = OnnxRuntimeRunner().loaded(artifact), tokens(2, 6)
    _, _, *real = small.inputs(ids)
    coded = [np.zeros(v.shape, np.uint8) for v in real]  # the mask hides what is not written
    for place in range(6):
        step = [ids[:, place : place + 1], torch.full((2, 1), place)]
        logits, *coded = session.run(None, dict(zip(names, [*(v.numpy() for v in step), *coded], strict=True)))
        expected, *real = run([*step, *real])
        np.testing.assert_array_equal(logits, expected)
    assert logits.shape == (2, 1, WORDS)
    assert (sum(v.nbytes for v in real), sum(v.nbytes for v in coded)) == (4096, 1024)


def test_the_codes_are_those_that_attention_reads_anyway() -> None:
    """With static scales the products quantize keys and values: the state in codes has the same scales, so the same answers."""
    target, calibrated, artifact = made("llama", "static")
    inputs = decoder("llama")[1].inputs(tokens(3, 5))
    plain = plainly_made("llama")
    emulated = qfunc.generate(8, progress=False)(qfunc.emulate(target)(calibrated), inputs)
    assert torch.equal(emulated, qfunc.generate(8, progress=False)(plain.emulated, inputs))
    ran = qfunc.generate(8, progress=False)(target.runtime.runner.loaded(artifact), inputs)
    assert torch.equal(ran, emulated)


def test_qparams_are_annotated() -> None:
    _, _, artifact = made("llama", "static")
    graph = onnx.load_from_string(artifact.files["model.onnx"]).graph
    stored = {i.name for i in graph.initializer}
    notes = {a.tensor_name: {p.key: p.value for p in a.quant_parameter_tensor_names} for a in graph.quantization_annotation}
    assert set(notes) == {"state_0", "state_1", *(o.name for o in graph.output[1:])}
    assert all(set(n) == {"SCALE_TENSOR", "ZERO_POINT_TENSOR"} and stored >= set(n.values()) for n in notes.values())


def test_names_of_outputs_stay() -> None:
    target, calibrated, _ = made("llama", "static")
    names = ("logits", "keys", "values")
    artifact = qfunc.deploy(target, output_names=names, input_names=("ids", "places", "old_keys", "old_values"))(calibrated)
    graph = onnx.load_from_string(artifact.files["model.onnx"]).graph
    assert tuple(o.name for o in graph.output) == names
    assert types(artifact)[1] == (FLOAT, BYTE, BYTE)
    inputs = decoder("llama")[1].inputs(tokens(2, 5))
    for a, b in zip(*(OnnxRuntimeRunner().run(each, inputs) for each in (artifact, made("llama", "static")[2])), strict=True):
        np.testing.assert_array_equal(a, b)


def test_only_schemes_are_accepted() -> None:
    with pytest.raises(SpecError) as e:
        edit.state(8)  # type: ignore[arg-type]
    assert str(e.value) == "edit.state: found 8, wanted a Scheme. Write edit.state(), or edit.state(Scheme(Int(8)))."


def test_state_of_other_qparams_stays_real() -> None:
    """Without the tie, what is written has other scales than the cache: the file writes real values between quantizers."""
    target = evolve(edit.state()(TARGETS["static"]), ties=())
    _, small = decoder("llama")
    zeros, later = small.inputs(tokens(4, LENGTH)), list(small.inputs(tokens(4, 3)))
    later[2:] = [v + 20.0 for v in later[2:]]  # a cache of larger values than the keys
    calibrated = qfunc.calibrate([zeros, tuple(later)], progress=False)(qfunc.quantize(target)(small.program))
    assert types(qfunc.deploy(target)(calibrated)) == [(INDEX, INDEX, FLOAT, FLOAT), (FLOAT, FLOAT, FLOAT)]


def test_prove_refuses_state_in_codes() -> None:
    target, calibrated, _ = made("llama", "static")
    named = qfunc.deploy(target, output_names=("logits", "keys", "values"))(calibrated)
    with pytest.raises(VerifyError) as e:
        qfunc.prove(target, artifact=named)(calibrated, decoder("llama")[1].inputs(tokens(2, 5)))
    assert str(e.value) == (
        "prove: found codes at state_0, state_1, keys, values, wanted real inputs and outputs, as check.py passes them. Prove "
        "the model of a target without edit.state()."
    )

"""`verify_tokens` with the runtime, and with runtimes that load a file with one wrong weight."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import onnx
import pytest
from attrs import frozen
from onnx import numpy_helper

import qfunc
from qfunc import targets
from qfunc.decoding.token_check import TokenReport
from qfunc.errors import EmulationError, VerifyError
from qfunc.lowering.artifact import Artifact
from qfunc.targets.runtimes import OnnxRuntimeRunner
from tests.decoding.decoders import tokens
from tests.decoding.made import made
from tests.lowering.onnxruntime.test_float_kernels import pytestmark as exact

pytestmark = [exact, pytest.mark.filterwarnings("ignore")]  # torch.export warns of its own use of deprecated names


@frozen
class Wrong:
    """ONNX Runtime on a file in which a row of a constant has other values."""

    name: str
    row: int

    def edited(self, artifact: Any) -> Artifact:
        model = onnx.load_from_string(artifact.files["model.onnx"])
        (constant,) = (i for i in model.graph.initializer if i.name == self.name)
        values = numpy_helper.to_array(constant).copy()
        values[self.row] = -values[self.row]
        constant.CopyFrom(numpy_helper.from_array(values, self.name))
        return Artifact({**artifact.files, "model.onnx": model.SerializeToString()})

    def run(self, artifact: Any, inputs: Any) -> Any:
        return OnnxRuntimeRunner().run(self.edited(artifact), inputs)

    def loaded(self, artifact: Any) -> Callable[[Any], Any]:
        return OnnxRuntimeRunner().loaded(self.edited(artifact))

    def inside(self, artifact: Any) -> Any:
        return OnnxRuntimeRunner().inside(self.edited(artifact))


def verified(name: str, runtime: Any = None, count: int = 8) -> TokenReport:
    it = made(name)
    return qfunc.verify_tokens(it.target, count, runtime)(it.calibrated, it.decoder.inputs(tokens(2, 5)))


def test_not_one_token_and_not_one_element_differs() -> None:
    report = verified("qwen3")
    assert (report.tokens, report.mismatches, report.first) == (16, 0, None)
    assert report.emulated == report.runtime
    assert report.verdict == f"0 of 16 tokens differ; bit-exact: 0 of {report.report.elements:,} elements differ"
    assert str(report).startswith("0 of 16 tokens differ\nonnxruntime by OnnxRuntimeRunner(): bit-exact")
    assert report.to_dict()["report"]["verdict"] == report.report.verdict


def test_a_fault_is_found_in_the_step_that_meets_it() -> None:
    """Position 7 of a text is read in step 3, after the 5 tokens of the prompt and 2 of the answer.

    The sum of embeddings is real, so that the first codes are those behind the norm that reads it.
    """
    report = verified("gpt2", Wrong("model.place.weight", 7))
    first = report.first
    assert first is not None
    assert (first.unit, first.step) == ("model.layers.0.norms.0", 3)
    assert first.token >= 3
    assert [a[: first.token] for a in report.emulated] == [b[: first.token] for b in report.runtime]
    assert (report.emulated[first.row][first.token], report.runtime[first.row][first.token]) == (first.emulated, first.runtime)
    assert report.verdict.startswith(
        f"{report.mismatches} of 16 tokens differ; token {first.token} of row {first.row}: {first.emulated} emulated, "
        f"{first.runtime} by the runtime; model.layers.0.norms.0 differs first, in step 3; mismatch: "
    )


def test_the_unit_with_a_wrong_weight_is_named() -> None:
    report = verified("llama", Wrong("model.layers.0.up.weight.codes", 0))
    assert report.first is not None
    assert (report.first.unit, report.first.step) == ("model.layers.0.up", 0)


@pytest.mark.thorough
def test_a_function_as_runtime_shows_outputs_only() -> None:
    wrong = Wrong("model.layers.0.up.weight.codes", 0)
    report = verified("llama", lambda artifact, inputs: wrong.run(artifact, inputs))
    assert report.first is not None
    assert (report.first.unit, report.first.step) == ("output 0", 0)


def test_what_is_refused() -> None:
    it = made("llama")
    with pytest.raises(VerifyError) as e:
        qfunc.verify_tokens(it.target, 13)(it.calibrated, it.decoder.inputs(tokens(1, 5)))
    assert str(e.value).startswith("verify_tokens: found 17 tokens before the last one, wanted at most 16")
    with pytest.raises(EmulationError):
        qfunc.verify_tokens(targets.tensorrt, 3)(it.calibrated, it.decoder.inputs(tokens(1, 5)))


def test_weights_in_blocks() -> None:
    """The real tensors of the session are its outputs there, but not the positions that it computes."""
    it = made("llama", "dynamic")
    report = qfunc.verify_tokens(it.target, 3)(it.calibrated, it.decoder.inputs(tokens(2, 5)))
    assert (report.mismatches, report.report.disagreements, report.report.predicted) == (0, (), 8)
    assert not any(r.mismatches for r in report.report.of("alone"))

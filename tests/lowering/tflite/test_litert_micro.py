"""`cmsis_nn` and `cmsis_nn_16x8` are what CMSIS-NN's sources say, and what TensorFlow Lite Micro computes."""

from __future__ import annotations

import importlib
import importlib.util
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import strategies as st
from torch import Tensor, nn

import qfunc
from qfunc import targets
from qfunc.errors import SpecError, VerifyError
from qfunc.graph.sites import quantizer_nodes
from qfunc.lowering import QdqLowering
from qfunc.numerics.kernels.fixed_point import reduced_multiplier
from qfunc.specs import edit
from qfunc.targets.runtimes import LiteRtRunner, OnnxRuntimeRunner, TfliteMicroRunner
from tests.conformance.modules import Apply
from tests.lowering.drawn_law import held_against
from tests.lowering.drawn_ops import ACTIVATIONS, KINDS, Drawn, Shape, convolution, curve, pair, pool, weighted
from tests.lowering.tflite.cmsis_nn import (
    Simulator, divide_by_power_of_two, doubling_high_mult, reduce_multiplier, requantize,
)  # fmt: skip

needs_files = pytest.mark.skipif(
    importlib.util.find_spec("ai_edge_litert") is None, reason="ai-edge-litert is not installed"
)  # fmt: skip
needs_micro = pytest.mark.skipif(
    importlib.util.find_spec("tflite_micro") is None, reason="tflite-micro is not installed"
)  # fmt: skip


# Ratios of scales that no calibration gives, which the kernels do not take.
REFUSED = {"ratios in [2^-10, 2^8)", "an input's scale below 128 times the output's", "a ratio below 2^8"}

BOTH = {"int8": targets.cmsis_nn, "16x8": targets.cmsis_nn_16x8}


class Net(nn.Module):
    """The operators that CMSIS-NN has, but for softmax."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.depthwise = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 8, 3, groups=4, stride=2)
        self.dilated, self.linear = nn.Conv2d(4, 4, 2, dilation=2, bias=False), nn.Linear(32, 5)
        self.pointwise = nn.Conv2d(3, 4, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        a, b = self.conv(x).relu(), self.pointwise(x)
        c = self.depthwise(F.avg_pool2d(a, 2, 1))
        return self.linear(c.flatten(1)), F.relu6(a * b), F.max_pool2d(a + b, 2), self.dilated(a)


def simulated(artifact: Any, inputs: Any, bugs: dict[str, Callable[..., int]] | None = None) -> list[Any]:
    """The outputs of an artifact by plain integers."""
    schema = importlib.import_module("ai_edge_litert.schema_py_generated")
    return Simulator(schema, artifact.files["model.tflite"], bugs).run([i.numpy() for i in inputs])


def calibrated(target: Any, seed: int = 0) -> tuple[Any, list[Tensor]]:
    """A network on a target, and batches, the second of which has values beyond those of calibration."""
    torch.manual_seed(seed)
    model, x = Net().eval(), torch.randn(2, 3, 6, 6)
    return qfunc.calibrate([x], progress=False)(qfunc.quantize(target)(model)), [x, 3 * torch.randn(2, 3, 6, 6)]


@needs_files
@pytest.mark.parametrize("target", BOTH)
def test_the_emulation_is_what_the_sources_say(target: str) -> None:
    model, batches = calibrated(BOTH[target])
    assert qfunc.verify(BOTH[target], simulated)(model, batches).agreement == "bit-exact: 0 of 996 elements differ"


def _plus(x: Tensor, other: nn.Module) -> Tensor:
    return x + other(x)


def _times(x: Tensor, other: nn.Module) -> Tensor:
    return other(x) * x


@st.composite
def entries(draw: Any, shape: Shape) -> Drawn:
    """A sum or a product of two tensors."""
    kind, layer = draw(st.sampled_from(("add", "mul"))), draw(weighted(nn.Conv2d, shape[1], shape[1], 1))
    return kind, nn.Sequential(Apply({"add": _plus, "mul": _times}[kind], layer), draw(ACTIVATIONS))


@st.composite
def dense(draw: Any, shape: Shape) -> Drawn:
    """A linear layer on the flattened image."""
    layer = draw(weighted(nn.Linear, math.prod(shape[1:]), draw(st.integers(1, 5))))
    return "linear", nn.Sequential(nn.Flatten(), layer, draw(ACTIVATIONS))


def windows(shape: Shape) -> st.SearchStrategy[Drawn]:
    """An average or a maximum over windows, not over the image."""
    return pool(shape).filter(lambda drawn: drawn[0] != "adaptive")


@needs_files
@pytest.mark.parametrize("target", BOTH)
def test_drawn_ops_are_what_the_sources_say(target: str) -> None:
    print(f"\n{held_against(simulated, BOTH[target], REFUSED, (convolution, dense, entries))}")


@needs_files
def test_drawn_ops_of_16_bits_are_what_the_reference_kernels_compute() -> None:
    """Convolutions and pools; LiteRT's own reference kernels round linear layers and products otherwise, by one code."""
    run = LiteRtRunner("reference", threads=1).run
    print(f"\n{held_against(run, targets.cmsis_nn_16x8, REFUSED, (convolution, windows))}")


@needs_files
@pytest.mark.parametrize("target", BOTH)
def test_ties_are_rounded_as_the_sources_say(target: str) -> None:
    """The codes -128 to 127, divided by 8: each tie occurs, of either sign."""
    conv = nn.Conv2d(2, 1, 1, bias=False)
    conv.weight.data = torch.tensor([127.0, 1.0]).reshape(1, 2, 1, 1) / 128  # a scale of 2^-7
    x = torch.stack((torch.zeros(256), torch.arange(-128.0, 128.0))).reshape(1, 2, 16, 16)
    model = qfunc.calibrate([x], progress=False)(qfunc.quantize(BOTH[target])(conv))
    for node in quantizer_nodes(model):
        if not node.module.site.constant:
            node.module.scale.fill_(1.0 if node.module.site.slot == "input" else 8 / 128)
            node.module.zero_point.fill_(0)
    verdict = qfunc.verify(BOTH[target], simulated)(model, [x]).verdict
    assert verdict == "bit-exact: 0 of 256 elements differ"
    assert qfunc.emulate(BOTH[target])(model)(x).unique().numel() == 33


@pytest.mark.parametrize("m", [2**30, 2**30 + 2**15 - 1, 2**30 + 2**15, 0x7FFEFFFF, 0x7FFF0000, 0x7FFF8000, 2**31 - 1])
def test_a_multiplier_is_reduced_to_15_bits(m: int) -> None:
    reduced, shift = reduced_multiplier(torch.tensor(m), torch.tensor(40), 31, 15)
    assert (int(reduced), int(shift)) == (reduce_multiplier(m), 24)


@needs_files
def test_biases_of_more_than_32_bits() -> None:
    """In the file and in Q/DQ ONNX: codes above 2^36, added exactly."""
    torch.manual_seed(0)
    conv, x = nn.Conv2d(2, 3, 1), torch.randn(2, 2, 4, 4)
    conv.bias.data = torch.tensor([1.0, -30.0, 200.0])
    conv.weight.data *= 1e-2
    target = targets.cmsis_nn_16x8
    model = qfunc.calibrate([x], progress=False)(qfunc.quantize(target)(conv))
    artifact = qfunc.deploy(target)(model)
    schema = importlib.import_module("ai_edge_litert.schema_py_generated")
    file = schema.ModelT.InitFromPackedBuf(artifact.files["model.tflite"], 0)
    (bias,) = (t for t in file.subgraphs[0].tensors if t.name == b"bias")
    codes = np.asarray(file.buffers[bias.buffer].data, np.uint8).view(np.int64)
    product = np.float32(1) * np.asarray(bias.quantization.scale, np.float32).astype(np.float64)
    assert codes.tolist() == np.rint(conv.bias.detach().numpy() / product).tolist()
    assert abs(codes).max() > 2**36
    for run in (simulated, LiteRtRunner("reference").run):
        assert qfunc.verify(target, run)(model, [x]).agreement.startswith("bit-exact: 0 of "), run
    onnx = edit.deploy(QdqLowering())(target)
    model = qfunc.calibrate([x], progress=False)(qfunc.quantize(onnx)(conv))
    found = qfunc.verify(onnx, OnnxRuntimeRunner(optimise=False))(model, [x])
    assert max(r.largest_lsb for r in found.rows) <= 1


def rounded_once(value: int, m: int, shift: int) -> int:
    """The other build of arm_nn_requantize, with CMSIS_NN_USE_SINGLE_ROUNDING."""
    return ((value * m >> (30 - shift)) + 1) >> 1


def shifted_first(value: int, m: int, shift: int) -> int:
    """The shift before the product."""
    return doubling_high_mult(divide_by_power_of_two(value, max(-shift, 0)) << max(shift, 0), m)


BUGS = {
    "one rounding": rounded_once,
    "another order": shifted_first,
    "a shift too many": lambda v, m, s: requantize(v, m, s - 1),
}


@needs_files
@pytest.mark.parametrize("bug", BUGS)
def test_a_simulator_with_another_rounding_is_a_mismatch(bug: str) -> None:
    model, batches = calibrated(targets.cmsis_nn)
    report = qfunc.verify(targets.cmsis_nn, partial(simulated, bugs={"requantize": BUGS[bug]}))(model, batches)
    assert not report.agreement.startswith("bit-exact"), report.verdict


@needs_files
@needs_micro
@pytest.mark.parametrize("target", BOTH)
def test_a_network_is_what_the_interpreter_computes(target: str) -> None:
    model, batches = calibrated(BOTH[target])
    assert qfunc.verify(BOTH[target])(model, batches).verdict == "bit-exact: 0 of 4,680 elements differ"


DRAWN = tuple(
    {
        curve: partial(curve, without=("elu", "gelu", "gelu, tanh", "sigmoid", "tanh")),
        pair: partial(pair, curved=nn.Hardswish),
    }.get(k, k)
    for k in KINDS
)


@needs_files
@needs_micro
def test_drawn_ops_are_what_the_interpreter_computes() -> None:
    print(f"\n{held_against(TfliteMicroRunner().run, targets.cmsis_nn, REFUSED, DRAWN)}")


@needs_files
@needs_micro
def test_drawn_ops_of_16_bits_are_what_the_interpreter_computes() -> None:
    print(f"\n{held_against(TfliteMicroRunner().run, targets.cmsis_nn_16x8, REFUSED, (convolution, dense, entries, windows))}")


@pytest.mark.skipif(importlib.util.find_spec("tflite_micro") is not None, reason="tflite-micro is installed")
def test_without_the_interpreter() -> None:
    with pytest.raises(VerifyError) as e:
        TfliteMicroRunner().session(b"")
    assert str(e.value) == (
        "TfliteMicroRunner: found the package tflite-micro is not installed, wanted tflite-micro and ai-edge-litert 2.3 or "
        "later. Install qfunc-torch[litert] and tflite-micro, or pass runtime=run, where run(artifact, inputs) -> outputs."
    )


def test_ops_that_the_interpreter_does_not_have() -> None:
    with pytest.raises(SpecError) as e:
        qfunc.quantize(targets.cmsis_nn)(nn.GELU())
    assert str(e.value) == (
        "target 'cmsis_nn', op 'gelu': found the kind 'gelu', wanted an op that it runs: TensorFlow Lite Micro, "
        "micro_mutable_op_resolver.h: no such operator. Use hardswish or relu."
    )

"""targets.openvino_blocks against OpenVINO: drawn products, a transformer block, and the file.

QFUNC_EXAMPLES=1000 python -m pytest -n 0 tests/lowering/openvino_cpu/test_openvino_blocks.py
"""

from __future__ import annotations

import importlib.util
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, numpy_helper
from onnx.reference import ReferenceEvaluator
from torch import Tensor, nn

import qfunc
from qfunc import targets
from qfunc.errors import SpecError
from qfunc.graph.sites import quantizer_nodes
from qfunc.lowering import runner_support
from qfunc.specs import edit
from qfunc.specs.formats import MATMUL_4BITS, MATMUL_4BITS_AFFINE
from qfunc.targets.openvino.blocks import runner as blocks_runner
from qfunc.targets.runtimes import OpenVinoBlocksRunner
from qfunc.testing import check_target
from tests.decoding.decoders import Shape, Small, tokens
from tests.lowering.drawn_law import EXAMPLES
from tests.lowering.gguf.test_ggml import Block, calibrated

INSTALLED = importlib.util.find_spec("openvino") is not None
needs_openvino = pytest.mark.skipif(not INSTALLED, reason="openvino is not installed")
needs_vnni = pytest.mark.skipif(bool(OpenVinoBlocksRunner().comparable()), reason="the kernels' arithmetic is that of VNNI")
SCHEMES = {"symmetric": MATMUL_4BITS, "affine": MATMUL_4BITS_AFFINE}


def inputs(kind: str, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Rows of several ranges, ties, groups of zeros or one outlier; of each group the largest is 0 or at least 2^-120."""
    x = torch.randn(shape, generator=generator) * 2.0 ** torch.randint(-60, 60, (*shape[:-1], 1), generator=generator)
    if kind == "ties":
        x = torch.randint(-254, 255, shape, generator=generator) / 2
        x[..., ::32] = 127.0
    if kind == "zeros":
        groups = torch.rand((*shape[:-1], shape[-1] // 32), generator=generator) < 0.5
        x = torch.where(groups.repeat_interleave(32, -1), 0.0, x)
    if kind == "outlier":
        x[..., 5] *= 1000.0
    return x


def difference(
    seed: int, bits: int, block: int, blocks: int, outputs: int, batch: tuple[int, ...], kind: str, scheme: str, biased: bool
) -> tuple[int, int]:
    """Return (outputs that differ, outputs) of one product, emulated and by OpenVINO."""
    generator = torch.Generator().manual_seed(seed)
    target = targets.openvino_blocks(bits, block, SCHEMES[scheme])
    layer = nn.Linear(block * blocks, outputs, bias=biased)
    spread = 2.0 ** torch.randint(-10, 10, (outputs, blocks), generator=generator)
    layer.weight.data = torch.randn(layer.weight.shape, generator=generator) * spread.repeat_interleave(block, 1)
    layer.weight.data[0, :block] = 0.0
    x = inputs(kind, (*batch, block * blocks), generator)
    done = calibrated(layer, target, x)
    found = qfunc.emulate(target)(done)(x).detach().numpy()
    (wanted,) = OpenVinoBlocksRunner().run(qfunc.deploy(target)(done), [x])
    assert np.isfinite(wanted).all()
    return int((found != wanted).sum()), wanted.size


@needs_openvino
@needs_vnni
@settings(max_examples=EXAMPLES or 25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.integers(0, 2**20), st.sampled_from((4, 8)), st.sampled_from((32, 64, 128)), st.integers(1, 18), st.integers(2, 37),
    st.sampled_from(((3,), (1,), (2, 5), (65,))), st.sampled_from(("normal", "ties", "zeros", "outlier")),
    st.sampled_from(sorted(SCHEMES)), st.booleans(),
)  # fmt: skip
def test_drawn_products_are_those_of_openvino(seed, bits, block, blocks, outputs, batch, kind, scheme, biased):
    assert difference(seed, bits, block, blocks, outputs, batch, kind, scheme, biased)[0] == 0


@needs_openvino
@needs_vnni
@pytest.mark.parametrize("scheme", SCHEMES)
def test_each_layer_of_a_transformer_block_is_exact_on_the_inputs_that_the_runtime_gives_it(scheme: str) -> None:
    torch.manual_seed(0)
    target, x = targets.openvino_blocks(4, 32, SCHEMES[scheme]), torch.randn(3, 7, 64)
    model = calibrated(Block(), target, x)

    report = qfunc.verify(target)(model, [x, torch.randn(2, 7, 64)])

    alone = {row.name: (row.mismatches, row.exact) for row in report.of("alone")}
    layers = ("query", "key", "value", "out", "up", "gate", "down", "head")
    assert {name: alone[name] for name in layers} == dict.fromkeys(layers, (0, True))
    assert "bit-exact outside" in report.verdict
    assert not any(row.mismatches for row in report.of("float"))


@needs_openvino
@needs_vnni
def test_a_layer_after_a_float_unit_is_not_blamed_where_the_outputs_are_equal() -> None:
    """The codes of the head's input hide that SiLU, in float32, differs in last bits, and with it the layer after it."""
    target, hidden = targets.openvino_blocks(4, 32), 0
    for seed in range(8):
        torch.manual_seed(seed)
        x = torch.randn(2, 64)
        model = calibrated(nn.Sequential(nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 32), nn.Linear(32, 5)), target, x)
        report = qfunc.verify(target)(model, [x])
        assert report.verdict.startswith("bit-exact")
        hidden += bool(report.mismatches) and not any(row.mismatches for row in report.of("output"))
    assert hidden


@needs_openvino
@needs_vnni
def test_the_answers_of_a_decoder_are_compared() -> None:
    """Its states are outputs, which attention reads under other names."""
    made = qfunc.decoder(12)(Small(Shape(head=16)).eval())
    prompt, target = made.inputs(tokens(2, 5)), targets.openvino_blocks(4, 32)
    calibrated = qfunc.calibrate([prompt], progress=False)(qfunc.quantize(target)(made.program))
    report = qfunc.verify_tokens(target, 3)(calibrated, prompt).report
    assert not report.disagreements
    layers = [row for row in report.of("alone") if row.exact]  # attention is in float
    assert len(layers) == 8
    assert not any(row.mismatches for row in layers)


@needs_openvino
@needs_vnni
def test_the_laws_of_targets_hold() -> None:
    """With a layer of one output and one between them, in float and in another width."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 7))
    check_target(targets.openvino_blocks(4, 32), models=[(model, torch.randn(3, 64)), (model, torch.randn(2, 5, 64))])


@needs_openvino
@needs_vnni
def test_a_layer_with_one_output_has_no_quantizers_and_is_computed_in_float() -> None:
    """A product of a matrix and a vector; in codes it would differ by a hundredth."""
    torch.manual_seed(0)
    target, x = targets.openvino_blocks(4, 32), torch.randn(3, 64)
    model = calibrated(nn.Sequential(nn.Linear(64, 32), nn.Linear(32, 1)), target, x)

    report = qfunc.verify(target)(model, [x])

    assert {q.module.site.name for q in quantizer_nodes(model) if q.module.site.constant} == {"0.weight"}
    assert report.of("real")[0].mismatches == 0
    assert not any(row.mismatches for row in report.of("float"))


@pytest.mark.parametrize(("bits", "scheme", "kind"), [
    (4, "symmetric", TensorProto.INT4), (4, "affine", TensorProto.UINT4),
    (8, "symmetric", TensorProto.INT8), (8, "affine", TensorProto.UINT8),
])  # fmt: skip
def test_the_file_has_the_weights_of_the_simulation_and_no_quantizer_of_inputs(bits: int, scheme: str, kind: int) -> None:
    """Read by ONNX's reference evaluator; signed codes have no zero points, with which OpenVINO computes in float."""
    torch.manual_seed(0)
    layer, target, x = nn.Linear(64, 8), targets.openvino_blocks(bits, 32, SCHEMES[scheme]), torch.randn(3, 64)
    model = calibrated(nn.Sequential(layer), target, x)

    graph = onnx.load_from_string(qfunc.deploy(target)(model).files["model.onnx"]).graph

    assert [n.op_type for n in graph.node] == ["DequantizeLinear", "Gemm"]
    dequantize = graph.node[0]
    held = {i.name: i for i in graph.initializer}
    assert held[dequantize.input[0]].data_type == kind
    assert len(dequantize.input) == (2 if scheme == "symmetric" else 3)
    seat: Any = next(q for q in quantizer_nodes(model) if q.module.site.constant)
    inner = onnx.helper.make_graph([dequantize], "w", [], [onnx.helper.make_tensor_value_info(dequantize.output[0], 1, None)],
                                   [held[n] for n in dequantize.input])  # fmt: skip
    made = onnx.helper.make_model(inner, opset_imports=[onnx.helper.make_opsetid("", 21)])
    (weight,) = ReferenceEvaluator(made).run(None, {})
    np.testing.assert_array_equal(weight, seat.module(layer.weight).detach().numpy())
    assert {"0.bias"} <= held.keys()
    np.testing.assert_array_equal(numpy_helper.to_array(held["0.bias"]), layer.bias.detach().numpy())


def test_signed_weights_with_zero_points_are_refused() -> None:
    """OpenVINO would compute their products in float."""
    torch.manual_seed(0)
    plain, x = targets.openvino_blocks(4, 32, MATMUL_4BITS_AFFINE), torch.randn(3, 64)
    target = edit.weights(signed=True)(plain)
    with pytest.raises(SpecError) as caught:
        qfunc.deploy(target)(calibrated(nn.Sequential(nn.Linear(64, 4)), target, x))
    assert str(caught.value).startswith("site 'input': found Int(8, low=-127) with a dynamic scale PerBlock(-1, size=32)")


WITH_AMX = ("avx512_vnni", "amx_int8")


@pytest.mark.parametrize(("features", "most", "reason"), [
    (("avx2", "avx_vnni"), "", "without AVX-512 VNNI, oneDNN has other kernels"),
    (("avx512_vnni",), "", ""),
    (WITH_AMX, "ALL", runner_support.AMX),
    (WITH_AMX, "avx10_1_512_amx", runner_support.AMX),
    (WITH_AMX, "avx512_core_vnni", ""),
])  # fmt: skip
def test_processors_whose_kernels_are_not_described(
    features: tuple[str, ...], most: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocks_runner, "other_kernels", lambda: "")
    for module in (blocks_runner, runner_support):
        monkeypatch.setattr(module, "has", lambda *names: not {*names}.isdisjoint(features))
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", most or "ALL")
    assert OpenVinoBlocksRunner().comparable() == reason


@pytest.mark.parametrize(("bits", "block"), [(4, 16), (3, 32), (8, 48)])
def test_blocks_and_widths_that_openvino_does_not_quantize_are_refused(bits: int, block: int) -> None:
    with pytest.raises(SpecError) as caught:
        qfunc.quantize(targets.openvino_blocks(bits, block))(nn.Sequential(nn.Linear(96, 4)))
    assert "Choose a block of 32, 64 or 128 and 4 or 8 bits." in str(caught.value)

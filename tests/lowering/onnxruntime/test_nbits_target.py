"""`targets.onnxruntime_nbits` on layers and a transformer block: files, units, and every bit of every product."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
import torch
import torch.nn.functional as F
from attrs import evolve
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import numpy_helper
from onnxruntime.capi import _pybind_state  # type: ignore[import-untyped]
from torch import Tensor, fx, nn

import qfunc
from qfunc import targets
from qfunc.analysis.verification_report import Report
from qfunc.errors import SpecError
from qfunc.specs import Scheme, Target, edit
from qfunc.specs.formats import MATMUL_4BITS, MATMUL_4BITS_AFFINE
from qfunc.targets.runtimes import MatMulNBitsLowering, OnnxRuntimeRunner
from qfunc.testing import check_target
from tests.lowering.onnxruntime.test_float_kernels import WIDE

exact = pytest.mark.skipif(not WIDE, reason="without AVX-512, MLAS adds in another order")


class Block(nn.Module):
    """A layer of a language model: attention of four heads, and two linear layers."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.q, self.k, self.v, self.o = (nn.Linear(width, width, bias=i < 2) for i in range(4))
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """[N, T, D] -> [N, T, D]."""
        n, t, d = x.shape
        y = self.before(x)
        q, k, v = (f(y).view(n, t, 4, d // 4).transpose(1, 2) for f in (self.q, self.k, self.v))
        mixed = torch.softmax(q @ k.transpose(-2, -1) / (d // 4) ** 0.5, -1) @ v
        x = x + self.o(mixed.transpose(1, 2).reshape(n, t, d))
        return x + self.down(F.gelu(self.up(self.between(x))))


class Gated(nn.Module):
    """Linear layers with what lies between them in float, of 1, 2 and 3 rows."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up, self.down = nn.Linear(256, 258), nn.Linear(256, 258, bias=False), nn.Linear(256, 7)

    def forward(self, x: Tensor) -> Tensor:
        """Scores."""
        return self.down((F.silu(self.gate(x)) * self.up(x))[..., :256])


def calibrated(target: Target, model: nn.Module, x: Tensor) -> fx.GraphModule:
    torch.manual_seed(0)
    for parameter in model.parameters():
        parameter.data = torch.randn(parameter.shape) * 0.1
    quantized: fx.GraphModule = qfunc.calibrate([x], progress=False)(qfunc.quantize(target)(model.eval()))
    return quantized


def nodes(artifact: Any) -> list[onnx.NodeProto]:
    return list(onnx.load_from_string(artifact.files["model.onnx"]).graph.node)


@pytest.mark.thorough
@exact
@pytest.mark.parametrize("scheme", [MATMUL_4BITS, MATMUL_4BITS_AFFINE], ids=["symmetric", "affine"])
@pytest.mark.parametrize(("bits", "block"), [(4, 16), (4, 32), (4, 64), (4, 256), (8, 32), (8, 64), (2, 32), (2, 128)])
def test_every_bit_of_a_network_is_emulated(bits: int, block: int, scheme: Scheme) -> None:
    """Between the layers, MLAS's SiLU: the emulation of the whole equals the runtime."""
    target = targets.onnxruntime_nbits(bits, block, scheme=scheme)
    batches = [torch.randn(shape) * 3 for shape in ((1, 256), (2, 256), (3, 256), (2, 5, 256))]
    for x in batches:
        report: Report = qfunc.verify(target)(calibrated(target, Gated(), x), [x])

        assert report.verdict == f"bit-exact: 0 of {report.elements:,} elements differ"
        assert (report.predicted, len(report.of("real"))) == (3, 3)


@exact
def test_a_transformer_is_emulated() -> None:
    """Its norms, its attention in float and its products."""
    target, x = targets.onnxruntime_nbits(), torch.randn(3, 7, 64)
    model = calibrated(target, nn.Sequential(Block(), Block(), nn.LayerNorm(64), nn.Linear(64, 50)), x)

    report: Report = qfunc.verify(target)(model, [x, torch.randn(5, 7, 64)])

    assert (report.mismatches, report.float_units, report.disagreements) == (0, (), ())
    assert all(r.exact for r in report.rows if r.kind in ("real", "output"))


@exact
@pytest.mark.parametrize("bits", [2, 4, 8])
def test_level_0_computes_in_float(bits: int) -> None:
    """Its layers quantize nothing at run time, and each bit is emulated."""
    target, x = targets.onnxruntime_nbits(bits, accuracy_level=0), torch.randn(3, 7, 64)

    report: Report = qfunc.verify(target)(calibrated(target, Block(), x), [x])

    assert (report.predicted, report.float_units, report.disagreements) == (0, (), ())
    assert all(r.exact for r in report.rows if r.kind in ("real", "output"))


def test_the_level_that_the_session_has_is_compared() -> None:
    """A file of level 0 for a target of level 4: its products do not quantize their inputs."""
    target, x = targets.onnxruntime_nbits(), torch.randn(3, 64)
    other = evolve(target, lowering=MatMulNBitsLowering(accuracy_level=0))

    report: Report = qfunc.verify(other)(calibrated(other, nn.Linear(64, 8), x), [x])

    assert report.disagreements == ("linear: predicted integer, but the runtime runs it as float",)


@pytest.mark.parametrize("k", [128, 100, 40])  # of odd numbers its packer writes halves of bytes that nothing reads
@pytest.mark.parametrize("scheme", [MATMUL_4BITS, MATMUL_4BITS_AFFINE], ids=["symmetric", "affine"])
def test_the_file_has_what_its_own_packer_writes(scheme: Scheme, k: int) -> None:
    """Codes, scales and zero points of onnxruntime's MatMulNBits quantizer, also where the last block is partial."""
    n, block, x = 5, 32, torch.randn(3, k)
    target = targets.onnxruntime_nbits(block=block, scheme=scheme)
    model = nn.Linear(k, n)
    made = calibrated(target, model, x)

    file = onnx.load_from_string(qfunc.deploy(target)(made).files["model.onnx"])

    affine, blocks = scheme is MATMUL_4BITS_AFFINE, -(-k // block)
    packed, scales = np.zeros((n, blocks, block // 2), np.uint8), np.zeros(n * blocks, np.float32)
    zeros = np.zeros(n * ((blocks + 1) // 2), np.uint8)
    columns = np.ascontiguousarray(model.weight.detach().numpy().T)
    _pybind_state.quantize_matmul_4bits(packed, columns, scales, zeros, block, n, k, not affine)
    (node,) = file.graph.node
    arrays = {i.name: numpy_helper.to_array(i) for i in file.graph.initializer}
    assert (node.op_type, node.domain, [o.domain for o in file.opset_import]) == (
        "MatMulNBits", "com.microsoft", ["", "com.microsoft"],
    )  # fmt: skip
    np.testing.assert_array_equal(arrays[node.input[1]], packed)
    # ONNX Runtime rounds max - min to float32, then the quotient: at most one unit in the last place.
    np.testing.assert_array_max_ulp(arrays[node.input[2]].ravel(), scales, maxulp=1 if affine else 0)
    assert [bool(name) for name in node.input] == [True, True, True, affine, False, True]
    if affine:
        np.testing.assert_array_equal(arrays[node.input[3]].ravel(), zeros)
    assert {a.name: a.i for a in node.attribute} == {
        "K": k, "N": n, "bits": 4, "block_size": block, "accuracy_level": 4,
    }  # fmt: skip


@st.composite
def partial_products(draw: st.DrawFn) -> tuple[int, int, int, int, int]:
    """Bits, a block that has a kernel, any K, and numbers of outputs and rows."""
    bits = draw(st.sampled_from((2, 4, 8)))
    block = draw(st.sampled_from((32, 64, 128) if bits == 2 else (16, 32, 64, 128, 256)))
    return bits, block, draw(st.integers(1, 520)), draw(st.integers(1, 20)), draw(st.integers(1, 5))


@pytest.mark.thorough
@exact
@settings(max_examples=60, deadline=None)
@given(partial_products(), st.booleans(), st.booleans(), st.integers(0, 2**20))
def test_products_over_any_number_of_inputs(shape: Any, affine: bool, biased: bool, seed: int) -> None:
    """The last block of K has the entries that are left: every bit of the layer is that of the runtime."""
    bits, block, k, n, rows = shape
    torch.manual_seed(seed)
    target = targets.onnxruntime_nbits(bits, block, scheme=MATMUL_4BITS_AFFINE if affine else MATMUL_4BITS)
    x = torch.randn(rows, k) * 3
    model = calibrated(target, nn.Linear(k, n, bias=biased), x)

    (wanted,) = OnnxRuntimeRunner().run(qfunc.deploy(target)(model), [x])

    np.testing.assert_array_equal(qfunc.emulate(target)(model)(x).detach().numpy(), wanted)


def test_narrower_codes_are_stored_in_the_width_that_holds_them() -> None:
    """3 bits in 4, and 8 bits for one layer among others of 4."""
    target = edit.pipe(targets.onnxruntime_nbits(8), edit.weights(bits=3), edit.override(edit.name("1"), weights={"bits": 8}))
    x = torch.randn(3, 64)
    made = calibrated(target, nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 8)), x)

    products = [n for n in nodes(qfunc.deploy(target)(made)) if n.op_type == "MatMulNBits"]

    assert [next(a.i for a in n.attribute if a.name == "bits") for n in products] == [4, 8]
    if WIDE:
        report: Report = qfunc.verify(target)(made, [x])
        assert report.verdict == f"bit-exact: 0 of {report.elements:,} elements differ"


def test_blocks_without_a_kernel_are_refused() -> None:
    with pytest.raises(SpecError) as e:
        qfunc.quantize(targets.onnxruntime_nbits(2, 16))(nn.Linear(64, 8))

    assert str(e.value) == (
        "target 'onnxruntime_w2_block16_level4', op 'linear': found the kind 'linear', wanted an op that it runs: onnxruntime "
        "1.31, mlas/lib/qnbitgemm.cpp: blocks of 16, 32, 64, 128 and 256; of int8 products of 2 bits 32, 64, 128. Choose "
        "another block, such as 32."
    )


@pytest.mark.thorough
def test_it_keeps_the_laws_of_targets() -> None:
    models = [(Gated().eval(), torch.randn(3, 256)), (nn.Linear(64, 8, bias=False).eval(), torch.randn(2, 3, 64))]
    for level in (4, 0) if WIDE else (0,):
        check_target(targets.onnxruntime_nbits(accuracy_level=level), models=models)

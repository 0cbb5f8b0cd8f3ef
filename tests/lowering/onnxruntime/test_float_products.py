"""MatMulNBits below accuracy level 4: each bit of the float32 sums of ONNX Runtime, for one row and for several."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper, numpy_helper
from torch import Tensor

import qfunc
from qfunc import targets
from qfunc.lowering.onnxruntime.block_weights import packed
from qfunc.lowering.onnxruntime.session import Session
from qfunc.numerics.kernels.nbits import float_product
from qfunc.specs import MATMUL_4BITS, MATMUL_4BITS_AFFINE, Scheme, edit
from tests.lowering.onnxruntime.test_float_kernels import WIDE
from tests.lowering.onnxruntime.test_nbits_target import Gated, calibrated

exact = pytest.mark.skipif(not WIDE, reason="without AVX-512, MLAS adds in another order")
RANGES = {"alike": 0, "mixed": 20, "all": 60}
"""The largest exponent of entries, up and down: of all, products overflow and vanish."""


@st.composite
def products(draw: st.DrawFn) -> tuple[Tensor, Tensor, Tensor, Tensor, int]:
    """Rows [M, K], codes [N, K], scales and zero points [N, B], and the block."""
    block, k, n = draw(st.sampled_from((16, 32, 64, 128, 256))), draw(st.integers(1, 300)), draw(st.integers(1, 40))
    m, exponent = draw(st.one_of(st.integers(1, 4), st.sampled_from((128, 129)))), RANGES[draw(st.sampled_from(sorted(RANGES)))]
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    blocks = -(-k // block)

    def real(*shape: int) -> Tensor:
        powers = 2.0 ** torch.randint(-exponent, exponent + 1, shape, generator=generator)
        return torch.randn(shape, generator=generator) * powers * (torch.rand(shape, generator=generator) < 0.9)

    codes = torch.randint(0, 16, (n, k), generator=generator)
    return real(m, k), codes, real(n, blocks), torch.randint(0, 16, (n, blocks), generator=generator), block


def by_the_runtime(x: Tensor, codes: Tensor, scales: Tensor, zeros: Tensor, block: int) -> Tensor:
    n, k = codes.shape
    blocks = np.pad(codes.numpy(), ((0, 0), (0, -k % block))).reshape(n, -1, block)
    arrays = {"codes": packed(blocks, 4), "scales": scales.numpy(), "zeros": packed(zeros.numpy(), 4)}
    node = helper.make_node(
        "MatMulNBits", ["x", *arrays], ["y"], domain="com.microsoft", K=k, N=n, bits=4, block_size=block, accuracy_level=0
    )
    ends = [helper.make_tensor_value_info(name, 1, None) for name in "xy"]
    stored = [numpy_helper.from_array(a, name) for name, a in arrays.items()]
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(helper.make_graph([node], "g", ends[:1], ends[1:], stored), opset_imports=opsets, ir_version=10)
    return torch.from_numpy(Session(model.SerializeToString(), threads=2).run([x.numpy()])[0])


@exact
@given(drawn=products())
@settings(max_examples=300, deadline=None)
def test_no_bit_of_a_product_differs(drawn: tuple[Tensor, Tensor, Tensor, Tensor, int]) -> None:
    x, codes, scales, zeros, block = drawn
    wide = [t.repeat_interleave(block, 1)[:, : codes.shape[1]] for t in (zeros, scales)]
    found, wanted = float_product(x, (codes - wide[0]).float() * wide[1]), by_the_runtime(*drawn)
    assert torch.equal(found.nan_to_num(7.0), wanted.nan_to_num(7.0))
    assert torch.equal(found.isnan(), wanted.isnan())


@exact
@pytest.mark.parametrize(("bits", "block", "level"), [(4, 32, 0), (4, 128, 1), (3, 16, 0)])
@pytest.mark.parametrize("scheme", [MATMUL_4BITS, MATMUL_4BITS_AFFINE], ids=["symmetric", "affine"])
def test_every_bit_of_a_network_is_emulated(bits: int, block: int, level: int, scheme: Scheme) -> None:
    target = targets.onnxruntime_nbits(bits, block, level, scheme)
    batches = [torch.randn(shape) * 3 for shape in ((1, 256), (2, 256), (129, 256))]
    made = calibrated(target, Gated(), batches[0])
    report = qfunc.verify(target)(made, batches)
    assert (report.mismatches, report.float_units, report.disagreements) == (0, (), ())
    assert [(r.kind, r.exact) for r in report.rows if r.kind == "output"] == [("output", True)]


@pytest.mark.parametrize("change", [edit.skip(edit.name("gate")), edit.override(edit.name("gate"), weights={"bits": 2})])
def test_other_weights_have_no_order(change: object) -> None:
    """A layer in float runs in another operator, and one of 2 bits in other kernels: both are compared with a bound."""
    target = edit.pipe(targets.onnxruntime_nbits(4, 32, 0), change)  # type: ignore[arg-type]
    x = torch.randn(3, 256)
    report = qfunc.verify(target)(calibrated(target, Gated(), x), [x])
    assert [path for path, _ in report.float_units] == ["gate"]
    assert not report.unbounded

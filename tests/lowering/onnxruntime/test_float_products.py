"""MatMulNBits below accuracy level 4: each bit of the float32 sums of ONNX Runtime, for one row and for several."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
from attrs import frozen
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper, numpy_helper
from torch import Tensor, nn

import qfunc
from qfunc import targets
from qfunc.lowering.onnxruntime.session import Session
from qfunc.specs import Scheme, Target, edit
from qfunc.specs.formats import MATMUL_4BITS, MATMUL_4BITS_AFFINE
from qfunc.targets.onnxruntime.block_weights import packed
from qfunc.targets.onnxruntime.float_products import float_product
from qfunc.targets.onnxruntime.matmul import mlas_linear
from tests.lowering.onnxruntime.test_float_kernels import WIDE
from tests.lowering.onnxruntime.test_nbits_target import Gated, calibrated
from tests.onnxruntime_target import on_vnni

exact = pytest.mark.skipif(not WIDE, reason="without AVX-512, MLAS adds in another order")
RANGES = {"alike": 0, "mixed": 20, "all": 60}
"""The largest exponent of entries, up and down: of all, products overflow and vanish."""
KINDS = (*sorted(RANGES), "subnormal", "whole")


def entries(kind: str, generator: torch.Generator, *shape: int) -> Tensor:
    """Numbers and zeros; "subnormal" scales and products, and "whole" numbers, whose sums are often ties."""
    exponent, kept = RANGES.get(kind, 0), torch.rand(shape, generator=generator) < 0.9
    powers = 2.0 ** torch.randint(-exponent, exponent + 1, shape, generator=generator)
    if kind == "whole":
        return torch.randint(-(2**12), 2**12 + 1, shape, generator=generator).float() * kept
    return torch.randn(shape, generator=generator) * powers * kept * (2.0**-68 if kind == "subnormal" else 1)


@frozen(eq=False)
class Product:
    """Rows [M, K], codes [N, K], scales and zero points [N, B], bias [N]; symmetric codes have no zero points."""

    x: Tensor
    codes: Tensor
    scales: Tensor
    zeros: Tensor | None
    bias: Tensor | None
    bits: int
    block: int
    threads: int
    level: int

    def weight(self) -> Tensor:
        """(q - z) s in float32."""
        middle = torch.full_like(self.scales, 2 ** (self.bits - 1))
        each = [middle if self.zeros is None else self.zeros, self.scales]
        zeros, scales = (t.repeat_interleave(self.block, 1)[:, : self.codes.shape[1]] for t in each)
        return (self.codes - zeros).float() * scales


@st.composite
def products(draw: st.DrawFn, bits: int) -> Product:
    """One row and several, up to four slices of K; products for one thread and for all."""
    k = draw(st.one_of(st.integers(1, 300), st.sampled_from((1, 128, 129, 256, 257, 520))))
    n = draw(st.one_of(st.integers(1, 40), st.sampled_from((64, 65, 130, 300))))
    m = draw(st.one_of(st.integers(1, 4), st.sampled_from((20, 40, 128, 129))))
    block, generator = draw(st.sampled_from((16, 32, 64, 128, 256))), torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    blocks, real = -(-k // block), partial(entries, draw(st.sampled_from(KINDS)), generator)
    codes, zeros = (torch.randint(0, 2**bits, (n, size), generator=generator) for size in (k, blocks))
    few = draw(st.integers(2, 3)) if bits == 4 else draw(st.integers(1, 5))
    return Product(
        real(m, k), codes, real(n, blocks), zeros if draw(st.booleans()) else None, real(n) if draw(st.booleans()) else None,
        bits, block, few, draw(st.integers(0, 3)),
    )  # fmt: skip


def by_the_runtime(p: Product) -> Tensor:
    n, k = p.codes.shape
    blocks = np.pad(p.codes.numpy(), ((0, 0), (0, -k % p.block))).reshape(n, -1, p.block)
    zeros = None if p.zeros is None else packed(p.zeros.numpy(), p.bits)
    given = {"codes": packed(blocks, p.bits), "scales": p.scales.numpy(), "zeros": zeros, "order": None, "bias": p.bias}
    arrays = {name: np.asarray(value) for name, value in given.items() if value is not None}
    node = helper.make_node(
        "MatMulNBits", ["x", *(name if name in arrays else "" for name in given)], ["y"], domain="com.microsoft",
        K=k, N=n, bits=p.bits, block_size=p.block, accuracy_level=p.level,
    )  # fmt: skip
    ends = [helper.make_tensor_value_info(name, 1, None) for name in "xy"]
    stored = [numpy_helper.from_array(a, name) for name, a in arrays.items()]
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(helper.make_graph([node], "g", ends[:1], ends[1:], stored), opset_imports=opsets, ir_version=10)
    return torch.from_numpy(Session(model.SerializeToString(), threads=p.threads).run([p.x.numpy()])[0])


@pytest.mark.thorough
@exact
@pytest.mark.parametrize("bits", [2, 4, 8])
@given(data=st.data())
@settings(max_examples=300, deadline=None)
def test_no_bit_of_a_product_differs(bits: int, data: st.DataObject) -> None:
    """4 bits have a kernel of their own, of two threads and more; 2 and 8 bits are dequantized, of any number of threads."""
    drawn = data.draw(products(bits))
    wanted = by_the_runtime(drawn)
    if bits == 4:
        found = float_product(drawn.x, drawn.weight(), drawn.bias)
    else:
        found = mlas_linear(drawn.x, drawn.weight(), drawn.bias, threads=drawn.threads)
    assert torch.equal(found.nan_to_num(7.0), wanted.nan_to_num(7.0))
    assert torch.equal(found.isnan(), wanted.isnan())


@pytest.mark.thorough
@exact
@pytest.mark.parametrize(
    ("bits", "block", "level"),
    [(4, 32, 0), (4, 128, 1), (3, 16, 0), (2, 16, 0), (2, 64, 3), (8, 32, 0), (8, 256, 2), (6, 32, 0)],
)
@pytest.mark.parametrize("scheme", [MATMUL_4BITS, MATMUL_4BITS_AFFINE], ids=["symmetric", "affine"])
def test_every_bit_of_a_network_is_emulated(bits: int, block: int, level: int, scheme: Scheme) -> None:
    target = targets.onnxruntime_nbits(bits, block, level, scheme)
    batches = [torch.randn(shape) * 3 for shape in ((1, 256), (2, 256), (129, 256))]
    made = calibrated(target, Gated(), batches[0])
    report = qfunc.verify(target)(made, batches)
    assert (report.mismatches, report.float_units, report.disagreements) == (0, (), ())
    assert [(r.kind, r.exact) for r in report.rows if r.kind == "output"] == [("output", True)]


@exact
@pytest.mark.parametrize("rows", [1, 2, 70, 129])
@pytest.mark.parametrize("threads", [1, 3])
def test_the_threads_of_the_session_are_those_of_the_target(threads: int, rows: int) -> None:
    """A layer of 17 columns is divided among threads, and so is attention of one head."""
    target, x = targets.onnxruntime_nbits(8, 32, 0, threads=threads), torch.randn(1, rows, 512)
    report = qfunc.verify(target)(calibrated(target, OneHead(), x), [x])
    assert (report.mismatches, report.float_units, report.disagreements) == (0, (), ())
    assert all(r.exact for r in report.rows if r.kind in ("real", "output"))


class OneHead(nn.Module):
    """Attention of one head, and linear layers of few columns."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.last = nn.Linear(512, 17), nn.Linear(512, 17), nn.Linear(17, 8)

    def forward(self, x: Tensor) -> Tensor:
        """Of [1, T, 512]."""
        scores = self.q(x) @ self.k(x.flip(1)).transpose(-1, -2)
        return self.last(torch.softmax(scores, -1) @ self.q(x))


SKIPPED = edit.skip(edit.name("gate"))(targets.onnxruntime_nbits(4, 32, 0))
ONE_THREAD = edit.override(edit.name("gate"), weights={"bits": 4})(targets.onnxruntime_nbits(8, 32, 0, threads=1))


@on_vnni
@pytest.mark.parametrize("target", [SKIPPED, ONE_THREAD], ids=["float", "4 bits, one thread"])
def test_other_layers_have_a_bound(target: Target) -> None:
    """A layer in float runs in another operator, and one of 4 bits divides its rows in no order that is described."""
    x = torch.randn(3, 256)
    report = qfunc.verify(target)(calibrated(target, Gated(), x), [x])
    assert [path for path, _ in report.float_units] == ["gate"]
    assert not report.unbounded

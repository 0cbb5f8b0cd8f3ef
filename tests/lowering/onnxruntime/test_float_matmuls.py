"""Products of two real tensors: each bit of ONNX Runtime's float32 sums, alone and in networks that are drawn."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from attrs import evolve, frozen
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import qfunc
from qfunc import targets
from qfunc.errors import EmulationError
from qfunc.specs import FloatMatmul, Kernel, Op
from qfunc.targets.onnxruntime.matmul import mlas_matmul
from tests.lowering.onnxruntime.test_float_kernels import WIDE, run
from tests.lowering.onnxruntime.test_float_products import RANGES
from tests.onnxruntime_target import ONNXRUNTIME

exact = pytest.mark.skipif(not WIDE, reason="without AVX-512, MLAS adds in another order")
FACTORS = st.sampled_from((None, 0.17677669529663687, 3.0))


@frozen(eq=False)
class Product:
    """a [.., M, K], b [.., K, N], whether b is stored transposed, and the factor."""

    a: Tensor
    b: Tensor
    transposed: bool
    factor: float | None
    threads: int


@st.composite
def products(draw: st.DrawFn) -> Product:
    """A single row and several, one column, one slice of K and several; fewer matrices than threads, and more."""
    m = draw(st.one_of(st.just(1), st.integers(1, 20)))
    k = draw(st.one_of(st.integers(1, 140), st.sampled_from((128, 129, 256, 300, 520, 1040))))
    n = draw(st.one_of(st.integers(1, 40), st.sampled_from((17, 64, 65, 130, 300))))
    lead = draw(st.sampled_from(((), (1,), (2,), (3, 1), (2, 3))))
    exponent = RANGES[draw(st.sampled_from(sorted(RANGES)))]
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))

    def real(*shape: int) -> Tensor:
        powers = 2.0 ** torch.randint(-exponent, exponent + 1, shape, generator=generator)
        return torch.randn(shape, generator=generator) * powers * (torch.rand(shape, generator=generator) < 0.9)

    return Product(real(*lead, m, k), real(*lead, k, n), draw(st.booleans()), draw(FACTORS), draw(st.integers(1, 6)))


@pytest.mark.thorough
@exact
@example(
    Product(
        torch.linspace(-1, 1, 9 * 1040).reshape(9, 1040), torch.linspace(-3, 1, 17 * 1040).reshape(1040, 17), False, None, 2
    )
)
@given(products())
@settings(max_examples=300, deadline=None)
def test_no_bit_of_a_product_differs(drawn: Product) -> None:
    fused = {"domain": "com.microsoft", "transB": int(drawn.transposed), "alpha": drawn.factor or 1.0}
    wanted = run("FusedMatMul", drawn.a, drawn.b.mT if drawn.transposed else drawn.b, threads=drawn.threads, **fused)
    found = mlas_matmul(drawn.a, drawn.b, drawn.transposed, drawn.factor, threads=drawn.threads)
    assert torch.equal(found.nan_to_num(7.0), wanted.nan_to_num(7.0))
    assert torch.equal(found.isnan(), wanted.isnan())


class Scores(nn.Module):
    """Two linear layers, their product as `form` writes it, and a linear layer of what it returns."""

    def __init__(self, form: Any, width: int) -> None:
        super().__init__()
        self.q, self.k, self.form, self.last = nn.Linear(32, width), nn.Linear(32, width), form, nn.Linear(32, 3)

    def forward(self, x: Tensor) -> Any:
        """[N, T, 32] -> scores and [N, T, 3]."""
        return self.form(self.q(x), self.k(x)), self.last(x)


def heads(t: Tensor, width: int) -> Tensor:
    """[N, T, heads * width] -> [N, heads, T, width]."""
    return t.view(t.shape[0], t.shape[1], -1, width).transpose(1, 2)


def axes(t: Tensor, *order: int) -> Tensor:
    """The axes of a tensor [N, T, width] in another order."""
    return t.view(t.shape[0], t.shape[1], -1).permute(*order)


FORMS = {
    "plain": lambda q, k: torch.matmul(q.relu(), k.relu().transpose(-1, -2)),
    "negative axes": lambda q, k: q @ k.mT * 0.3,
    "by a quotient": lambda q, k: q @ k.transpose(-2, -1) / 5.656854249492381,
    "heads": lambda q, k: heads(q, 16) @ heads(k, 16).transpose(-1, -2),
    "heads by a permutation": lambda q, k: heads(q, 16) @ k.view(k.shape[0], k.shape[1], -1, 16).permute(0, 2, 3, 1) * 0.25,
    "thrice transposed": lambda q, k: q @ k.mT.mT.mT,
    "of the first axis": lambda q, k: axes(q, 1, 0, 2) @ axes(k, 1, 2, 0),
    "values": lambda q, k: torch.softmax(heads(q, 16) @ heads(k, 16).mT, -1) @ heads(k, 16),
    "read twice": lambda q, k: (lambda s: s * 0.3 + s)(q @ k.mT),
    "attention": lambda q, k: nn.functional.scaled_dot_product_attention(heads(q, 16), heads(k, 16), heads(q, 16)),
}
UNKNOWN = {
    "transposed before a Relu": lambda q, k: heads(q, 16).relu() @ heads(k, 16).relu().mT,
    "scaled before": lambda q, k: (q.relu() * 0.3) @ k.mT,
    "the left one": lambda q, k: q.mT @ k,
    "axes of a tensor whose rank the graph does not tell": lambda q, k: q @ k.transpose(1, 2),
}


def calibrated(form: Any, batches: list[Tensor], width: int) -> Any:
    torch.manual_seed(0)
    model = qfunc.quantize(targets.onnxruntime_nbits(4, 32))(Scores(form, width).eval())
    return qfunc.calibrate(batches, progress=False)(model)


@pytest.mark.thorough
@exact
@pytest.mark.parametrize("name", sorted(FORMS))
@settings(max_examples=6, deadline=None, phases=(Phase.explicit, Phase.generate))
@given(st.sampled_from((32, 288)), st.integers(2, 4), st.integers(1, 9), st.integers(0, 2**16))
def test_a_product_in_a_network_is_exact(name: str, width: int, rows: int, tokens: int, seed: int) -> None:
    """With a number that the runtime fuses, with axes that it does not move, of one token and of several."""
    x = torch.randn(rows, tokens, 32, generator=torch.Generator().manual_seed(seed))
    report = qfunc.verify(targets.onnxruntime_nbits(4, 32))(calibrated(FORMS[name], [x], width), [x])
    assert report.mismatches == 0
    assert not report.float_units


@exact
@pytest.mark.parametrize("name", sorted(UNKNOWN))
def test_a_product_whose_order_the_graph_does_not_tell_has_a_bound(name: str) -> None:
    x = torch.randn(3, 5, 32, generator=torch.Generator().manual_seed(1))
    report = qfunc.verify(targets.onnxruntime_nbits(4, 32))(calibrated(UNKNOWN[name], [x], 32), [x])
    assert [path for path, _ in report.float_units] == ["matmul"]
    assert not report.unbounded
    assert not report.disagreements


def test_a_kernel_of_codes_says_what_it_lacks() -> None:
    target = evolve(ONNXRUNTIME, kernels=(Kernel(Op("matmul"), FloatMatmul()), *ONNXRUNTIME.kernels))
    x = torch.randn(3, 5, 32, generator=torch.Generator().manual_seed(1))
    model = qfunc.calibrate([x], progress=False)(qfunc.quantize(target)(Scores(FORMS["plain"], 32).eval()))
    with pytest.raises(EmulationError) as caught:
        qfunc.emulate(target)(model)
    assert str(caught.value) == (
        "unit 'matmul': found FloatMatmul() for a matmul of codes, wanted a kernel that takes reals. "
        'Add formats=(("input", (FLOAT32,)), ("output", (FLOAT32,))) to its Kernel.'
    )

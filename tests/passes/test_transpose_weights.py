"""Weights [K, N] of engines with blocks along K: a product is the linear layer of the transposed weight, in each runtime."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import qfunc
from qfunc import targets
from qfunc.graph.sites import quantizer_nodes
from qfunc.lowering.runner_support import other_kernels
from qfunc.specs import Target, edit

WIDTH = 64
TARGETS = {
    "gguf": targets.gguf("Q4_0"),
    "onnxruntime_nbits": targets.onnxruntime_nbits(4, 32),
    "executorch_8da4w": targets.executorch_8da4w(32),
}


def _installed(name: str) -> str:
    package = {"gguf": "libggml", "executorch_8da4w": "executorch"}.get(name, "onnxruntime")
    return other_kernels() or ("" if importlib.util.find_spec(package) else f"{package} is not installed")


class Product(nn.Module):
    """One product of [N, T, K] and a parameter [K, N], written in some way, and a bias."""

    def __init__(self, form: Callable[[Any, Tensor], Tensor], outputs: int) -> None:
        super().__init__()
        self.form = form
        self.w, self.b = nn.Parameter(torch.randn(WIDTH, outputs) * 0.1), nn.Parameter(torch.randn(outputs))

    def forward(self, x: Tensor) -> Tensor:
        return self.form(self, x)


def conv1d(m: Any, x: Tensor) -> Tensor:
    """As the layers of GPT-2 in transformers."""
    size = (*x.size()[:-1], m.w.shape[1])
    return torch.addmm(m.b, x.view(-1, x.size(-1)), m.w).view(size)


FORMS: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "product": lambda m, x: x @ m.w,
    "with a bias": lambda m, x: torch.matmul(x, m.w) + m.b,
    "addmm": conv1d,
    "mm": lambda m, x: torch.mm(x.flatten(0, 1), m.w).unflatten(0, (-1, 5)),
    "einsum": lambda m, x: torch.einsum("btk,kn->btn", x, m.w),
    "einsum, weight first": lambda m, x: torch.einsum("kn,btk->btn", m.w, x),
    "scaled": lambda m, x: x @ (m.w * 0.5),
    "linear": lambda m, x: F.linear(x, m.w.T, m.b),
    "linear, contiguous": lambda m, x: F.linear(x, m.w.t().contiguous(), m.b),
}


class Twin(nn.Module):
    """The linear layer with the same numbers, and the sum with a bias where the product has one of its own."""

    def __init__(self, model: Product, name: str) -> None:
        super().__init__()
        weight = (model.w.detach() * (0.5 if name == "scaled" else 1.0)).T.contiguous()
        self.w, self.added = nn.Parameter(weight), nn.Parameter(model.b.detach()) if name == "with a bias" else None
        self.b = nn.Parameter(model.b.detach()) if name in ("addmm", "linear", "linear, contiguous") else None

    def forward(self, x: Tensor) -> Tensor:
        y = F.linear(x, self.w, self.b)
        return y if self.added is None else y + self.added


def calibrated(target: Target, model: nn.Module, x: Tensor, exported: bool = False) -> Any:
    axes = ({0: torch.export.Dim.AUTO},)
    program = torch.export.export(model, (x,), dynamic_shapes=axes, strict=False) if exported else model
    return qfunc.calibrate([x], progress=False)(qfunc.quantize(target)(program))


@pytest.mark.thorough
@pytest.mark.parametrize("name", TARGETS)
@settings(max_examples=25, deadline=None)
@given(st.sampled_from(sorted(FORMS)), st.integers(1, 70), st.booleans(), st.integers(0, 2**20))
def test_a_product_is_the_linear_layer_of_its_transpose(name, form, outputs, exported, seed):
    """The simulation, the emulation and the runtime: every bit."""
    torch.manual_seed(seed)
    target, model, x = TARGETS[name], Product(FORMS[form], outputs).eval(), torch.randn(3, 5, WIDTH)
    exported = exported or form in ("addmm", "mm")  # which read sizes
    twin = calibrated(target, Twin(model, form), x)
    before = {n: p.clone() for n, p in model.named_parameters()}

    made = calibrated(target, model, x, exported)

    assert all(torch.equal(p, before[n]) for n, p in model.named_parameters())
    assert made.state_dict()["w"].shape == (WIDTH, outputs)
    torch.testing.assert_close(made(x), twin(x), rtol=0, atol=1e-5)  # float32 sums of 64 products below 8, in other orders
    assert torch.equal(qfunc.emulate(target)(made)(x), qfunc.emulate(target)(twin)(x))
    if not _installed(name):
        report = qfunc.verify(target)(made, [x, torch.randn(2, 5, WIDTH)])
        assert (report.predicted, report.disagreements) == (1, ())
        assert report.verdict.startswith("bit-exact: 0 of")


class Tied(nn.Module):
    """A table that embeds tokens, projects them and scores them, by one parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.inner = nn.Parameter(torch.randn(WIDTH, WIDTH)), nn.Parameter(torch.randn(WIDTH, WIDTH) * 0.1)

    def forward(self, tokens: Tensor) -> Tensor:
        return (F.embedding(tokens, self.table) @ self.inner) @ self.table.t()


@pytest.mark.parametrize("name", ["gguf", "onnxruntime_nbits"])
def test_a_transpose_of_a_transpose_is_the_parameter(name):
    target, tokens = TARGETS[name], torch.randint(0, WIDTH, (2, 5))

    model = calibrated(target, Tied().eval(), tokens)

    assert sorted(n for n, _ in model.named_parameters()) == ["inner", "table"]
    if not _installed(name):
        report = qfunc.verify(target)(model, [tokens])
        assert (report.predicted, report.verdict.split(":")[0]) == (2, "bit-exact")


def test_training_moves_the_parameter():
    """By the same step as that of the linear layer; both are deployed with the same codes."""
    torch.manual_seed(0)
    target, x, product = TARGETS["onnxruntime_nbits"], torch.randn(3, 5, WIDTH), Product(FORMS["product"], 8).eval()
    made = [calibrated(target, model, x) for model in (product, Twin(product, "product"))]

    for model in made:
        model(x).square().sum().backward()
        with torch.no_grad():
            model.w -= 1e-3 * model.w.grad

    assert not torch.equal(made[0].w, product.w)
    torch.testing.assert_close(made[0].w, made[1].w.T, rtol=1e-5, atol=1e-6)  # float32 sums of 15 rows, in other orders
    found, wanted = (qfunc.emulate(target)(model)(x) for model in made)
    torch.testing.assert_close(found, wanted, rtol=0, atol=0)


def test_targets_without_blocks_keep_their_products():
    target = edit.weights(bits=8)(targets.onnxruntime)

    network = qfunc.quantize(target)(Product(FORMS["product"], 8).eval())

    assert [n.target for n in network.graph.nodes if n.target in (torch.matmul, F.linear)] == [torch.matmul]


class Numbers(nn.Module):
    """A product with a matrix of numbers, then a layer with one: the first is no layer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("fourier", torch.fft.rfft(torch.eye(WIDTH)).real[:, :32].contiguous())
        self.register_buffer("w", torch.randn(32, 8))
        self.register_buffer("b", torch.randn(8))

    def forward(self, x: Tensor) -> Tensor:
        return torch.addmm(self.b, x @ self.fourier, self.w)


@pytest.mark.parametrize("name", TARGETS)
def test_a_matrix_of_numbers_is_a_weight_of_layers_only(name):
    """`addmm` is a layer, whose blocks are along its 32 inputs; `x @ fourier` is none."""
    x = torch.randn(3, WIDTH)

    model = calibrated(TARGETS[name], Numbers().eval(), x)

    assert qfunc.emulate(TARGETS[name])(model)(x).shape == (3, 8)
    weights = [q for q in quantizer_nodes(model) if q.module.site.constant]
    assert [(q.module.site.name, tuple(q.module.scale.shape)) for q in weights] == [("weight_of_addmm", (8, 1))]

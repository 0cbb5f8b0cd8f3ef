"""targets.gguf against ggml itself: products of drawn rows and weights, and whole networks, number by number.

QFUNC_EXAMPLES=1000 python -m pytest -n 0 tests/lowering/gguf/test_ggml.py
"""

from __future__ import annotations

import re
import importlib.util
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import qfunc
from qfunc import targets
from qfunc.errors import VerifyError
from qfunc.lowering.artifact import Artifact
from qfunc.targets.ggml.engine import engine
from qfunc.targets.runtimes import GgmlRunner
from qfunc.testing import check_target
from tests.lowering.drawn_law import EXAMPLES

INSTALLED = importlib.util.find_spec("libggml") is not None
needs_ggml = pytest.mark.skipif(not INSTALLED, reason="libggml-python is not installed")
KINDS = ("Q8_0", "Q5_0", "Q4_0", "Q5_1", "Q4_1", "MXFP4")
K_KINDS = ("Q6_K", "Q5_K", "Q4_K", "Q3_K", "Q2_K")
"""Types with super-blocks of 256 inputs."""


@st.composite
def values(draw: st.DrawFn, count: int, width: int, largest: int, least: int) -> np.ndarray[Any, Any]:
    """Rows of ordinary numbers, ties, zeros, one outlier a block, or of scales from 2^least on."""
    r = np.random.default_rng(draw(st.integers(0, 2**32)))
    shape = (count, width // 32, 32)
    kind = draw(st.sampled_from(("normal", "halves", "sparse", "outliers", "any scale")))
    x = r.integers(-254, 255, shape) / 2 if kind == "halves" else r.standard_normal(shape)
    if kind == "sparse":
        x *= r.random(shape) < 0.05
    if kind == "outliers":
        x[..., 0] *= 100
    if kind == "any scale":
        x *= np.exp2(r.integers(least, largest, (count, width // 32, 1)))
    return x.astype(np.float32).reshape(count, width)


@st.composite
def products(draw: st.DrawFn) -> tuple[str, np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """A type, a weight, whose outputs 8 divides or not, and a batch of rows.

    Scales of subnormal numbers are left out in K types, where ggml converts infinite quotients to integers, and in MXFP4, where
    it converts negative exponents to unsigned integers.
    """
    kind = draw(st.sampled_from((*KINDS, *K_KINDS)))
    width = 256 * draw(st.integers(1, 4)) if kind in K_KINDS else 32 * draw(st.integers(1, 20))
    outputs, count = draw(st.sampled_from((1, 3, 8, 13, 16, 24))), draw(st.integers(1, 9))
    least = -100 if kind in (*K_KINDS, "MXFP4") else -140
    return kind, draw(values(outputs, width, 8, least)), draw(values(count, width, 30, least))


def calibrated(model: nn.Module, target: Any, x: Tensor) -> Any:
    """The model quantized for a target."""
    return qfunc.calibrate([x], progress=False)(qfunc.quantize(target)(model.eval()))


@needs_ggml
@settings(max_examples=EXAMPLES or 400, deadline=None)
@given(products(), st.booleans())
def test_a_product_is_that_of_ggml(drawn: Any, biased: bool) -> None:
    """Every bit, for one row and several, repacked weights and others; the weight quantized by ggml itself."""
    kind, weight, rows = drawn
    layer = nn.Linear(weight.shape[1], len(weight), bias=biased)
    layer.weight.data = torch.from_numpy(weight)
    target, x = targets.gguf(kind), torch.from_numpy(rows)

    found = qfunc.emulate(target)(calibrated(layer, target, x))(x)

    wanted = engine().product(kind, engine().quantize(kind, weight), rows)
    wanted = wanted + layer.bias.detach().numpy() if biased else wanted
    np.testing.assert_array_equal(found.detach().numpy(), wanted)


class Block(nn.Module):
    """Attention and a gated layer, as in a language model, on a batch of sequences."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.query, self.key, self.value = nn.LayerNorm(64), nn.Linear(64, 64), nn.Linear(64, 64), nn.Linear(64, 64)
        self.out, self.up, self.gate, self.down = nn.Linear(64, 64), nn.Linear(64, 96), nn.Linear(64, 96), nn.Linear(96, 64)
        self.head = nn.Linear(64, 10, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        x = x + self.out(nn.functional.scaled_dot_product_attention(self.query(y), self.key(y), self.value(y)))
        return self.head(x + self.down(self.up(x) * nn.functional.silu(self.gate(x))))


NETWORKS = {
    "language model": (Block, (3, 7, 64)),
    "images": (
        lambda: nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(288, 40), nn.ReLU(), nn.Linear(40, 5)),
        (4, 3, 8, 8),
    ),
    "one row": (lambda: nn.Linear(320, 24), (320,)),
}  # fmt: skip


@needs_ggml
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", NETWORKS)
def test_each_product_of_a_network_is_that_of_ggml(name: str, kind: str) -> None:
    """`verify` compares every product on the inputs that it has in the file; ops between them are ONNX Runtime's."""
    torch.manual_seed(0)
    make, shape = NETWORKS[name]
    target = targets.gguf(kind)
    model = calibrated(make(), target, torch.randn(*shape))

    report = qfunc.verify(target)(model, [torch.randn(*shape) for _ in range(2)])

    # The sums of float ops before a product have no order, so that its own inputs decide.
    assert re.match(r"bit-exact\b.*: 0 of [\d,]+ elements differ", report.agreement), report
    assert len(report.of("real")) == (1 if name != "language model" else 8)


@needs_ggml
@pytest.mark.parametrize("kind", K_KINDS)
def test_products_of_super_blocks_in_a_network_are_those_of_ggml(kind: str) -> None:
    """Tokens of several sequences are one batch of rows, of which ggml adds whole groups of four in another order."""
    torch.manual_seed(0)
    target, x = targets.gguf(kind), torch.randn(3, 7, 256)
    model = calibrated(nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 13)), target, x)

    report = qfunc.verify(target)(model, [x])

    assert report.agreement.startswith("bit-exact"), report
    assert [r.mismatches for r in report.of("real")] == [0, 0]


@pytest.mark.thorough
@pytest.mark.parametrize("kind", K_KINDS)
def test_the_laws_of_targets_hold_for_super_blocks(kind: str) -> None:
    torch.manual_seed(0)
    mixed = nn.Sequential(nn.Linear(256, 24), nn.ReLU(), nn.Linear(24, 256), nn.Linear(256, 7, bias=False))
    check_target(targets.gguf(kind), models=[(mixed, torch.randn(5, 256))])


@pytest.mark.thorough
@pytest.mark.parametrize("kind", KINDS)
def test_the_laws_of_targets_hold(kind: str) -> None:
    """Also where every scale of a weight is a power of two, so that many products of codes and scales are equal."""
    torch.manual_seed(0)
    mixed = nn.Sequential(nn.Linear(64, 24), nn.ReLU(), nn.Linear(24, 32), nn.Linear(32, 7))
    sequences = nn.Sequential(nn.Linear(32, 32, bias=False), nn.Linear(32, 8))
    check_target(targets.gguf(kind), models=[(mixed, torch.randn(3, 64)), (sequences, torch.randn(2, 5, 32))])


@needs_ggml
def test_threads_change_no_number() -> None:
    torch.manual_seed(0)
    target, x = targets.gguf("Q4_0"), torch.randn(13, 256)
    artifact = qfunc.deploy(target)(calibrated(nn.Linear(256, 72), target, x))

    one, two = (GgmlRunner(threads=n).run(artifact, [x])[0] for n in (1, 2))

    np.testing.assert_array_equal(one, two)


@needs_ggml
def test_what_is_damaged_is_named() -> None:
    """A weight that is not in the file, and a file that ggml does not read."""
    target, x = targets.gguf("Q8_0"), torch.randn(2, 32)
    artifact = qfunc.deploy(target)(calibrated(nn.Linear(32, 4), target, x))
    other = qfunc.deploy(target)(calibrated(nn.Sequential(nn.Linear(32, 4)), target, x))
    lost = Artifact({**artifact.files, "model.gguf": other.files["model.gguf"]})
    cut = Artifact({**artifact.files, "model.gguf": artifact.files["model.gguf"][:100]})

    with pytest.raises(VerifyError) as missing:
        GgmlRunner().run(lost, [x])
    with pytest.raises(VerifyError) as damaged:
        GgmlRunner().run(cut, [x])

    assert str(missing.value) == (
        "GgmlRunner, model.gguf: found no tensor 'weight', wanted the weights of the graph. "
        "Deploy the model again, and keep both files."
    )
    assert str(damaged.value) == (
        "ggml, model.gguf: found a file that it does not read, wanted a GGUF file. Deploy the model again: the file is damaged."
    )


@pytest.mark.skipif(INSTALLED, reason="libggml-python is installed")
def test_without_the_package_the_runner_says_what_to_install() -> None:
    with pytest.raises(VerifyError) as caught:
        GgmlRunner().run(Artifact({"qfunc.json": b"{}"}), [])
    assert str(caught.value) == (
        "GgmlRunner: found the package libggml-python is not installed, wanted libggml-python 0.20.2 or later. "
        "Install qfunc-torch[gguf], or pass runtime=run, where run(artifact, inputs) -> outputs."
    )

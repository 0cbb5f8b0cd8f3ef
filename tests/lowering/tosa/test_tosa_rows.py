"""Softmax, norms and gated units in TOSA: rows of all lengths, with ties and extremes, as the reference model has them."""

from __future__ import annotations

import importlib.util
import warnings
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import qfunc
from qfunc import targets
from qfunc.errors import DeployError, EmulationError
from qfunc.graph.view import QuantizedModel
from qfunc.placement.partition import Partition
from qfunc.targets.runtimes import TosaRunner
from tests.lowering.drawn_law import EXAMPLES

needs_tosa = pytest.mark.skipif(
    importlib.util.find_spec("tosa_reference_model") is None, reason="tosa-tools is not installed"
)  # fmt: skip
TARGET = targets.tosa
LENGTHS = st.one_of(st.integers(1, 9), st.integers(10, 80), st.sampled_from((255, 256, 513, 1000)))


class Softmax(nn.Module):
    """Softmax along an axis."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, x: Tensor) -> Tensor:
        """Return the shares."""
        return torch.softmax(x, self.dim)


@st.composite
def drawn(draw: st.DrawFn) -> tuple[nn.Module, tuple[int, ...]]:
    """An op and the shape of its input."""
    n, kind = draw(LENGTHS), draw(st.sampled_from(("softmax", "layer", "layers", "rms", "group", "instance", "glu")))
    affine, eps = draw(st.booleans()), draw(st.sampled_from((1e-5, 1e-12, 0.3)))
    if kind == "softmax":
        dim, shape = draw(st.integers(1, 3)), [2, 3, 2, 4]
        shape[dim] = n
        return Softmax(draw(st.sampled_from((dim, dim - 4)))), tuple(shape)
    if kind == "glu":
        dim, shape = draw(st.integers(1, 3)), [2, 3, 2, 4]
        shape[dim] = 2 * n
        return nn.GLU(draw(st.sampled_from((dim, dim - 4)))), tuple(shape)
    made: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
        "layer": (nn.LayerNorm(n, eps, elementwise_affine=affine), (2, 5, n)),
        "layers": (nn.LayerNorm((3, n), eps, elementwise_affine=affine, bias=False), (2, 2, 3, n)),
        "rms": (nn.RMSNorm(n, eps if affine else None, elementwise_affine=affine), (2, 5, n)),
        "group": (nn.GroupNorm(2, 6, eps, affine=affine), (2, 6, n, 2)),
        "instance": (nn.InstanceNorm2d(3, eps, affine=affine), (2, 3, n, 2)),
    }
    return made[kind]


def _values(shape: tuple[int, ...], size: float, form: str, seed: int) -> Tensor:
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(shape, generator=g)
    made = {
        "normal": lambda: x, "steps": lambda: (x * 2).round(), "ends": lambda: x.sign(), "equal": lambda: torch.ones(shape),
        "one": lambda: (torch.arange(x.numel()) % 97 == 5).float().reshape(shape), "far": lambda: x * 0.05 + 3,
    }  # fmt: skip
    return made[form]() * size


@needs_tosa
@settings(max_examples=EXAMPLES or 25, derandomize=not EXAMPLES, deadline=None, database=None, phases=[Phase.generate],
          suppress_health_check=list(HealthCheck))  # fmt: skip
@given(
    drawn(),
    st.sampled_from((1e-4, 0.02, 0.5, 1.0, 6.0, 400.0)),
    st.sampled_from(("normal", "steps", "ends", "equal", "one", "far")),
    st.sampled_from((1.0, 1.4, 0.03)),
    st.integers(0, 2**16),
)
def test_rows_are_what_the_reference_model_computes(op, size, form, spread, seed):
    module, shape = op
    torch.manual_seed(seed)
    for p in module.parameters():
        p.data = torch.randn(p.shape) * (seed % 17 != 0)
    x = _values(shape, size, form, seed)
    model = _calibrated(module, x)
    assert all(u.integer for u in Partition(QuantizedModel(model), TARGET).units)
    (found,) = TosaRunner().run(qfunc.deploy(TARGET)(model), [x * spread])
    assert torch.equal(qfunc.emulate(TARGET)(model)(x * spread), torch.from_numpy(found))


def _calibrated(module: nn.Module, x: Tensor) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return qfunc.calibrate([x], progress=False)(qfunc.quantize(TARGET)(nn.Sequential(module).eval()))


def test_rows_of_sums_beyond_32_bits_are_refused():
    with pytest.raises(DeployError) as caught:
        qfunc.deploy(TARGET)(_calibrated(Softmax(-1), torch.randn(1, 4096)))
    assert str(caught.value) == (
        "tensor '0.softmax.codes': found softmax of rows of 4096, wanted at most 4095: their sum has 32 bits. "
        "Compute it outside of the deployed model, or attend to fewer positions."
    )
    model = _calibrated(nn.LayerNorm(2**15 + 1), torch.randn(1, 2**15 + 1))
    with pytest.raises(DeployError) as caught:
        qfunc.deploy(TARGET)(model)
    assert str(caught.value) == (
        "tensor '0.codes': found a norm of 32769 codes, wanted at most 32768: sums of 32 bits. "
        "Keep it out of the deployed model, or normalize fewer values."
    )
    with pytest.raises(EmulationError) as unfit:
        qfunc.emulate(TARGET)(model)(torch.randn(1, 2**15 + 1))
    assert str(unfit.value) == (
        "unit '0': found a norm of 32769 codes, wanted at most 32768. "
        "Keep it out of the deployed model, or normalize fewer values."
    )


class Tokens(nn.Module):
    """Embeddings of tokens and of positions, attention, and norms."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places, self.norm = nn.Embedding(17, 8, padding_idx=0), nn.Embedding(5, 8), nn.LayerNorm(8)
        self.attention, self.head = nn.MultiheadAttention(8, 2, batch_first=True), nn.Sequential(nn.RMSNorm(8), nn.Linear(8, 3))
        self.register_buffer("order", torch.arange(5))

    def forward(self, tokens: Tensor, x: Tensor) -> Tensor:
        """[N, 5] and [N, 5, 8] -> [N, 5, 3]."""
        y = self.norm(self.words(tokens) + self.places(self.order)) + x
        return self.head(y + self.attention(y, y, y, need_weights=False)[0])


@needs_tosa
def test_a_network_of_tokens_is_what_the_reference_model_computes():
    torch.manual_seed(3)
    batches = [(torch.randint(0, 17, (n, 5)), torch.randn(n, 5, 8)) for n in (2, 3)]
    model = qfunc.calibrate(batches, progress=False)(qfunc.quantize(TARGET)(Tokens().eval()))
    report = qfunc.verify(TARGET)(model, batches)
    assert report.agreement.startswith("bit-exact: "), report
    assert not report.float_units

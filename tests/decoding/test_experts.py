"""Stacked experts as linear layers: the same function, the weights of each expert, and every bit of ONNX Runtime."""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import qfunc
from qfunc import targets
from qfunc.decoding.experts import with_separate_experts
from tests.decoding.decoders import Experts, Mixture
from tests.lowering.onnxruntime.test_float_kernels import WIDE
from tests.onnxruntime_target import ONNXRUNTIME

pytestmark = pytest.mark.filterwarnings("ignore")  # torch.export warns of its own use of deprecated names
exact = pytest.mark.skipif(not WIDE, reason="without AVX-512, MLAS adds in another order")
LAYOUTS = st.fixed_dictionaries({name: st.booleans() for name in ("gate", "bias", "transposed", "norm")})


@st.composite
def mixtures(draw: st.DrawFn, least: int = 1) -> Mixture:
    """Experts of any layout."""
    torch.manual_seed(draw(st.integers(0, 2**16)))
    count, width, inner = draw(st.integers(least, 5)), draw(st.integers(1, 40)), draw(st.integers(1, 40))
    experts = Experts(count, (width, inner), **draw(LAYOUTS))
    return Mixture(experts, width, draw(st.integers(1, count))).eval()


@given(mixture=mixtures(), rows=st.integers(1, 9))
@settings(max_examples=60, deadline=None)
@torch.no_grad()
def test_the_function_is_that_of_the_stack(mixture: Mixture, rows: int) -> None:
    """Integers below 2^53, so that no sum is rounded, in any order: routing weights are made powers of 2, and SiLU is ReLU."""
    for parameter in mixture.experts.parameters():
        parameter.data = torch.randint(-8, 9, parameter.shape).double()
    mixture.experts.act_fn = nn.ReLU()
    experts, x = mixture.experts, torch.randint(-8, 9, (rows, mixture.router.in_features)).double()
    chosen = torch.rand(rows, experts.num_experts).argsort(-1)[:, : mixture.chosen]
    weights = 2.0 ** torch.randint(-3, 4, chosen.shape).double()
    assert torch.equal(with_separate_experts(deepcopy(experts))(x, chosen, weights), experts(x, chosen, weights))


def test_weights_keep_their_values_and_have_names_of_their_own() -> None:
    mixture = Mixture(Experts(3, (4, 5), bias=True, transposed=True), 4)
    made = with_separate_experts(deepcopy(mixture))
    names = [f"experts.{e}.{p}.{w}" for e in range(3) for p in ("gate_up_proj", "down_proj") for w in ("weight", "bias")]
    assert [n for n, _ in made.named_parameters()] == ["router.weight", *names]
    for e in range(3):
        assert torch.equal(made.get_parameter(f"experts.{e}.down_proj.weight"), mixture.experts.down_proj[e].T)
        assert torch.equal(made.get_parameter(f"experts.{e}.gate_up_proj.bias"), mixture.experts.gate_up_proj_bias[e])


@pytest.mark.thorough
@exact
@given(mixture=mixtures(), rows=st.integers(1, 9), bits=st.sampled_from([2, 4, 8]))
@settings(max_examples=12, deadline=None)
def test_no_element_of_a_product_differs_from_the_runtime(mixture: Mixture, rows: int, bits: int) -> None:
    x, target = torch.randn(rows, mixture.router.in_features), targets.onnxruntime_nbits(bits, 32)
    program = torch.export.export(with_separate_experts(mixture), (x,))
    calibrated = qfunc.calibrate([x], progress=False)(qfunc.quantize(target)(program))
    report = qfunc.verify(target)(calibrated, [x])
    assert not report.disagreements
    assert sum(r.kind == "real" for r in report.rows) >= 2 * len(mixture.experts) + 1


@pytest.mark.thorough
@exact
@given(mixture=mixtures(least=2), rows=st.integers(2, 9))
@settings(max_examples=8, deadline=None)
def test_no_element_with_static_scales_differs_from_the_runtime(mixture: Mixture, rows: int) -> None:
    """One expert has the probability 1 of softmax, whose code may be 0, and 0 / 0 is no number."""
    x = torch.randn(rows, mixture.router.in_features)
    program = torch.export.export(with_separate_experts(mixture), (x,))
    calibrated = qfunc.calibrate([x], progress=False)(qfunc.quantize(ONNXRUNTIME)(program))
    report = qfunc.verify(ONNXRUNTIME)(calibrated, [x])
    assert (report.mismatches, report.disagreements) == (0, ())

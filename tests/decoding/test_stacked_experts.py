"""Mixtures of experts as one QMoE: every bit of ONNX Runtime, only the chosen experts, and which mixtures stay apart."""

from __future__ import annotations

from typing import Any

import onnx
import pytest
import torch
from attrs import evolve
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import qfunc
from qfunc import targets
from qfunc.decoding.experts import with_separate_experts
from qfunc.errors import SpecError
from qfunc.specs import Target, edit
from qfunc.specs.formats import MATMUL_4BITS, MATMUL_4BITS_AFFINE
from qfunc.targets.onnxruntime.introsort import introsort
from qfunc.targets.runtimes import OnnxRuntimeRunner
from tests.decoding.decoders import Experts, Mixture
from tests.lowering.onnxruntime.test_float_kernels import WIDE

pytestmark = pytest.mark.filterwarnings("ignore")  # torch.export warns of its own use of deprecated names
exact = pytest.mark.skipif(not WIDE, reason="without AVX-512, MLAS adds in another order")
STACKED = targets.onnxruntime_nbits(4, 32, stacked_experts=True)


def calibrated(target: Target, mixture: nn.Module, x: Tensor) -> Any:
    program = torch.export.export(with_separate_experts(mixture), (x,))
    return qfunc.calibrate([x], progress=False)(qfunc.quantize(target)(program))


def operators(target: Target, made: Any) -> list[str]:
    return [n.op_type for n in onnx.load_from_string(qfunc.deploy(target)(made).files["model.onnx"]).graph.node]


@st.composite
def drawn_mixtures(draw: st.DrawFn) -> tuple[Target, Mixture, Tensor]:
    """4 and 8 bits, 1 to 40 experts of which up to 8 are chosen, one token and many, one thread and several."""
    torch.manual_seed(draw(st.integers(0, 2**16)))
    block, affine = draw(st.sampled_from((16, 32, 64, 128))), draw(st.booleans())
    sizes = [block * draw(st.integers(1 + affine, 3)) for _ in range(2)]
    count = draw(st.sampled_from((2, 3, 8, 20, 40)))
    experts = Experts(count, (sizes[0], sizes[1]), bias=draw(st.booleans()), transposed=draw(st.booleans()))
    for parameter in experts.parameters():
        parameter.data *= draw(st.sampled_from((0.1, 1.0, 8.0)))
    mixture = Mixture(experts, sizes[0], draw(st.integers(1, min(count, 8)))).eval()
    rows, spread = draw(st.sampled_from((1, 2, 5, 33, 70))), draw(st.sampled_from((0.01, 1.0, 30.0)))
    target = targets.onnxruntime_nbits(
        draw(st.sampled_from((3, 4, 8))), block, scheme=MATMUL_4BITS_AFFINE if affine else MATMUL_4BITS,
        threads=draw(st.sampled_from((1, 2, 3, 5))), stacked_experts=True,
    )  # fmt: skip
    return target, mixture, torch.randn(rows, sizes[0]) * spread


@pytest.mark.thorough
@exact
@pytest.mark.parametrize("threads", [1, 3])
def test_experts_are_added_in_the_order_of_their_tokens(threads: int) -> None:
    """More than 16 experts, 8 chosen, many of them for as many tokens: ONNX Runtime's sort decides."""
    torch.manual_seed(0)
    target = targets.onnxruntime_nbits(4, 16, threads=threads, stacked_experts=True)
    mixture, x = Mixture(Experts(24, (16, 16)), 16, 8).eval(), torch.randn(12, 16)
    report = qfunc.verify(target)(calibrated(target, mixture, x), [x])
    assert report.mismatches == 0


@pytest.mark.thorough
@exact
@given(drawn=drawn_mixtures())
@settings(max_examples=6, deadline=None)
def test_no_bit_of_a_mixture_differs(drawn: tuple[Target, Mixture, Tensor]) -> None:
    """The sums depend on how many tokens the experts have, and on the threads."""
    target, mixture, x = drawn
    made = calibrated(target, mixture, x)
    assert operators(target, made).count("QMoE") == 1
    report = qfunc.verify(target)(made, [x])
    assert not report.disagreements
    assert [r.exact for r in report.rows if r.kind == "real"] == [True, True]  # the router and the mixture
    assert report.mismatches == 0


def test_an_expert_without_a_token_computes_nothing() -> None:
    """Its weights are no numbers; as separate layers, 0 times its result would be none either."""
    torch.manual_seed(0)
    mixture = Mixture(Experts(3, (32, 32)), 32, 1).eval()
    mixture.router.weight.data = torch.tensor([[1.0], [0.0], [-1.0]]).expand(3, 32).contiguous()
    x = torch.rand(4, 32) + 0.5  # all choose the first
    made = calibrated(STACKED, mixture, x)
    artifact = qfunc.deploy(STACKED)(made)
    file = onnx.load_from_string(artifact.files["model.onnx"])
    (node,) = (n for n in file.graph.node if n.op_type == "QMoE")
    (scales,) = (t for t in file.graph.initializer if t.name == node.input[3])
    broken = onnx.numpy_helper.to_array(scales).copy()
    broken[1:] = float("nan")
    scales.CopyFrom(onnx.numpy_helper.from_array(broken, scales.name))
    (wanted,) = OnnxRuntimeRunner().run(artifact, [x])
    (found,) = OnnxRuntimeRunner().run(evolve(artifact, files={**artifact.files, "model.onnx": file.SerializeToString()}), [x])
    assert torch.equal(torch.from_numpy(wanted), torch.from_numpy(found))


@exact
@pytest.mark.parametrize("name", ["mixtral", "qwen3_moe"])
def test_answers_of_transformers(name: str) -> None:
    """Token by token, prompts of several lengths: no token, logit or tensor between differs."""
    from tests.decoding.test_answers import model  # imports transformers

    own, generator = model(name), torch.Generator().manual_seed(1)
    small = qfunc.decoder(32)(own)
    prompts = [small.inputs(torch.randint(3, 64, (3, length), generator=generator)) for length in (6, 16)]
    made = qfunc.calibrate(prompts, progress=False)(qfunc.quantize(STACKED)(small.program))
    assert operators(STACKED, made).count("QMoE") == own.config.num_hidden_layers
    report = qfunc.verify_tokens(STACKED, 5)(made, prompts[0])
    assert (report.tokens, report.mismatches, report.report.disagreements) == (15, 0, ())
    assert report.report.mismatches == 0


class Twice(nn.Module):
    """A mixture whose sum is read before its last term, too."""

    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.ModuleList(nn.Linear(32, 32) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        """[T, 32] -> [T, 32]."""
        first, second = (expert(x) for expert in self.experts)
        return first * x[:, 0:1] + second * x[:, 1:2]


class Beside(nn.Module):
    """A mixture, beside one that is stacked or a layer; each reads as many channels as it takes."""

    def __init__(self, mixture: nn.Module, other: nn.Module) -> None:
        super().__init__()
        self.mixture, self.other = mixture, other
        self.width = mixture.router.in_features if isinstance(mixture, Mixture) else 32

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """[T, 64] -> both."""
        return self.mixture(x[:, : self.width]), self.other(x)


FOUR = edit.override(edit.name("mixture.experts.0.down_proj"), weights={"bits": 4})
APART = {
    "a partial block": (STACKED, Mixture(Experts(3, (40, 32)), 40)),
    "zero points of one block": (
        targets.onnxruntime_nbits(4, 32, scheme=MATMUL_4BITS_AFFINE, stacked_experts=True), Mixture(Experts(3, (32, 32)), 32),
    ),
    "several widths": (FOUR(targets.onnxruntime_nbits(8, 32, stacked_experts=True)), Mixture(Experts(3, (32, 32)), 32)),
    "a norm": (STACKED, Mixture(Experts(3, (32, 32), norm=True), 32)),
    "no gate": (STACKED, Mixture(Experts(3, (32, 32), gate=False), 32)),
    "one expert": (STACKED, Mixture(Experts(1, (32, 32)), 32, 1)),
    "other sums": (STACKED, Twice()),
}  # fmt: skip


@pytest.mark.thorough
@exact
@pytest.mark.parametrize("name", sorted(APART))
def test_other_experts_stay_linear_layers(name: str) -> None:
    target, mixture = APART[name]
    x = torch.randn(3, 64)
    made = calibrated(target, Beside(mixture, Mixture(Experts(3, (64, 64)), 64)).eval(), x)
    assert operators(target, made).count("QMoE") == 1
    report = qfunc.verify(target)(made, [x])
    assert not report.disagreements
    assert all(r.exact for r in report.rows if r.kind == "real")


@pytest.mark.parametrize("name", sorted(APART))
def test_a_model_without_experts_to_stack_is_refused(name: str) -> None:
    target, mixture = APART[name]
    with pytest.raises(SpecError) as error:
        calibrated(target, Beside(mixture, nn.Linear(64, 64)).eval(), torch.randn(3, 64))
    assert str(error.value) == (
        f"target {target.name!r}: found a model without a unit of ExpertSums(), wanted at least one: onnxruntime 1.31, QMoE: "
        "experts down(silu(gate) up) times shares of one-hot rows, with weights of one form, whose inputs the block divides. "
        "Choose a block that divides them, or drop stacked_experts."
    )


def test_one_of_the_submodules_may_have_the_experts() -> None:
    model = with_separate_experts(Beside(Mixture(Experts(3, (32, 32)), 32), nn.Linear(64, 64)).eval())
    x = torch.randn(3, 64)
    parts = qfunc.quantize(STACKED, (x,), submodules=("mixture", "other"))(model)
    made = qfunc.calibrate([x], progress=False)(parts)
    assert operators(STACKED, made.mixture).count("QMoE") == 1
    with pytest.raises(SpecError, match="found a model without a unit of ExpertSums"):
        qfunc.quantize(STACKED, (x,), submodules="other")(model)


@pytest.mark.parametrize(("bits", "level"), [(2, 4), (4, 0)])
def test_products_that_are_not_on_int8_are_refused(bits: int, level: int) -> None:
    with pytest.raises(SpecError) as error:
        qfunc.quantize(targets.onnxruntime_nbits(bits, 32, level, stacked_experts=True))(nn.Linear(32, 32))
    assert str(error.value) == (
        f"target 'onnxruntime_w{bits}_block32_level{level}_experts', op 'linear': found the kind 'linear', wanted an op that "
        "it runs: onnxruntime 1.31, moe_quantization_cpu.cc: products on int8 have weights of 3 to 8 bits, at level 4. Choose "
        "3 bits or more and accuracy_level=4, or stacked_experts=False."
    )


def test_widths_that_are_not_stored_are_refused() -> None:
    with pytest.raises(SpecError) as error:
        qfunc.quantize(targets.onnxruntime_nbits(9, 32))(nn.Linear(32, 32))
    assert str(error.value) == (
        "target 'onnxruntime_w9_block32_level4', op 'linear': found the kind 'linear', wanted an op that it runs: onnxruntime "
        "1.31, matmul_nbits.cc: weights of 2 to 8 bits, in bytes, nibbles or pairs of bits. Choose 2 to 8 bits."
    )


@given(st.lists(st.integers(0, 9), max_size=300))
@settings(max_examples=60, deadline=None)
def test_the_order_is_sorted(counts: list[int]) -> None:
    found = introsort(range(len(counts)), lambda a, b: counts[a] < counts[b])
    assert [counts[i] for i in found] == sorted(counts)
    assert sorted(found) == list(range(len(counts)))

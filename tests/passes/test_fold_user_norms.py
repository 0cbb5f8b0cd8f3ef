"""Fusion functions of the user's own: values of the target, typed, in JSON, and folded before anything is quantized."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from attrs import frozen
from torch import Tensor, nn

import qfunc
from qfunc.errors import SpecError
from qfunc.frontend.capture import capture
from qfunc.ops.node import kind_of
from qfunc.passes.fold_batch_norm import fold_batch_norms
from qfunc.specs import Attr, Fusion, FusionStep, Op, OpKind, Target, edit, from_json, to_json
from qfunc.targets.onnxruntime.target import onnxruntime
from tests.passes import user_norms as own_norms
from tests.passes.user_norms import PlusOne, ScaledConv, fold_plus_one, fold_scale_shift

NORM = OpKind("plus_one", f"{PlusOne.__module__}.PlusOne")
CALL = OpKind("scale_shift", f"{PlusOne.__module__}.scale_shift", ("input", "gamma", "beta"))
WEIGHTED = Op(("conv", "conv_transpose", "linear"))
MINE = edit.fuse(Fusion(WEIGHTED, (FusionStep(Op("plus_one"), fold=fold_plus_one), FusionStep(Op("relu")))), NORM)(onnxruntime)
MODELS: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
    "conv": (nn.Sequential(nn.Conv2d(4, 6, (3, 2), groups=2), PlusOne(6), nn.ReLU()), (2, 4, 7, 5)),
    "no bias": (nn.Sequential(nn.Conv1d(4, 6, 3, bias=False), PlusOne(6), nn.ReLU()), (2, 4, 7)),
    "deconv": (nn.Sequential(nn.ConvTranspose2d(4, 6, (3, 2), groups=2), PlusOne(6), nn.ReLU()), (2, 4, 7, 5)),
    "linear": (nn.Sequential(nn.Linear(4, 6), PlusOne(6), nn.ReLU()), (3, 4)),
    "between": (nn.Sequential(nn.Conv2d(4, 6, 3), PlusOne(6), nn.BatchNorm2d(6, eps=0.1), PlusOne(6), nn.ReLU()), (2, 4, 7, 5)),
}  # fmt: skip
LEAVES = tuple(s for op in MINE.ops for s in op.spellings)


def calls(model: Any) -> list[str]:
    return [kind_of(n) for n in model.graph.nodes if n.op.startswith("call") and kind_of(n) != "fake_quantize"]


@pytest.mark.parametrize("name", MODELS)
def test_a_module_folds_by_the_users_function(name: str) -> None:
    torch.manual_seed(4)
    model, shape = MODELS[name]
    model.eval()
    before = copy.deepcopy(model.state_dict())
    folded = fold_batch_norms(capture(leaves=LEAVES)(model), MINE)
    assert calls(folded) == [{"deconv": "conv_transpose", "linear": "linear"}.get(name, "conv"), "relu"]
    x = torch.randn(shape, dtype=torch.float64)
    # Weights and bias are rounded to float32 once a fold, relative 2^-24; the values here are sums of at most 17 terms
    # of size below 10, so that 3 * 17 * 10 * 2^-24 bounds the difference; relu adds none.
    with torch.no_grad():
        difference = copy.deepcopy(folded).double()(x) - copy.deepcopy(model).double()(x)
    assert difference.abs().max() <= 3 * 17 * 10 * 2.0**-24
    assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())


def test_a_function_folds_with_its_constants_and_keywords() -> None:
    torch.manual_seed(4)
    model = ScaledConv().eval()
    fusion = Fusion(Op("conv"), (FusionStep(Op("scale_shift"), fold=fold_scale_shift), FusionStep(Op("relu"))))
    target = edit.fuse(fusion, CALL)(onnxruntime)
    folded = fold_batch_norms(capture()(model), target)
    assert calls(folded) == ["conv", "relu"]
    # One rounding to float32 of values that this line computes in float64.
    gamma, weight = 3.0 * model.gamma.double(), folded.get_parameter("conv.weight").double()
    assert ((weight - model.conv.weight.double() * gamma.reshape(5, 1, 1, 1)).abs() <= 2.0**-24 * weight.abs() + 1e-15).all()
    assert torch.equal(folded.get_parameter("conv.bias"), model.beta.detach())


def test_the_unit_is_quantized_as_one_op() -> None:
    torch.manual_seed(4)
    model, shape = MODELS["conv"]
    quantized = qfunc.quantize(MINE)(model.eval())
    assert [s.tensor for s in qfunc.explain(quantized).sites] == ["input", "0.weight", "0.bias", "2"]
    calibrated = qfunc.calibrate([torch.randn(shape)])(quantized)
    x = torch.randn(shape)
    # A 255th of the range of an output is the scale; an 8-bit unit errs by some of them, unfolded it would err by the norm.
    assert (calibrated(x) - model(x)).abs().mean() < 0.02 * model(x).abs().max()


def test_without_the_function_the_norm_stays_between() -> None:
    target = edit.fuse(Fusion(WEIGHTED, (FusionStep(Op("relu")),)), NORM)(onnxruntime)
    assert calls(qfunc.quantize(target)(MODELS["conv"][0])) == ["conv", "unknown", "relu"]


@frozen
class Gain:
    """A frozen value in place of a function."""

    gain: float

    def __call__(self, weight: Tensor, bias: Tensor, *operands: Any) -> tuple[Tensor, Tensor]:
        return weight * self.gain, bias * self.gain


def test_the_targets_are_values_and_json() -> None:
    for target in (MINE, edit.fuse(Fusion(WEIGHTED, FusionStep(Op("mul"), fold=Gain(2.0))))(onnxruntime)):
        assert from_json(to_json(target), classes=(fold_plus_one, Gain)) == target == pickle.loads(pickle.dumps(target))
        assert hash(target) == hash(copy.deepcopy(target))
    assert "fold=fold_plus_one" in MINE.code()
    with pytest.raises(SpecError, match="unknown"):
        from_json(to_json(MINE))
    with pytest.raises(SpecError, match="unknown function"):
        from_json(to_json(MINE), classes=(Gain,))


def no_tensors(weight: Tensor, bias: Tensor, norm: PlusOne) -> Any:
    return norm


def transposed(weight: Tensor, bias: Tensor, norm: PlusOne) -> Any:
    return weight.transpose(0, 1), bias


def no_bias(weight: Tensor, bias: Tensor, norm: PlusOne) -> Any:
    return weight, None


def not_finite(weight: Tensor, bias: Tensor, norm: PlusOne) -> Any:
    return weight / 0, bias


REFUSED = {
    no_tensors: "PlusOne",
    transposed: "(2, 6, 3, 2), (6,)",
    no_bias: "(6, 2, 3, 2), NoneType",
    not_finite: "NaN or infinite values",
}


def of_two(weight: Tensor, bias: Tensor) -> Any:
    return weight, bias


def test_an_error_of_the_function_names_the_op() -> None:
    target = edit.fuse(Fusion(Op("conv"), FusionStep(Op("plus_one"), fold=of_two)), NORM)(onnxruntime)
    with pytest.raises(SpecError) as caught:
        qfunc.quantize(target)(MODELS["conv"][0])
    assert str(caught.value) == (
        "FusionStep.fold, of_two for op '0': found TypeError: of_two() takes 2 positional arguments but 3 were given, wanted a "
        "finite weight of shape (6, 2, 3, 2) and a bias of shape (6,). It is called with weight, bias, and the step's module "
        "or constants."
    )


@pytest.mark.parametrize("fold", REFUSED, ids=lambda f: f.__name__)
def test_what_the_function_returns_is_checked(fold: Any) -> None:
    target = edit.fuse(Fusion(Op("conv"), FusionStep(Op("plus_one"), fold=fold)), NORM)(onnxruntime)
    with pytest.raises(SpecError) as caught:
        qfunc.quantize(target)(MODELS["conv"][0])
    assert str(caught.value) == str(
        SpecError(
            where=f"FusionStep.fold, {fold.__name__} for op '0'",
            found=REFUSED[fold],
            wanted="a finite weight of shape (6, 2, 3, 2) and a bias of shape (6,)",
            do="Return (weight, bias), the output channels first.",
        )
    )


def messages() -> dict[str, tuple[Any, dict[str, str]]]:
    wanted = "a module-level function or a frozen callable value"
    return {
        "lambda": (
            lambda: FusionStep(Op("mul"), fold=lambda weight, bias: (weight, bias)),
            {"wanted": f"{wanted}, not messages.<locals>.<lambda>.<locals>.<lambda>, a function without a module-level name",
             "do": "Define it with def at the top of a module."},
        ),
        "class": (lambda: FusionStep(Op("mul"), fold=Gain), {"found": f"{Gain!r}", "wanted": wanted, "do": "Call it: Gain()."}),
        "number": (
            lambda: FusionStep(Op("mul"), fold=3),
            {"found": "3", "wanted": wanted, "do": "Write a function of weight, bias and operands."},
        ),
        "must follow": (
            lambda: FusionStep(Op("mul"), optional=False, fold=fold_plus_one),
            {"where": "FusionStep.optional", "found": "False",
             "wanted": "True where a step folds, for then nothing of it is left to follow", "do": "Leave it out."},
        ),
    }  # fmt: skip


@pytest.mark.parametrize("name", messages())
def test_wrong_steps(name: str) -> None:
    make, parts = messages()[name]
    with pytest.raises(SpecError) as caught:
        make()
    error = caught.value
    assert {k: getattr(error, k) for k in parts} == parts
    assert error.where == parts.get("where", "FusionStep.fold")


def nothing_random(weight: Tensor, bias: Tensor, norm: PlusOne) -> Any:
    """Sees what it is given: float64 and evaluation mode, and nothing of the model's own."""
    assert not norm.training
    assert {t.dtype for t in (weight, bias, norm.gamma, norm.beta)} == {torch.float64}
    norm.gamma.data.zero_()
    return fold_plus_one(weight, bias, PlusOne(6).double())


def test_the_module_is_in_evaluation_mode_and_float64() -> None:
    model = MODELS["conv"][0].train()
    gamma = model[1].gamma.detach().clone()
    target = edit.fuse(Fusion(Op("conv"), FusionStep(Op("plus_one"), fold=nothing_random)), NORM)(onnxruntime)
    assert calls(qfunc.quantize(target)(model)) == ["conv", "relu"]
    assert torch.equal(model[1].gamma, gamma)


class TwoReaders(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.bn = nn.Conv2d(3, 5, 2), PlusOne(5), nn.BatchNorm2d(5)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x)
        return self.norm(y) + self.bn(y)


class Computed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 5, 2), nn.BatchNorm2d(5)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(torch.conv2d(x, self.conv.weight - x.mean(), self.conv.bias))


def missed(model: nn.Module, target: Target) -> tuple[tuple[str, str, str], ...]:
    return tuple(m for m in qfunc.explain(qfunc.quantize(target)(model.eval())).misses if "norm" in m[1] or "bn" in m[1])


def test_explain_says_why_a_norm_did_not_fold() -> None:
    why = "'conv' is read 2 times, and a fused op may be read only once"
    assert missed(TwoReaders(), MINE) == (("conv", "norm", why), ("conv", "bn", why))
    computed = missed(Computed(), onnxruntime)
    assert computed == (("conv2d", "norm", "the weight or bias of 'conv2d' is computed, not a parameter"),)


def test_a_step_that_reads_what_is_no_constant_stays() -> None:
    model = nn.Sequential(nn.Conv2d(3, 5, (2, 3)))
    fold = edit.fuse(Fusion(Op("conv"), FusionStep(Op("scale_shift"), fold=fold_scale_shift)), CALL)(onnxruntime)

    class Gated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.beta = model[0], nn.Parameter(torch.ones(5))

        def forward(self, x: Tensor, gate: Tensor) -> Tensor:
            return own_norms.scale_shift(self.conv(x), gate, self.beta)

    quantized = qfunc.quantize(fold)(Gated().eval())
    assert ("conv", "scale_shift", "'scale_shift' reads more than 'conv' and constants") in qfunc.explain(quantized).misses


def test_when_holds_for_folding_too() -> None:
    fusion = Fusion(Op("conv"), FusionStep(Op("plus_one"), fold=fold_plus_one), when=Attr("groups", 1))
    target = edit.fuse(fusion, NORM)(onnxruntime)
    folded = fold_batch_norms(capture(leaves=LEAVES)(MODELS["conv"][0]), target)
    assert calls(folded) == ["conv", "unknown", "relu"]
    misses = qfunc.explain(qfunc.quantize(target)(MODELS["conv"][0])).misses
    assert misses == (("0", "1", "the fusion requires Attr('groups', equals=1)"),)


def test_a_norm_that_stands_elsewhere_says_what_it_follows() -> None:
    model = nn.Sequential(nn.Conv2d(3, 6, 2), nn.Tanh(), PlusOne(6)).eval()
    misses = qfunc.explain(qfunc.quantize(MINE)(model)).misses
    assert misses == (("1", "2", "'_1', which it follows, is not Op(('conv', 'conv_transpose', 'linear'))"),)


def test_training_refuses_a_step_whose_parameters_it_would_freeze() -> None:
    where = "quantize, batch_norm=TrainBatchNorm(), op "
    wanted = "parameters that train, which fold_plus_one folds for good, wanted a step without parameters that train. "
    do = (
        "Use batch_norm=qfunc.FoldBatchNorm(), with which the folded weight and bias train, or call .requires_grad_(False) on "
        "the parameters."
    )
    train = qfunc.quantize(MINE, batch_norm=qfunc.TrainBatchNorm())
    model = copy.deepcopy(MODELS["conv"][0]).eval()
    with pytest.raises(SpecError) as caught:
        train(model)
    assert str(caught.value) == f"{where}'1': found {wanted}{do}"
    # Both cures work as written.
    folded = [name for name, _ in qfunc.quantize(MINE, batch_norm=qfunc.FoldBatchNorm())(model).named_parameters()]
    assert folded == ["0.weight", "0.bias"]
    model[1].requires_grad_(False)
    assert [name for name, _ in train(model).named_parameters()] == folded


def test_training_refuses_a_function_whose_parameters_it_would_freeze() -> None:
    target = edit.fuse(Fusion(Op("conv"), FusionStep(Op("scale_shift"), fold=fold_scale_shift)), CALL)(onnxruntime)
    train, model = qfunc.quantize(target, batch_norm=qfunc.TrainBatchNorm()), ScaledConv().eval()
    with pytest.raises(SpecError, match="found parameters that train, which fold_scale_shift folds for good, wanted a step"):
        train(model)
    model.gamma.requires_grad_(False)
    model.beta.requires_grad_(False)
    assert calls(train(model))[:1] == ["conv"]

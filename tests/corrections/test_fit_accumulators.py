"""fit_accumulators: larger weight scales until no sum overflows, and explain lists the ops before and after."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from attrs import evolve
from torch import Tensor, nn

import qfunc
from qfunc import targets
from qfunc.analysis.explanation import OverflowRow
from qfunc.errors import SpecError
from qfunc.graph.view import QuantizedModel
from qfunc.specs import (
    Accumulator, DerivedQParams, FloatMultiplier, Int, Kernel, Limit, Op, PerChannel, PerTensor, Rule, SaturatesAtEnd, Scale,
    Scheme, Shift, Target,
)  # fmt: skip

KINDS = Op(("conv", "conv_transpose", "linear", "matmul", "mul"))


def chip(arithmetic: Any, shared: Any = PerChannel(), powers: bool = False, bias: Any = DerivedQParams()) -> Target:
    """A chip with one arithmetic."""
    byte, weight = Scheme(Int(8), Scale(power_of_two=powers)), Scheme(Int(8), Scale(shared, power_of_two=powers))
    empty: dict[str, Any] = {"fusions": (), "ties": (), "legality": (), "commuting": ()}
    rules = (Rule(KINDS, input=byte, weight=weight, bias=bias, output=byte),)
    return evolve(targets.qdq, name="chip", rules=rules, kernels=(Kernel(KINDS, arithmetic),), **empty)


NETS: dict[str, tuple[Any, tuple[int, ...]]] = {
    "linear": (lambda: nn.Linear(40, 6), (8, 40)),
    "conv": (lambda: nn.Conv2d(4, 6, 3, padding=1), (4, 4, 6, 6)),
    "grouped": (lambda: nn.Conv2d(4, 6, 3, groups=2), (4, 4, 6, 6)),
    "conv_transpose": (lambda: nn.ConvTranspose2d(4, 6, 3), (4, 4, 6, 6)),
    "norm": (lambda: nn.Sequential(nn.Conv2d(4, 6, 3), nn.BatchNorm2d(6), nn.Conv2d(6, 3, 1)), (4, 4, 6, 6)),
}
TARGETS = {
    "channels": chip(FloatMultiplier(accumulator=16)),
    "one scale": chip(FloatMultiplier(accumulator=16), PerTensor()),
    "powers of two": chip(Shift("half_up", accumulator=Accumulator(16, SaturatesAtEnd())), powers=True),
}


def made(net: str, target: Target, **options: Any) -> tuple[Any, Tensor, nn.Module]:
    """A calibrated network with a small first output, its input, and the float network."""
    build, shape = NETS[net]
    torch.manual_seed(0)
    model = build()
    with torch.no_grad():
        layer = model if not isinstance(model, nn.Sequential) else model[0]
        first = layer.weight[:, 0] if net == "conv_transpose" else layer.weight[0]
        first.flatten()[1:] = 0  # a view, unless it is transposed
        layer.bias[0] = 0.0
        if net == "conv_transpose":
            layer.weight[:, 0] = 0
            layer.weight[0, 0, 0, 0] = 0.5
    x = torch.randn(shape)
    return qfunc.calibrate([x], progress=False)(qfunc.quantize(target, **options)(model.eval())), x, model


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize("net", NETS)
def test_no_sum_overflows_afterwards(net: str, name: str) -> None:
    target = TARGETS[name]
    calibrated, x, _ = made(net, target)
    before = {k: v.clone() for k, v in calibrated.state_dict().items()}
    assert qfunc.explain(calibrated).overflows
    fitted = qfunc.corrections.fit_accumulators()(calibrated)
    assert qfunc.explain(fitted).overflows == ()
    emulation = qfunc.emulate(target)(fitted)
    assert not any("held" in n.name for n in emulation.graph.nodes)
    output = [q for q in QuantizedModel(fitted).quantizers if q.module.site.slot == "output"][-1].module.qparams()
    assert float((emulation(x) - fitted(x)).detach().abs().max()) <= 1.001 * float(output.scale)
    after = calibrated.state_dict()
    assert all(torch.equal(v, after[k]) for k, v in before.items())


def test_only_the_channels_at_risk_change() -> None:
    calibrated, _, _ = made("linear", TARGETS["channels"])
    fitted = qfunc.corrections.fit_accumulators()(calibrated)
    old, new = (
        next(q.module.qparams().scale for q in QuantizedModel(m).quantizers if q.module.site.slot == "weight")
        for m in (calibrated, fitted)
    )
    assert (new == old).flatten().tolist() == [True, False, False, False, False, False]
    norms = (fitted.weight / new).round().abs().sum(1)
    assert int(norms.max()) <= (2**15 - 1) // 127  # A2Q's bound for symmetric codes
    assert int(norms[1:].min()) > 0.8 * (2**15 - 1) // 127  # no narrower than the sums and the biases ask


def test_a_model_without_risk_is_copied() -> None:
    calibrated, x, _ = made("conv", chip(FloatMultiplier(accumulator=32)))
    assert torch.equal(qfunc.corrections.fit_accumulators()(calibrated)(x), calibrated(x))


def test_explain_lists_the_largest_sum() -> None:
    target = chip(FloatMultiplier(accumulator=Accumulator(12, SaturatesAtEnd())))
    layer = nn.Linear(2, 3)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[1.27, 1.27], [1.27, -1.27], [0.01, 0.0]]))
        layer.bias.zero_()
    calibrated = qfunc.calibrate([torch.tensor([[1.27, 0.0]])], progress=False)(qfunc.quantize(target)(layer))
    (row,) = qfunc.explain(calibrated).overflows
    # Codes of x from -128 to 127, of w up to 127: 2 * 127 * 128; the last channel has one code of 127.
    assert row == OverflowRow("", "linear", "Accumulator(12, overflow=SaturatesAtEnd())", "3 of 3", "32512", "2047")
    assert "may overflow" in str(qfunc.explain(calibrated))
    assert qfunc.explain(qfunc.quantize(target)(layer)).overflows == ()


class Attention(nn.Module):
    """A product of two activations."""

    def forward(self, x: Tensor) -> Tensor:
        return x @ x.mT


def test_products_of_activations_are_listed_by_length() -> None:
    x = torch.randn(2, 3, 4)
    for bits, channels in ((16, ["all, from 2 products on"]), (32, [])):
        target = chip(FloatMultiplier(accumulator=bits))
        calibrated = qfunc.calibrate([x], progress=False)(qfunc.quantize(target)(Attention()))
        fitted = qfunc.corrections.fit_accumulators()(calibrated)
        assert [row.channels for row in qfunc.explain(fitted).overflows] == channels


def test_a_limit_that_holds_the_scale_is_refused() -> None:
    """The target keeps the weight's scale at 2^-6 at most."""
    layer = nn.Linear(64, 1)
    with torch.no_grad():
        layer.weight.fill_(1.0)
    limit = Limit(Op("linear"), (("weight", 1),), 6, 20, "weight")
    target = evolve(chip(Shift("floor", accumulator=8), PerTensor(), powers=True), limits=(limit,))
    calibrated = qfunc.calibrate([torch.ones(1, 64)], progress=False)(qfunc.quantize(target)(layer))
    with pytest.raises(SpecError) as caught:
        qfunc.corrections.fit_accumulators()(calibrated)
    assert str(caught.value) == (
        "fit_accumulators, unit 'linear': found sums that still overflow, wanted sums that a larger weight scale makes fit. "
        "Make the accumulator wider, or the target's limits."
    )


def test_a_bias_with_its_own_scale_fits() -> None:
    """Its code at the accumulator's scale shrinks with that of the weight."""
    layer = nn.Linear(2, 1)
    with torch.no_grad():
        layer.weight.fill_(1e-3)
        layer.bias.fill_(1e4)
    target = chip(Shift("floor", accumulator=8), powers=True, bias=Scheme(Int(16), Scale(power_of_two=True)))
    calibrated = qfunc.calibrate([torch.ones(1, 2)], progress=False)(qfunc.quantize(target)(layer))
    assert qfunc.explain(calibrated).overflows
    assert qfunc.explain(qfunc.corrections.fit_accumulators()(calibrated)).overflows == ()

"""Ops that a lowering has no words for: quantize names them, and a target without the file simulates them."""

from typing import Any

import pytest
import torch
from attrs import evolve, frozen
from torch import nn

import qfunc
from qfunc import targets
from qfunc.errors import DeployError
from qfunc.lowering import Combined, ExplicitQdqLowering, QdqLowering
from qfunc.specs import edit
from qfunc.targets.runtimes import NcnnLowering, TensorRtRanges
from tests.conformance.modules import Apply
from tests.placement.refusals import refusal

LISTED = "docs/targets.md lists them"
PRO_INT = "TOSA 1.0, profile PRO-INT, has no such operator on integers, or not with these attributes"
IMAGES = "Use mode='nearest' or mode='bilinear'."
NORM = "Use batch_norm, which folds."
OUTSIDE = "Keep it out of the deployed model, or deploy Q/DQ ONNX by edit.deploy(QdqLowering())."

NCNN = {
    "local_response_norm": (nn.LocalResponseNorm(3), "", LISTED, NORM),
    "resize": (
        nn.Upsample((7, 9), mode="nearest-exact"),
        " with mode='nearest-exact'",
        LISTED,
        "Use mode='nearest', mode='bilinear' or mode='bicubic'.",
    ),
}
NCNN |= {
    kind: (Apply(call), "", LISTED, OUTSIDE)
    for kind, call in {
        "fmod": lambda x: torch.fmod(x, 0.7), "topk": lambda x: x.topk(2, 1).values,
        "sort": lambda x: x.sort(1).values, "einsum": lambda x: torch.einsum("bchw,bdhw->bcd", x, x),
    }.items()
}  # fmt: skip
TOSA = {
    "conv_transpose": (nn.ConvTranspose2d(4, 3, 2, padding=2), "", PRO_INT, "Use a padding smaller than the kernel."),
    "resize": (nn.Upsample((7, 9), mode="area"), " with mode='area'", PRO_INT, IMAGES),
}
CASES = [(targets.ncnn, "NcnnLowering()", *case) for case in NCNN.items()]
CASES += [(targets.tosa, "TosaLowering()", *case) for case in TOSA.items()]


@frozen
class Silent:
    """A lowering that says nothing before `deploy`."""

    lowering: Any

    def lower(self, program: Any) -> Any:
        """Its files."""
        return self.lowering.lower(program)


def behind(op: nn.Module) -> nn.Module:
    """An op behind a convolution."""
    torch.manual_seed(1)
    return nn.Sequential(nn.Conv2d(3, 4, 1), op).eval()


@pytest.mark.parametrize(("target", "lowering", "name", "case"), CASES, ids=[f"{c[0].name}-{c[2]}" for c in CASES])
def test_an_op_that_a_lowering_cannot_write(target, lowering, name, case):
    op, attributes, because, do = case
    where = f"1.{'getitem' if name == 'slice' else name}" if isinstance(op, Apply) else "1"
    assert refusal(target, behind(op)) == (
        f"target {target.name!r}, op {where!r}: found the kind {name!r}{attributes}, wanted an op that {lowering} writes: "
        f"{because}. {do} To simulate it without a file, use attrs.evolve(target, lowering=None)."
    )
    x, unwritten = torch.randn(2, 3, 6, 5), evolve(target, lowering=None)
    simulated = qfunc.calibrate([x], progress=False)(qfunc.quantize(unwritten)(behind(op)))
    assert simulated(x).shape == behind(op)(x).shape
    written = edit.deploy(QdqLowering())(target)
    qfunc.quantize(written)(behind(op))  # which ONNX has words for


@pytest.mark.parametrize(("target", "lowering", "name", "case"), CASES, ids=[f"{c[0].name}-{c[2]}" for c in CASES])
def test_deploy_would_refuse_it_too(target, lowering, name, case):
    """So that nothing is refused which could be written: with a lowering that does not say so beforehand."""
    silent, x = evolve(target, lowering=Silent(target.lowering)), torch.randn(2, 3, 6, 5)
    model = qfunc.calibrate([x], progress=False)(qfunc.quantize(silent)(behind(case[0])))
    with pytest.raises(DeployError):
        qfunc.deploy(silent)(model)


def test_an_op_left_in_float_on_purpose_is_not_asked():
    target = edit.skip(edit.op("local_response_norm"))(targets.ncnn)
    qfunc.quantize(target)(behind(nn.LocalResponseNorm(3)))


@pytest.mark.parametrize("factor", [2, (3.0, 1.0)], ids=repr)
def test_whole_factors_that_tosa_writes(factor):
    qfunc.quantize(targets.tosa)(behind(nn.Upsample(scale_factor=factor)))


def test_several_lowerings_refuse_what_any_does():
    target = edit.deploy(Combined((QdqLowering(), NcnnLowering())))(targets.ncnn)
    assert "op '1.fmod': found the kind 'fmod', wanted an op that Combined(" in refusal(target, behind(NCNN["fmod"][0]))
    qfunc.quantize(target)(behind(nn.ReLU()))


def test_an_early_opset_of_tensorrt_and_its_cure():
    early, late = (Combined((ExplicitQdqLowering(opset=n), TensorRtRanges())) for n in (11, 13))
    conv = nn.Sequential(nn.Conv2d(3, 4, 3)).eval()
    message = refusal(edit.deploy(early)(targets.tensorrt), conv)
    assert message == (
        f"target 'tensorrt', op '0', weight '0.weight': found Int(8, low=-127) for {early!r}, wanted {late!r}: "
        "QuantizeLinear has scales per channel from opset 13 on (ONNX operators). "
        "Set it with edit.deploy(...), or edit the scheme."
    )
    qfunc.quantize(edit.deploy(late)(targets.tensorrt))(conv)

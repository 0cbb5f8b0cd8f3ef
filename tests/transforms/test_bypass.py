"""bypass: what is selected passes through, the rest stays as it was, and everything after sees it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import qfunc
from qfunc.graph.float_network import float_network
from qfunc.graph.sites import quantizer_nodes
from qfunc.specs import edit
from tests.onnxruntime_target import ONNXRUNTIME
from tests.transforms.checks import arguments, calibrated, equal, quantized, same_state, state
from tests.transforms.nets import NAMES
from tests.transforms.test_errors import told

TARGET = ONNXRUNTIME


def names(model: Any) -> list[str]:
    return [s.module.site.name for s in quantizer_nodes(model)]


@pytest.mark.parametrize("export", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_without_any_site_it_is_the_float_network(name: str, export: bool) -> None:
    _, batch, done = calibrated(name, export=export)
    made = qfunc.bypass(edit.name("*"))(done)
    assert quantizer_nodes(made) == ()
    assert equal(made(*arguments(batch)), float_network(done)(*arguments(batch)))


def test_the_rest_keeps_its_qparams_and_the_input_is_unchanged() -> None:
    _, x, done = calibrated("residual")
    before, code = state(done), done.code
    made = qfunc.bypass(edit.name("conv2"))(done.train())
    assert set(names(done)) - set(names(made)) == {"conv2.weight", "conv2.bias", "conv2"}
    assert done.code == code
    assert same_state(state(done), before)
    kept = state(made)
    assert all(torch.equal(v, before[k]) for k, v in kept.items())
    assert made.training
    with torch.no_grad():
        made.get_parameter("conv1.weight").zero_()
    assert same_state(state(done), before)
    equals = [equal(made(x), other(x)) for other in (done, float_network(done))]
    assert equals == [False, False]


def test_roles() -> None:
    _, _, done = calibrated("residual")
    slots = [
        {s.module.site.slot for s in quantizer_nodes(qfunc.bypass(edit.name("*"), roles=roles)(done))}
        for roles in [("weight",), ("activation",), ("bias",), ("weight", "bias")]
    ]
    # A derived bias is at the scale of input times weight, so it goes with either.
    assert slots == [{"input", "output"}, {"weight"}, {"input", "weight", "output"}, {"input", "output"}]


def test_tensors_can_be_selected_by_their_own_names() -> None:
    _, _, done = calibrated("residual")
    made = qfunc.bypass(edit.name("conv1.weight"))(done)
    assert set(names(done)) - set(names(made)) == {"conv1.weight", "conv1.bias"}


def test_everything_after_sees_float_tensors() -> None:
    _, x, done = calibrated("residual")
    made = qfunc.bypass(edit.name("fc"))(done)
    whys = {f.op: f.why for f in qfunc.explain(made).floats}
    assert whys["fc"] in ("its weight carries no qparams", "its input carries no qparams")
    units = qfunc.deploy(TARGET)(made).report["units"]
    assert [u["integer"] for u in units if u["path"] == "fc"] == [False]
    assert "fc" in {name for name, _ in qfunc.verify(TARGET)(made, [x]).float_units}
    assert qfunc.emulate(TARGET)(made)(x).isfinite().all()


def test_before_calibration() -> None:
    _, x, made = quantized("residual")
    bare = qfunc.bypass(edit.name("*"), roles=("activation",))(made)
    assert all(s.module.site.slot == "weight" for s in quantizer_nodes(bare))
    done = qfunc.calibrate([x])(bare)
    assert done(x).isfinite().all()
    assert "its quantizers were bypassed" in {f.why for f in qfunc.explain(qfunc.bypass(edit.name("fc"))(made)).floats}


def test_twice_is_the_union_and_composes() -> None:
    _, x, done = calibrated("residual")
    one, other = qfunc.bypass(edit.name("fc")), qfunc.bypass(edit.name("conv1"))
    both = qfunc.bypass(edit.name("fc") | edit.name("conv1"))(done)
    assert names(qfunc.compose(one, other)(done)) == names(qfunc.compose(other, one)(done)) == names(both)
    assert equal(qfunc.compose(one, other)(done)(x), both(x))


def test_wrong_uses_are_told_whole() -> None:
    _, _, done = calibrated("residual")
    text = (
        "bypass: found Name('conf1'), which matches nothing in the model, wanted a selector that matches an op or a tensor. "
        "Use one of: conv1, conv2."
    )
    told(lambda: qfunc.bypass(edit.name("conf1"))(done), "SpecError", text)
    text = (
        "bypass: found Name('pool'), which matches no quantized weight, wanted a selector that matches a site. "
        "Print qfunc.explain(quantized)."
    )
    told(lambda: qfunc.bypass(edit.name("pool"), roles=("weight",))(done), "SpecError", text)
    text = (
        "bypass: found 'conv1', wanted a selector. "
        "Use edit.name, edit.op, edit.module or edit.where, or combine them with &, | and ~."
    )
    told(lambda: qfunc.bypass("conv1"), "SpecError", text)  # type: ignore[arg-type]
    text = "bypass, roles: found {}, wanted a tuple of 'weight', 'activation', 'bias'. Write roles=('weight',)."
    told(lambda: qfunc.bypass(edit.name("*"), roles=("input",)), "SpecError", text.format("'input'"))
    told(lambda: qfunc.bypass(edit.name("*"), roles="weight"), "SpecError", text.format("'weight'"))  # type: ignore[arg-type]
    text = "bypass: found a Linear that is not quantized, wanted a quantized model. First run qfunc.quantize(target)(model)."
    told(lambda: qfunc.bypass(edit.name("*"))(nn.Linear(2, 2)), "CalibrationError", text)  # type: ignore[arg-type]

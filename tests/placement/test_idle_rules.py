"""Edits that keep float what is float without them are errors; those that match no op, or have one effect, are not."""

from __future__ import annotations

import pytest
from torch import nn

import qfunc
from qfunc import targets
from qfunc.errors import SpecError
from qfunc.specs import Everything, KeepFloat, edit

NET = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.GELU(), nn.Flatten(), nn.Linear(36, 4), nn.GELU()).eval()
GELUS = edit.op("gelu")
WANTED = "wanted a selector that matches an op with a quantizer. Drop this edit, or use one of: 0, 5."
IDLE = {
    "a skip": (targets.qdq, edit.skip(GELUS), "it matches 2 ops that are float already: '3', '6'"),
    "a skip of one op": (targets.qdq, edit.skip(GELUS & edit.name("3")), "it matches 1 op that is float already: '3'"),
    "inputs": (targets.qdq, edit.inputs(GELUS, KeepFloat()), "it matches 2 ops whose inputs are float already: '3', '6'"),
    "outputs": (targets.ncnn, edit.outputs(GELUS, KeepFloat()), "it matches 2 ops whose outputs are float already: '3', '6'"),
    "a pool of codes": (targets.litert, edit.skip(edit.op("max_pool")), "it matches 1 op that only moves codes: '2'"),
}
ACTIVE = {
    "a skip": (targets.litert, edit.skip(GELUS)),
    "a set with one op that is quantized": (targets.qdq, edit.skip(edit.op("gelu", "conv"))),
    "a part of a unit": (targets.ncnn, edit.skip(edit.op("relu"))),
    "no op of the network": (targets.ncnn, edit.skip(edit.op("softmax"))),
    "a generic edit": (targets.qdq, edit.skip(Everything() & GELUS)),
    "twice": (targets.qdq, lambda t: edit.pipe(t, edit.skip(edit.op("conv")), edit.skip(edit.op("conv", "linear")))),
}


@pytest.mark.parametrize("name", IDLE)
def test_an_edit_without_effect_is_refused(name):
    target, change, found = IDLE[name]
    changed = change(target)
    with pytest.raises(SpecError) as caught:
        qfunc.quantize(changed)(NET)
    where = f"target {target.name!r}, rules: found {changed.rules[0].select!r}, which changes nothing: "
    assert str(caught.value) == f"{where}{found}, {WANTED}"


@pytest.mark.parametrize("name", ACTIVE)
def test_an_edit_with_an_effect_on_one_op_is_not(name):
    target, change = ACTIVE[name]
    qfunc.quantize(change(target))(NET)


def test_a_network_without_quantizers_has_no_op_to_name():
    with pytest.raises(SpecError) as caught:
        qfunc.quantize(edit.skip(GELUS)(targets.qdq))(nn.Sequential(nn.GELU()))
    assert str(caught.value).endswith("wanted a selector that matches an op with a quantizer. Drop this edit.")


def test_a_target_in_itself_is_never_refused():
    """Rules of the targets that keep float, as that of the layers that the K210 leaves to its CPU, need no effect."""
    for target in (targets.k210, targets.nnie):
        qfunc.quantize(target)(nn.Sequential(nn.Conv2d(3, 4, 3)).eval())

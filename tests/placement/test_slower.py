"""What a processor computes slower on integers than in float is in float there; edits and overrides put it on integers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from attrs import evolve
from torch import nn

import qfunc
from qfunc import errors, specs
from qfunc.estimators import Ema
from qfunc.specs import AtMost, Build, Op, Slower, Target, cpus, edit
from qfunc.targets import litert, openvino

ROW = Slower(Op("leaky_relu"), 2.5, "a drawn network")
CHIP = edit.slower(ROW)(litert)
ACTIVATION = litert.rules[0].input


def network() -> nn.Module:
    """Convolutions with a leaky relu and a pool between them."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 1), nn.LeakyReLU(0.3), nn.AvgPool2d(2), nn.Conv2d(4, 4, 1)).eval()


def in_float(target: Target) -> dict[str, str]:
    """The kinds of the float units, with the reasons."""
    x = [torch.randn(2, 3, 6, 6)]
    calibrated = qfunc.calibrate(x, progress=False)(qfunc.quantize(target)(network()))
    return {row.kind: row.why for row in qfunc.explain(calibrated).floats}


def test_it_is_in_float_and_explain_names_the_row() -> None:
    assert in_float(CHIP) == {"leaky_relu": "on x86-64-vnni it is 2.5 times slower on integers: a drawn network"}
    assert in_float(edit.slower()(CHIP)) == {}


@pytest.mark.parametrize(
    "change",
    [
        edit.override(Op("leaky_relu"), activations={"estimator": Ema()}),
        edit.add(Op("leaky_relu"), input=ACTIVATION, output=ACTIVATION),
    ],
    ids=["an override", "a rule"],
)
def test_what_a_user_names_stays_on_integers(change: Any) -> None:
    assert in_float(change(CHIP)) == {}


def test_the_row_is_of_one_processor() -> None:
    assert ROW in CHIP.runtime.slower
    assert in_float(edit.cpu(cpus.arm64)(CHIP)) == {}


PRODUCTS = edit.slower(Slower(Op("conv") & AtMost("in_channels", 3), 2.0, "few channels"))(litert)


def test_products_are_in_float_where_another_stays_on_integers() -> None:
    assert in_float(PRODUCTS)["conv"] == "on x86-64-vnni it is 2 times slower on integers: few channels"
    one = edit.slower(Slower(Op("conv"), 2.0, "all of them"))(litert)
    assert "conv" not in in_float(one)


@pytest.mark.parametrize(
    "change",
    [
        edit.override(edit.name("0"), weights={"bits": 8}),
        edit.add(edit.name("0"), input=ACTIVATION, weight=litert.rules[0].weight, output=ACTIVATION),
    ],
    ids=["an override", "a rule"],
)
def test_a_product_that_a_user_names_stays_on_integers(change: Any) -> None:
    assert "conv" not in in_float(change(PRODUCTS))


def test_a_skip_of_the_ops_is_no_error() -> None:
    assert [*in_float(edit.skip(Op("leaky_relu"))(CHIP))] == ["leaky_relu"]


def test_a_target_of_other_software_has_no_rows() -> None:
    assert openvino.runtime.slower == ()
    with pytest.raises(errors.SpecError, match="without builds"):
        edit.slower(ROW)(openvino)


@pytest.mark.parametrize(
    ("make", "part"),
    [
        (lambda: Slower(Op("add"), 0.9, "measured"), "Slower.ratio: found 0.9, wanted more than 1"),
        (lambda: Slower("add", 2, "measured"), "a selector"),
        (lambda: Slower(Op("add"), 2, ""), "because"),
        (lambda: Build("arm64", slower=(Op("add"),)), "slower"),
        (lambda: edit.slower(Op("add")), "a Slower"),
    ],
)
def test_bad_rows_are_refused(make: Any, part: str) -> None:
    with pytest.raises(errors.SpecError) as caught:
        make()
    assert part in str(caught.value)


def test_the_row_is_in_the_datasheet_and_in_json() -> None:
    assert "leaky_relu: 2.5 times as slow, a drawn network" in str(CHIP)
    assert "in float leaky_relu: 2.5 times as slow" in str(edit.cpu(cpus.arm64)(CHIP))
    assert specs.from_json(specs.to_json(CHIP)) == CHIP
    assert evolve(CHIP, name="other").runtime.slower == (ROW,)

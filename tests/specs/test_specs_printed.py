"""How targets print: one line as repr, a datasheet as str, code by `code()`."""

from __future__ import annotations

import pytest

import qfunc.specs
from qfunc import estimators, functions, lowering, targets
from qfunc.specs import (
    AnyOf, Attr, Bounds, ClampImplied, DerivedQParams, FixedPoint, From, Fusion, FusionStep, Int, KeepFloat, Kernel, Name, Not,
    Op, OpKind, Override, PerChannel, PerTensor, Refuse, Require, Rule, Runtime, SameQParams, Scale, Scheme, Target, Tie, Trait,
    edit,
)  # fmt: skip
from tests.specs.a_target import ALGORITHM

TARGET = Target(
    name="chip",
    rules=(
        Rule(Op("softmax"), input=KeepFloat(), output=KeepFloat()),
        Rule(
            AnyOf((Op(("conv", "linear")), Op("matmul") & Attr("constant", "other"))),
            input=Scheme(),
            weight=Scheme(Int(8), Scale(PerChannel())),
            bias=DerivedQParams(),
        ),
        Rule(Op("add"), input=Scheme(), edges=Not(From(Op("mul")))),
    ),
    fusions=Fusion(Op("conv"), (FusionStep(Op(Trait.CLAMPS | Trait.ACTIVATION)), FusionStep(Op("add"), optional=False)),
                   when=Attr("groups", 1), integer_if=ClampImplied()),
    ties=Tie(Op("concat"), slots=("input",), leader="union"),
    kernels=Kernel(Op("conv"), FixedPoint("half_up"), formats=(("input", (Int(8),)),), integer_if=SameQParams(),
                   bounds=Bounds()),
    commuting=Op((Trait.VIEW, "max_pool")),
    legality=(
        Require(Op("conv"), "weight", formats=(Int(8), Int(4)), narrower=False, shared=PerTensor(), zero_point=False,
                power_of_two=True, because="manual, page 3"),
        Refuse(Not(Op(("conv", "linear"))), because="manual, page 4", do="Use a conv."),
    ),
    ops=OpKind("act", "mine.act"),
    runtime=Runtime("sdk", ">=2", "dsp", "v66", lowering.OnnxRuntimeRunner()),
    lowering=lowering.QdqLowering(),
    source=("manual 1.0", "measured"),
    weight=ALGORITHM,
    activation=ALGORITHM,
    overrides=Override(Name("head"), "weight", bits=4),
)  # fmt: skip

DATASHEET = """\
chip
  source      manual 1.0
              measured
  runtime     sdk >=2 kernels v66 dsp
  runner      OnnxRuntimeRunner()
  lowering    QdqLowering()
  weight      MinMax(), Fixed()
  activation  MinMax(), Fixed()

  rules, the first that matches applies
    softmax
        input   KeepFloat()
        output  KeepFloat()
    (conv, linear) or (matmul and constant = 'other')
        input   Scheme()
        weight  Scheme(scale=Scale(PerChannel()))
        bias    DerivedQParams()
    add
        edges   not From(Op('mul'))
        input   Scheme()

  fusions, optional steps with ?
    conv -> (activation and clamps)? -> add, where groups = 1, on integers if ClampImplied()

  kernels
    conv: FixedPoint('half_up')
        input   Int(8)
        if      SameQParams()
        bounds  Bounds()

  ties
    Tie(Op('concat'), slots=('input',), leader='union')

  commute with quantization
    view, max_pool

  constraints
    weight of conv
        format Int(8) or Int(4), all of its codes
        scales PerTensor()
        scales that are powers of two
        no zero point
        because manual, page 3
    refused: not (conv, linear)
        because manual, page 4
        Use a conv.

  op kinds
    OpKind('act', spellings=('mine.act',))

  overrides
    Override(Name('head'), role='weight', bits=4)"""


def test_the_datasheet() -> None:
    assert str(TARGET) == DATASHEET


def test_the_repr_is_one_line_that_counts() -> None:
    assert repr(TARGET) == ("Target('chip', 3 rules, 1 fusion, 1 tie, 1 kernel, 2 constraints, 1 op kind, 1 override)")
    assert repr(targets.tensorrt) == "Target('tensorrt', 2 rules, 2 fusions, 1 tie, 1 kernel, 5 constraints)"


def test_an_edit_refuses_a_target_in_one_line() -> None:
    with pytest.raises(qfunc.errors.SpecError) as caught:
        edit.pipe(TARGET, TARGET)  # type: ignore[arg-type]
    assert str(caught.value).startswith(f"edit.pipe: found {TARGET!r}, wanted a function target -> target.")


@pytest.mark.parametrize("target", [TARGET, targets.qdq, targets.tensorrt, targets.tosa], ids=lambda t: t.name)
def test_the_code_builds_the_target(target: Target) -> None:
    names = {**vars(qfunc.specs), **vars(estimators), **vars(functions), **vars(lowering), **vars(targets.runtimes)}
    assert eval(target.code(), names) == target


@pytest.mark.parametrize("name", targets.__all__)
def test_every_target_prints_within_a_page_of_120_columns(name: str) -> None:
    target = getattr(targets, name)
    if isinstance(target, Target):
        lines = str(target).splitlines()
        assert lines[0] == target.name
        assert max(map(len, lines)) <= 160
        assert repr(target).count("\n") == 0
        assert len(repr(target)) < 160

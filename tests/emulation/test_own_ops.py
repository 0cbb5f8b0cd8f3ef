"""Ops of the user's that are modules, methods, or calls with named arguments: emulated and verified as functions are."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from attrs import evolve
from torch import Tensor, fx, nn

import qfunc
from qfunc import targets
from qfunc.specs import Copy, FloatKernel, Kernel, Op, OpKind, Rule, SameQParams, Scheme, Target, Tie
from qfunc.targets.runtimes import OnnxRuntimeRunner

SCALED = '<opset_import: ["":21], domain: "mine"> Scaled (x) => (y) {k = Constant<value_float = 1.5>() y = Mul(k, x)}'
TURNED = '<opset_import: ["":21], domain: "mine"> Turned (x) => (y) {y = Transpose<perm = [1, 0]>(x)}'


class Scaled(nn.Module):
    """One node: its class is a spelling of an OpKind."""

    def forward(self, x: Tensor) -> Tensor:
        return 1.5 * x


class Turned(nn.Module):
    """A module that moves values."""

    def forward(self, x: Tensor) -> Tensor:
        return x.mT


@fx.wrap
def stretched(x: Tensor, by: float = 1.0) -> Tensor:
    """A function with an argument that callers name."""
    return by * x


class ByName(nn.Module):
    """A call with a named argument."""

    def forward(self, x: Tensor) -> Tensor:
        return stretched(x, by=1.5)


class ByMethod(nn.Module):
    """A method that the vocabulary does not have."""

    def forward(self, x: Tensor) -> Tensor:
        return x.logaddexp(x)


LOGADD = '<opset_import: ["":21], domain: "mine"> Logadd (x) => (y) {e = Exp(x) s = Add(e, e) y = Log(s)}'
CASES = {
    "a module in float": (Scaled(), f"{__name__}.Scaled", SCALED, FloatKernel()),
    "a module that moves codes": (Turned(), f"{__name__}.Turned", TURNED, Copy()),
    "a named argument": (ByName(), f"{__name__}.stretched", SCALED, FloatKernel()),
    "a method": (ByMethod(), "logaddexp", LOGADD, FloatKernel()),
}


def own_target(spelling: str, onnx: str, arithmetic: Any) -> Target:
    """A target with one op of the user's, in the given arithmetic."""
    byte = Scheme()
    same = (
        {"ties": Tie(Op("mine"), ("input", "output"), "input"), "commuting": ("mine",)}
        if arithmetic == Copy()
        else {"ties": ()}
    )
    return evolve(
        targets.qdq,
        name="own",
        ops=OpKind("mine", spelling, onnx=onnx),
        rules=(Rule(Op(("mine", "relu")), input=byte, output=byte),),
        kernels=(Kernel(Op("mine"), arithmetic, integer_if=SameQParams() if arithmetic == Copy() else ()),),
        **same,
    )


def run(artifact: Any, inputs: Any) -> list[Any]:
    """ONNX Runtime on the Q/DQ file: the ops are the functions in it."""
    return list(OnnxRuntimeRunner().run(artifact, inputs))


@pytest.mark.parametrize("case", CASES)
def test_an_op_of_any_form_is_emulated_and_verified(case: str) -> None:
    op, spelling, onnx, arithmetic = CASES[case]
    target = own_target(spelling, onnx, arithmetic)
    model, x = nn.Sequential(nn.ReLU(), op), torch.randn(6, 6, generator=torch.Generator().manual_seed(0))
    calibrated = qfunc.calibrate([x], progress=False)(qfunc.quantize(target)(model))
    emulation = qfunc.emulate(target)(calibrated)
    assert torch.equal(emulation(x), calibrated(x))
    report = qfunc.verify(target, run)(calibrated, [x])
    assert report.agreement == "bit-exact: 0 of 36 elements differ", report


def test_export_traces_through_a_module_class() -> None:
    target = own_target(f"{__name__}.Scaled", SCALED, FloatKernel())
    model, x = nn.Sequential(nn.ReLU(), Scaled()), torch.randn(4, 6, generator=torch.Generator().manual_seed(0))
    calibrated = qfunc.calibrate([x], progress=False)(qfunc.quantize(target, (x,))(model))
    assert [u.kind for u in qfunc.explain(calibrated).floats] == ["relu", "mul"]
    assert torch.equal(qfunc.emulate(target)(calibrated)(x), calibrated(x))
    assert qfunc.verify(target, run)(calibrated, [x]).agreement.startswith("bit-exact")


RUNTIMES = ("openvino", "litert", "executorch_xnnpack", "ncnn")


class Knee(nn.Module):
    """A module of several ops, which one function writes."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.minimum(0.25 * x, x * x)


KNEE = """<opset_import: ["": 21], domain: "mine"> Knee (x) => (z) {
    a = Constant<value = float {0.25}>() b = Mul(a, x) c = Mul(x, x) z = Min(b, c) }"""


@pytest.mark.parametrize("name", RUNTIMES)
@pytest.mark.parametrize("op", [(Scaled, SCALED), (Knee, KNEE)], ids=lambda op: op[0].__name__)
def test_functions_of_the_users_run_in_runtimes_that_read_none(name: str, op: tuple[Any, str]) -> None:
    own, text = op
    target: Any = evolve(getattr(targets, name), ops=OpKind("mine", f"{__name__}.{own.__name__}", onnx=text))
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Conv2d(3, 4, 3), own(), nn.Conv2d(4, 3, 1)).eval(), torch.randn(2, 3, 6, 6)
    calibrated = qfunc.calibrate([x], progress=False)(qfunc.quantize(target)(model))
    report = qfunc.verify(target)(calibrated, [x])
    assert report.agreement.startswith("bit-exact"), report

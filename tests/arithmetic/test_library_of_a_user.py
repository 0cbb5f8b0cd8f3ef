"""Libraries of float functions: values, of qfunc's or of a user's own, against the formula in fractions."""

import math
from fractions import Fraction

import pytest
import torch
from attrs import frozen
from torch import Tensor, nn

import qfunc
from qfunc import targets
from qfunc.errors import EmulationError, SpecError
from qfunc.estimators import MinMax
from qfunc.functions import Fixed
from qfunc.numerics import libraries
from qfunc.specs import Algorithm, FixedQParams, FloatKernel, Int, Kernel, Op, Rule, Runtime, Scheme, Target, from_json, to_json


def eighths(x: Tensor) -> Tensor:
    return torch.floor(x * 8) / 8


@frozen
class Eighths:
    """A sigmoid that is x, cut off to eighths."""

    def form(self, kind: str):
        return eighths if kind == "sigmoid" else None


CODES = FixedQParams(Scheme(Int(8)), 1 / 64, 0)


def chip(kind: str, library: object) -> Target:
    return Target(
        name="chip",
        rules=(Rule(Op(kind), input=CODES, output=CODES),),
        kernels=(Kernel(Op(kind), FloatKernel("float32", "half_up", function=library)),),  # type: ignore[arg-type]
        runtime=Runtime("chip", "1.0"),
        source="this file",
        weight=Algorithm(MinMax(), Fixed()),
        activation=Algorithm(MinMax(), Fixed()),
    )


def emulated(kind: str, library: object, module: nn.Module) -> torch.fx.GraphModule:
    target = chip(kind, library)
    return qfunc.emulate(target)(qfunc.calibrate([torch.zeros(1, 3)], progress=False)(qfunc.quantize(target)(module)))


def test_a_function_of_the_users_own() -> None:
    q = torch.arange(-128, 128)
    found = emulated("sigmoid", Eighths(), nn.Sigmoid())((q / 64)[None])
    wanted = [Fraction(math.floor(Fraction(int(code), 64) * 8), 8) for code in q]
    assert [Fraction(float(v)) for v in found[0]] == wanted


def test_kinds_that_a_library_lacks() -> None:
    with pytest.raises(EmulationError) as missing:
        emulated("tanh", Eighths(), nn.Tanh())
    assert str(missing.value) == (
        "unit 'tanh': found FloatKernel(function=Eighths()) for an op of kind 'tanh', wanted a kind that the library computes. "
        "Bind another arithmetic in the target's kernels."
    )


OF_CHIPS = [name for name in targets.arithmetics.__all__ if hasattr(getattr(targets.arithmetics, name), "form")]


@pytest.mark.parametrize("name", [*libraries.__all__, *OF_CHIPS])
def test_a_library_is_a_value(name: str) -> None:
    kernel = Kernel(
        Op("sigmoid"), FloatKernel(function=getattr(libraries if name in libraries.__all__ else targets.arithmetics, name)())
    )
    assert f'"is": "{name}"' in to_json(kernel)
    assert from_json(to_json(kernel)) == kernel
    assert repr(kernel.arithmetic) == f"FloatKernel(function={name}())"


def test_the_users_own_needs_its_class() -> None:
    kernel = Kernel(Op("sigmoid"), FloatKernel(function=Eighths()))
    assert from_json(to_json(kernel), classes=(Eighths,)) == kernel


def test_a_name_is_no_library() -> None:
    with pytest.raises(SpecError) as refused:
        FloatKernel(function="mlas")  # type: ignore[arg-type]
    assert str(refused.value) == (
        "FloatKernel.function: found 'mlas', wanted a library, which is a frozen value with the method form, or None. "
        "Give a value, such as targets.arithmetics.Mlas()."
    )

"""Errors in a user's view of an artifact: verify names the runner and the tensor."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import attrs
import pytest
import torch
from torch import nn

import qfunc
from qfunc import targets
from qfunc.errors import VerifyError
from qfunc.targets.runtimes import OnnxRuntimeRunner

RUNNER = OnnxRuntimeRunner(optimise=False)


@attrs.frozen
class Mine:
    """A runner whose view is made by a function of a right one."""

    change: Callable[[Any], Any]

    def run(self, artifact: Any, inputs: Any) -> Any:
        return RUNNER.run(artifact, inputs)

    def inside(self, artifact: Any) -> Any:
        return self.change(RUNNER.inside(artifact))


def verdict(runner: Any) -> str:
    torch.manual_seed(0)
    x, target = [torch.randn(2, 3, 8, 8)], targets.onnxruntime
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Conv2d(4, 2, 3)).eval()
    calibrated = qfunc.calibrate(x, progress=False)(qfunc.quantize(target)(net))
    return qfunc.verify(target, runner, latency=False)(calibrated, x).verdict


def view(view: Any, **changed: Any) -> Any:
    return SimpleNamespace(**{"tensors": view.tensors, "run": view.run, "units": None, "difference": "", **changed})


def without(name: str) -> Callable[[Any], Any]:
    def change(right: Any) -> Any:
        changed = view(right)
        delattr(changed, name)
        return changed

    return change


def codes(change: Callable[[dict[str, Any]], Any]) -> Callable[[Any], Any]:
    """A view whose dict of codes is changed."""

    def run(right: Any) -> Callable[[Any], Any]:
        def shown(inputs: Any) -> Any:
            outputs, found = right.run(inputs)
            return outputs, change(dict(found))

        return shown

    return lambda right: view(right, run=run(right))


def failing(inputs: Any) -> Any:
    raise KeyError("conv")


WRONG = {
    "no units": (
        without("units"),
        "verify, Mine.inside: found a SimpleNamespace without units, wanted a view with tensors, run, units, difference. "
        "Write units = None if it shows no units.",
    ),
    "no difference": (
        without("difference"),
        "verify, Mine.inside: found a SimpleNamespace without difference, wanted a view with tensors, run, units, difference. "
        'Write difference = "" if it equals the artifact.',
    ),
    "no tensors": (
        without("tensors"),
        "verify, Mine.inside: found a SimpleNamespace without tensors, wanted a view with tensors, run, units, difference. "
        "Add tensors, as specs.InspectableRunner describes them.",
    ),
    "a text as tensors": (
        lambda right: view(right, tensors="0.codes"),
        "verify, Mine.inside: found tensors '0.codes', wanted a frozenset of names, such as 'conv.codes'. Return such a "
        "frozenset as tensors.",
    ),
    "lacks a tensor": (
        codes(lambda found: {k: v for k, v in found.items() if k != "0.codes"}),
        "verify, view of Mine: found no '0.codes' among the tensors that run returns, wanted all that the view names. Return "
        "it, or leave it out of the view's tensors.",
    ),
    "another shape": (
        codes(lambda found: {**found, "0.codes": found["0.codes"][:, :1]}),
        "verify, view of Mine, tensor '0.codes': found codes of the shape [2, 1, 6, 6], wanted [2, 4, 6, 6]. Return the codes "
        "in the model's layout, of the whole batch.",
    ),
    "texts": (
        codes(lambda found: {**found, "0.codes": ["a"]}),
        "verify, view of Mine, tensor '0.codes': found a list, wanted an array of numbers. Return a NumPy array or a tensor.",
    ),
    "no pair": (
        lambda right: view(right, run=lambda inputs: right.run(inputs)[0]),
        "verify, view of Mine: found a list, wanted a pair of outputs and a dict. Return (outputs, codes), where codes has an "
        "array for each of the view's tensors.",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_view_is_an_error_of_the_runner(name: str) -> None:
    change, text = WRONG[name]
    with pytest.raises(VerifyError) as caught:
        verdict(Mine(change))
    assert str(caught.value) == text


def test_a_right_view_is_compared() -> None:
    assert verdict(Mine(view)).startswith("bit-exact")


def test_tensors_may_be_a_list() -> None:
    assert verdict(Mine(lambda right: view(right, tensors=sorted(right.tensors)))).startswith("bit-exact")


def test_an_exception_in_the_view_names_the_view() -> None:
    with pytest.raises(VerifyError) as caught:
        verdict(Mine(lambda right: view(right, run=failing)))
    line = failing.__code__.co_firstlineno + 1
    assert str(caught.value) == (
        f"verify, batch 1: found KeyError: 'conv', at {__file__}:{line}, wanted an artifact that the view of Mine runs. "
        "Correct the run of the view that Mine.inside returns."
    )


def test_an_exception_in_inside_names_it() -> None:
    with pytest.raises(VerifyError) as caught:
        verdict(Mine(failing))
    line = failing.__code__.co_firstlineno + 1
    assert str(caught.value) == (
        f"verify, Mine.inside: found KeyError: 'conv', at {__file__}:{line}, wanted a view with tensors, run, units, "
        "difference. Correct Mine.inside."
    )


def test_outputs_that_are_no_numbers() -> None:
    with pytest.raises(VerifyError) as caught:
        verdict(lambda artifact, inputs: ["a"])
    assert str(caught.value) == (
        "verify, output 0 of the runtime: found 'a', wanted an array of numbers. Return a NumPy array or a tensor."
    )

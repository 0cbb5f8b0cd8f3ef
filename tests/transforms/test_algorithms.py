"""Every estimator and function of the library through the whole pipeline: quantize, calibrate, train, deploy."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import fx

import qfunc
from qfunc import estimators, functions, targets
from qfunc.graph.network import seats
from qfunc.specs import edit
from tests.transforms.nets import network

ESTIMATORS = sorted(n for n in estimators.__all__ if n not in ("Range",))
ACTIVATIONS = ("Fixed", "Lsq", "LsqPlus", "Pact", "Dsq", "Tqt", "QDrop", "Stochastic")
WEIGHTS = ("Fixed", "Lsq", "LsqPlus", "DoReFa", "Dsq", "Tqt", "QDrop", "Stochastic", "AdaRound")


def pipeline(target: Any) -> tuple[fx.GraphModule, torch.Tensor]:
    """A calibrated residual network and its input."""
    model, x = network("residual")
    return qfunc.calibrate([x, 0.5 * x])(qfunc.quantize(target)(model)), x


def trained(model: fx.GraphModule, x: torch.Tensor) -> fx.GraphModule:
    """After three steps of SGD; the scales of a derived bias follow its sources."""
    model.train()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for _ in range(3):
        optimizer.zero_grad()
        (model(x) ** 2).mean().backward()
        optimizer.step()
    return model.eval()


@pytest.mark.parametrize("name", ESTIMATORS)
@pytest.mark.parametrize("role", ["weights", "activations"])
def test_every_estimator_calibrates_a_network_that_stays_exact(name: str, role: str) -> None:
    target = getattr(edit, role)(estimator=getattr(estimators, name)())(targets.onnxruntime)
    model, x = pipeline(target)
    assert qfunc.verify(target)(model, [x]).verdict.startswith("bit-exact")


@pytest.mark.parametrize(("role", "name"), [*(("weights", n) for n in WEIGHTS), *(("activations", n) for n in ACTIVATIONS)])
def test_every_function_trains_and_deploys_what_it_simulates(role: str, name: str) -> None:
    target = getattr(edit, role)(function=getattr(functions, name)())(targets.onnxruntime)
    model, x = pipeline(target)
    before = {k: v.clone() for k, v in model.named_parameters()}
    assert qfunc.verify(target)(model, [x]).verdict.startswith("bit-exact")
    trained(model, x)
    learned = [k for k, v in model.named_parameters() if k.startswith("quantizers.")]
    function = getattr(functions, name)()
    for seat in seats(model):
        if seat.module.site.function == function and hasattr(function, "learned") and seat.module.ready:
            assert set(function.learned(seat.module.site.scheme)) <= {k for k, _ in seat.module.named_parameters()}
    assert not learned or any(not torch.equal(before[k], p) for k, p in model.named_parameters() if k in learned)
    assert qfunc.verify(target)(model, [x]).verdict.startswith("bit-exact")

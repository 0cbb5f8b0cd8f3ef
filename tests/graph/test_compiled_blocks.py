"""Captured models under `torch.compile`."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch._dynamo
from torch import fx, nn

import qfunc
from qfunc import recipes, targets

X = torch.linspace(-2, 2, 24).view(4, 6)
pytestmark = pytest.mark.filterwarnings("ignore")  # torch.compile itself warns
BLOCKS, LIMIT = 2, 1
"""torch.compile compiles LIMIT graphs of one code object, here 1 in place of 8, and fails for more with fullgraph=True."""


class Counts:
    """A compiler that counts the graphs that it is given."""

    def __init__(self) -> None:
        self.graphs = 0

    def __call__(self, graph: fx.GraphModule, inputs: list[torch.Tensor]) -> Callable[..., Any]:
        self.graphs += 1
        return graph.forward


def quantized() -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Sequential(nn.Linear(6, 6), nn.Tanh()) for _ in range(BLOCKS)))
    blocks = tuple(str(i) for i in range(BLOCKS))
    student = qfunc.quantize(recipes.lsq()(targets.onnxruntime), submodules=blocks, example_inputs=(X,))(model)
    return qfunc.calibrate([X], progress=False)(student).train()


def pickled(model: nn.Module) -> nn.Module:
    return pickle.loads(pickle.dumps(model))


@pytest.mark.thorough
@pytest.mark.parametrize("copied", [nn.Module.train, copy.deepcopy, pickled])
def test_each_block_of_a_deep_network_compiles(copied: Callable[[nn.Module], nn.Module]) -> None:
    torch.compiler.reset()
    model, count = copied(quantized()), Counts()
    expected = model(X)
    for path in map(str, range(BLOCKS)):
        model.set_submodule(path, torch.compile(model.get_submodule(path), backend=count, fullgraph=True))
    with torch._dynamo.config.patch(recompile_limit=LIMIT):
        assert torch.equal(model(X), expected)
    assert count.graphs == BLOCKS


@pytest.mark.thorough
def test_a_compiled_model_serves_both_modes() -> None:
    torch.compiler.reset()
    model, count = quantized().get_submodule("0"), Counts()
    compiled = torch.compile(model, backend=count, fullgraph=True)
    for mode in (True, False, True, False):
        compiled.train(mode)
        compiled(X)
    assert count.graphs <= 2

"""Gradient checkpointing: what is computed again is what was computed, and counts once."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import qfunc
from qfunc import functions, recipes, targets
from qfunc.errors import SpecError
from qfunc.specs import edit
from tests.training.nets import batch, loss_of, student

STOCHASTIC = functions.Stochastic()
NOISY: dict[str, Any] = {
    "none": recipes.lsq(),
    "qdrop": edit.activations(function=functions.QDrop(functions.Lsq(batch_axis=0))),
    "stochastic": lambda target: edit.pipe(target, *(e(function=STOCHASTIC) for e in (edit.weights, edit.activations))),
}


def again(model: nn.Module, run: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    context_fn = functools.partial(qfunc.checkpoint_contexts, model)
    return lambda x: checkpoint(run, x, use_reentrant=False, context_fn=context_fn)


def same(one: nn.Module, other: nn.Module) -> None:
    """Gradients and state, bit for bit."""
    for (name, a), b in zip(one.named_parameters(), other.parameters(), strict=True):
        assert a.grad is not None
        assert torch.equal(a.grad, b.grad), name  # type: ignore[arg-type]
    have, want = one.state_dict(), other.state_dict()
    assert [k for k in want if not torch.equal(have[k], want[k])] == []


@pytest.mark.parametrize("name", NOISY)
def test_checkpointed_steps_are_the_steps_without(name: str) -> None:
    """Two steps, each of two batches whose backward comes after both forwards, with noise and BatchNorms that train."""
    one, other = (student(NOISY[name](targets.tensorrt)) for _ in range(2))
    runs = (again(one, lambda x: loss_of(one, x)), lambda x: loss_of(other, x))
    for step in range(2):
        for model, run in zip((one, other), runs, strict=True):
            optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
            optimizer.zero_grad()
            (run(batch(3 * step + 1)) + run(batch(3 * step + 2))).backward()
        same(one, other)
        for model in (one, other):
            torch.optim.SGD(model.parameters(), lr=0.05).step()


class Blocks(nn.Module):
    """A model whose own forward checkpoints its blocks, one of them twice."""

    contexts: Any = None

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.first = nn.Sequential(nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU())
        self.second = nn.Sequential(nn.Conv2d(4, 4, 2), nn.BatchNorm2d(4), nn.ReLU())
        self.head = nn.Linear(4, 6)

    def forward(self, x: Tensor) -> Tensor:
        for block in (self.first, self.second, self.second):
            x = block(x) if self.contexts is None else again(self if self.contexts == "all" else block, block)(x)
        return self.head(x.mean((2, 3)))


@pytest.mark.parametrize("contexts", ["all", "each"])
def test_parts_of_a_model_checkpoint(contexts: str) -> None:
    """Submodules that were quantized in a model of the user's; a backward that keeps the graph computes them twice."""
    target = NOISY["qdrop"](targets.tensorrt)
    one, other = (student(target, Blocks(), submodules=("first", "second")) for _ in range(2))
    one.contexts = contexts
    for model in (one, other):
        loss = loss_of(model, batch(1))
        for _ in range(2):
            loss.backward(retain_graph=True)
    same(one, other)


def test_what_is_no_module_is_refused() -> None:
    wanted = (
        "checkpoint_contexts: found function, wanted an nn.Module. "
        "Write context_fn=functools.partial(qfunc.checkpoint_contexts, block)."
    )
    with pytest.raises(SpecError) as caught:
        qfunc.checkpoint_contexts(lambda x: x)  # type: ignore[arg-type]
    assert str(caught.value) == wanted

"""Tied tensors have one algorithm and train as one; what enters a network keeps the algorithm of the target."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import qfunc
from qfunc import recipes, targets
from qfunc.errors import SpecError
from qfunc.estimators import Ema, Mse
from qfunc.functions import Fixed, Lsq, LsqPlus
from qfunc.graph.sites import quantizer_nodes
from qfunc.specs import Everything, GraphInput, Target, edit


class Joined(nn.Module):
    """A concat of the image and of what a conv makes of it; a pool of the image."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.last = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(7, 5, 3)
        self.pooled = nn.Conv2d(3, 6, 2)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.last(torch.cat([x, self.conv(x)], 1)), self.pooled(nn.functional.max_pool2d(x, 2))


class Words(nn.Module):
    """What enters is no activation."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(10, 6), nn.Linear(6, 5)

    def forward(self, words: Tensor) -> Tensor:
        return self.head(self.embedding(words))


def made(target: Target) -> Any:
    torch.manual_seed(2)
    batches = [torch.randn(2, 3, 9, 8) for _ in range(2)]
    return qfunc.calibrate(batches, progress=False)(qfunc.quantize(target)(Joined())).train()


def scales(model: Any) -> dict[str, float]:
    return {s.module.site.name: float(s.module.scales()) for s in quantizer_nodes(model) if not s.module.site.constant}


RECIPES = {
    "lsq": (recipes.lsq(), targets.litert),
    "lsq_plus": (recipes.lsq_plus(), targets.academic(4, 4)),
    "pact": (recipes.pact(), targets.academic(4, 4)),
    "dsq": (recipes.dsq(), targets.academic(4, 4)),
    "dorefa": (recipes.dorefa(), targets.academic(4, 4)),
    "tqt": (recipes.tqt(), targets.vitis),
}


@pytest.mark.parametrize("name", RECIPES)
def test_what_enters_keeps_the_algorithm_of_the_target(name: str) -> None:
    recipe, target = RECIPES[name]
    model = qfunc.quantize(recipe(target))(nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 5, 3)))
    chosen, own = recipe(target).activation, target.activation
    found = {s.module.site.name: (s.module.site.estimator, s.module.site.function) for s in quantizer_nodes(model)}
    assert found["input"] == (own.estimator, own.function)
    assert found["1"] == (chosen.estimator, chosen.function) != found["input"]


def test_words_that_enter_are_no_activations() -> None:
    """A recipe knows no model: it says nothing of what is not there, where a user's own edit would be an error."""
    qfunc.quantize(recipes.lsq()(targets.onnxruntime))(Words())
    fixed = {"function": Fixed()}
    qfunc.quantize(edit.override(Everything() & GraphInput(), activations=fixed)(targets.onnxruntime))(Words())
    with pytest.raises(SpecError, match=r"overrides: found GraphInput\(\), which matches no quantized activation"):
        qfunc.quantize(edit.override(GraphInput(), activations=fixed)(targets.onnxruntime))(Words())


@pytest.mark.parametrize("target", [targets.litert, targets.openvino], ids=lambda target: target.name)
def test_tied_tensors_train_as_one(target: Target) -> None:
    """The image is tied to the output of the concat, whose scale trains; the other tensors of the tie, too."""
    model = made(recipes.lsq()(target))
    before = scales(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for seed in range(2):
        optimizer.zero_grad()
        one, other = model(torch.randn(2, 3, 9, 8, generator=torch.Generator().manual_seed(seed)))
        (one.square().mean() + other.square().mean()).backward()
        optimizer.step()
    after = scales(model)
    assert after["x"] == after["conv"] == after["cat"] != before["cat"] == before["x"]


def test_the_leader_gives_its_algorithm() -> None:
    """Of a concat the output, of a pool the input."""
    plus = edit.override(edit.name("cat"), activations={"function": LsqPlus(), "estimator": Mse()})
    model = qfunc.quantize(edit.pipe(targets.openvino, recipes.lsq(), plus))(Joined())
    found = {s.module.site.name: (s.module.site.estimator, s.module.site.function) for s in quantizer_nodes(model)}
    assert found["x"] == found["conv"] == found["cat"] == (Mse(), LsqPlus())
    model = qfunc.quantize(edit.override(GraphInput(), activations={"function": Lsq()})(targets.snpe))(
        nn.Sequential(nn.MaxPool2d(2), nn.Conv2d(3, 4, 3))
    )
    assert [s.module.site.function for s in quantizer_nodes(model) if not s.module.site.constant][:2] == [Lsq(), Lsq()]


def test_an_override_of_what_follows_is_an_error() -> None:
    target = edit.override(edit.name("conv"), activations={"estimator": Ema()})(targets.openvino)
    wanted = (
        "target 'openvino', overrides: found Name('conv'), which matches 'conv', which the target ties to 'cat' and its "
        "estimator and function, wanted the leader of the tie. Name 'cat', too."
    )
    with pytest.raises(SpecError) as caught:
        qfunc.quantize(target)(Joined())
    assert str(caught.value) == wanted

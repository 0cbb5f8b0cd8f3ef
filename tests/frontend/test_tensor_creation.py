"""Tensors that a model makes from sizes: grids, and where they stand when inputs are dicts and lists."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import qfunc
from qfunc import targets
from qfunc.errors import DeployError
from qfunc.graph.sites import quantizer_nodes
from qfunc.ops.node import kind_of
from qfunc.specs import edit
from tests.onnxruntime_target import ONNXRUNTIME

TARGET = edit.weights(bits=7)(ONNXRUNTIME)


class Grid(nn.Module):
    """The positions that a detector adds to its boxes."""

    def __init__(self, indexing: str, whole: bool = False) -> None:
        super().__init__()
        self.head, self.indexing, self.whole = nn.Conv2d(3, 2, 1), indexing, whole

    def forward(self, x: Tensor) -> Tensor:
        y = self.head(x)
        h, w = y.shape[-2:] if self.indexing == "ij" else (y.shape[-1], y.shape[-2])
        made = torch.meshgrid(torch.arange(h), 2 * torch.arange(w), indexing=self.indexing)
        if self.whole:
            return y + torch.stack(made).float()
        first, second = made
        return y + torch.stack((second, first)).float()


GRIDS = [Grid("ij"), Grid("xy"), Grid("ij", whole=True)]


@pytest.mark.parametrize("model", GRIDS, ids=["ij", "xy", "whole"])
def test_grids_are_views_of_their_axes(model: nn.Module) -> None:
    x = torch.randn(2, 3, 5, 4)
    captured = qfunc.capture()(model)
    assert torch.equal(captured(x), model(x))
    assert torch.equal(captured(x[..., 1:, 2:]), model(x[..., 1:, 2:]))
    assert [kind_of(n) for n in captured.graph.nodes].count("expand") == 2


@pytest.mark.parametrize("road", [None, (torch.randn(2, 3, 5, 4),)], ids=["fx", "export"])
def test_grids_deploy(road: Any) -> None:
    x = torch.randn(2, 3, 5, 4)
    calibrated = qfunc.calibrate([x], progress=False)(qfunc.quantize(TARGET, road)(GRIDS[0].eval()))
    assert qfunc.verify(TARGET)(calibrated, [torch.randn(3, 3, 5, 4)]).agreement.startswith("bit-exact")


class Keyed(nn.Module):
    """Makes tensors before and after it reads its entries."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Conv2d(3, 2, 1)

    def forward(self, batch: dict[str, Any]) -> tuple[Tensor, Tensor]:
        places = torch.arange(4)
        x = batch["view"]
        y = self.head(x) + batch["image"]
        return y + torch.arange(y.shape[-1], device=x.device), places


def test_a_made_tensor_stands_where_an_entry_of_a_dict_does() -> None:
    batch = {"image": torch.randn(2, 2, 5, 4), "view": torch.randn(2, 3, 5, 4)}
    model = Keyed().eval()
    captured = qfunc.capture()(model)
    assert all(torch.equal(a, b) for a, b in zip(captured(batch), model(batch), strict=True))
    assert captured.to("meta")({k: v.to("meta") for k, v in batch.items()})[1].is_meta
    calibrated = qfunc.calibrate([(batch,)], progress=False)(qfunc.quantize(TARGET)(model))
    assert calibrated(batch)[0].shape == (2, 2, 5, 4)


def test_deploy_wants_one_tensor_for_each_input() -> None:
    class One(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Conv2d(3, 2, 1)

        def forward(self, batch: dict[str, Tensor]) -> Tensor:
            x: Tensor = self.head(batch["image"])
            return x

    batch = ({"image": torch.randn(2, 3, 5, 4)},)
    calibrated = qfunc.calibrate([batch], progress=False)(qfunc.quantize(TARGET)(One().eval()))
    with pytest.raises(DeployError) as refused:
        qfunc.deploy(TARGET)(calibrated)
    assert str(refused.value) == (
        "deploy, inputs: found a dict, 'batch', wanted one tensor for each input. Give quantize the example_inputs, so that "
        "the model is captured with one input for each tensor."
    )


class Scaled(nn.Module):
    """Features times `torch.tensor` of numbers and sizes, in the dtype or on the device of a tensor."""

    def __init__(self, make: Any) -> None:
        super().__init__()
        self.head, self.make = nn.Conv2d(3, 4, 1), make
        self.tensor = nn.Parameter(torch.ones(1))  # the name of the op, too

    def forward(self, x: Tensor) -> Tensor:
        y = self.head(x) * self.tensor
        height, width = y.shape[-2:]
        return y.mean((2, 3)) * self.make(y, height, width)


NUMBERS = {
    "weights of a box coder": lambda y, h, w: torch.tensor([10.0, 10, 5, 5], dtype=y.dtype, device=y.device)[:4],
    "sizes": lambda y, h, w: torch.tensor([w, h, w, h], device=y.device),
    "sizes and fractions": lambda y, h, w: torch.tensor([[w, h, w / 2, 3.5]], dtype=y.dtype),
    "integers": lambda y, h, w: torch.tensor([[1, 2, 3, 4]], device=y.device),
    "a number": lambda y, h, w: torch.tensor(2, dtype=y.dtype),
}


@pytest.mark.thorough
@pytest.mark.parametrize("road", [None, (torch.randn(2, 3, 5, 4),)], ids=["fx", "export"])
@pytest.mark.parametrize("case", NUMBERS)
def test_tensors_of_numbers_and_sizes_are_constants(case: str, road: Any) -> None:
    """The boxes of torchvision's SSDlite: its coder creates its weights so, and its anchors the sizes of the image."""
    x, model = torch.randn(2, 3, 5, 4), Scaled(NUMBERS[case]).eval()
    captured = qfunc.capture(road)(model)
    assert torch.equal(captured(x), model(x))
    if road is None:
        assert torch.equal(captured(x[..., 1:, 2:]), model(x[..., 1:, 2:]))
        assert captured.to("meta")(x.to("meta")).is_meta
    calibrated = qfunc.calibrate([x], progress=False)(qfunc.quantize(TARGET, road)(model))
    assert qfunc.verify(TARGET)(calibrated, [x]).mismatches == 0


class Anchors(nn.Module):
    """Casts the axes of a grid before it stacks them, as torchvision's anchors do."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Conv2d(3, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.head(x)
        height, width = y.shape[-2:]
        axes = [(torch.arange(n) + 0.5).to(y.dtype) for n in (height, width)]
        return y + torch.stack(torch.meshgrid(*axes, indexing="ij"))


def test_a_runtime_may_fold_a_grid_that_was_cast() -> None:
    x = torch.randn(2, 3, 5, 4)
    calibrated = qfunc.calibrate([x], progress=False)(qfunc.quantize(TARGET)(Anchors().eval()))
    assert qfunc.verify(TARGET)(calibrated, [x]).disagreements == ()


class ScaledGrid(nn.Module):
    """A grid in the type of the image, times a constant: the cast reads an activation, but only its type."""

    def forward(self, x: Tensor) -> Tensor:
        h, w = x.shape[-2:]
        rows, columns = torch.meshgrid(torch.arange(h), torch.arange(w), indexing="ij")
        return x + (rows + columns).to(x.dtype) / 8 + rows.type_as(x) / w


@pytest.mark.parametrize("name", ["tosa", "litert", "onnxruntime", "executorch_xnnpack", "openvino", "tensorrt"])
def test_both_ways_to_capture_quantize_the_same_tensors_of_a_grid(name: str) -> None:
    x = torch.randn(2, 3, 4, 5)
    quantized = [qfunc.quantize(getattr(targets, name), inputs)(ScaledGrid()) for inputs in (None, (x,))]
    traced, exported = ([q.module.site.slot for q in quantizer_nodes(m)] for m in quantized)
    assert sorted(traced) == sorted(exported)


CREATED_LIKE = [
    lambda x: torch.zeros(x.shape[-1], dtype=x.dtype),
    lambda x: torch.ones(3, dtype=x.dtype, device=x.device),
    lambda x: torch.full(x.shape[-1:], 0.3, dtype=x.dtype),
    lambda x: torch.full((2,), 7, dtype=x.dtype),
    lambda x: torch.zeros(x.shape, dtype=x.dtype),
    lambda x: torch.full((2,), True, dtype=x.dtype),
    lambda x: torch.full((1,), x.shape[0], dtype=x.dtype),
    lambda x: torch.arange(x.shape[-1], dtype=x.dtype),
    lambda x: torch.arange(1, x.shape[-1] + 7, 3, dtype=x.dtype),
    lambda x: torch.zeros_like(x > 0, dtype=x.dtype),
    lambda x: torch.full_like(x > 0, 2.5, dtype=x.dtype),
    lambda x: (x > 0).new_full((2,), 0.25, dtype=x.dtype),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64, torch.float16], ids=str)
@pytest.mark.parametrize("create", CREATED_LIKE, ids=range(len(CREATED_LIKE)))
def test_a_tensor_is_created_in_the_dtype_of_another(create: Any, dtype: torch.dtype) -> None:
    """Of every dtype, although a trace without example inputs does not know it."""

    class Model(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return create(x)  # type: ignore[no-any-return]

    x = torch.tensor([[1, -2, 3, 0]], dtype=dtype)
    wanted, found = create(x), qfunc.capture()(Model())(x)
    assert found.dtype == wanted.dtype
    assert torch.equal(found, wanted)


@pytest.mark.parametrize("create", CREATED_LIKE[:3] + CREATED_LIKE[7:8], ids=["zeros", "ones", "full", "arange"])
def test_a_network_that_creates_such_a_tensor_is_deployed(create: Any) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Conv2d(3, 2, 1)

        def forward(self, x: Tensor) -> Tensor:
            y = self.head(x)
            return y + create(y)

    torch.manual_seed(0)
    x = torch.randn(2, 3, 4, 3)
    calibrated = qfunc.calibrate([x], progress=False)(qfunc.quantize(TARGET)(Model()))
    assert sum(row.mismatches for row in qfunc.verify(TARGET)(calibrated, [x]).rows) == 0

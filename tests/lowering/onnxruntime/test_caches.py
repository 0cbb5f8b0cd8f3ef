"""Writes at positions, as into a cache of keys: every element is that of the runtime, and of torch in float."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import qfunc
from qfunc import targets
from qfunc.errors import DeployError

pytest.importorskip("onnxruntime")


def assigned(cache: Tensor, places: Tensor, keys: Tensor) -> Tensor:
    cache = cache.clone()
    cache[:, places] = keys
    return cache


def put(cache: Tensor, places: Tensor, keys: Tensor) -> Tensor:
    return cache.transpose(0, 1).index_put((places,), keys.transpose(0, 1)).transpose(0, 1)


FORMS: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "index_copy": lambda cache, places, keys: cache.index_copy(1, places, keys),
    "index_copy_": lambda cache, places, keys: cache.clone().index_copy_(-2, places, keys),
    "assignment": assigned,
    "index_put": put,
    "scatter": lambda cache, places, keys: torch.scatter(cache, 1, places[None, :, None].expand(keys.shape), keys),
    "last axis": lambda cache, places, keys: cache.transpose(1, 2).index_copy(-1, places, keys.transpose(1, 2)).transpose(1, 2),
}


class Attention(nn.Module):
    """Keys are written into a cache, which queries read and the caller gets back."""

    def __init__(self, form: Callable[[Tensor, Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.key, self.query, self.form = nn.Linear(8, 8), nn.Linear(8, 8), form

    def forward(self, x: Tensor, cache: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
        """[N, T, 8], [N, L, 8] and [T] -> [N, T, L] and [N, L, 8]."""
        cache = self.form(cache, places, self.key(x))
        return self.query(x) @ cache.transpose(1, 2), cache


def inputs(count: int, *places: int) -> tuple[Tensor, ...]:
    return torch.randn(count, len(places), 8), torch.randn(count, 4, 8), torch.tensor(places)


@pytest.mark.thorough
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("exported", [False, True], ids=["traced", "exported"])
def test_a_cache_has_the_elements_of_the_runtime(form: str, exported: bool) -> None:
    net, target = Attention(FORMS[form]).eval(), targets.onnxruntime
    batch = {0: torch.export.Dim.AUTO}
    example = inputs(2, 3, 1)
    source = torch.export.export(net, example, dynamic_shapes=(batch, batch, None)) if exported else net
    batches = [inputs(3, 0, 2), inputs(2, 1, 3)]
    assert all(torch.equal(a, b) for a, b in zip(qfunc.capture()(source)(*batches[0]), net(*batches[0]), strict=True))
    calibrated = qfunc.calibrate(batches, progress=False)(qfunc.quantize(target)(source))
    report = qfunc.verify(target)(calibrated, [*batches, inputs(2, 2, 0)])
    assert (report.mismatches, report.disagreements) == (0, ()), report


MOVES: dict[str, Callable[[Tensor], Tensor]] = {
    "expand": lambda y: y.expand(y.shape[0], 4, 8),
    "reshape": lambda y: y.reshape(y.shape[0], 2, 16).reshape(y.shape[0], 4, 8),
    "flip": lambda y: y.flip(1),
    "slice": lambda y: y[:, :4],
    "transpose": lambda y: y.transpose(1, 2).transpose(1, 2),
    "unsqueeze": lambda y: y.unsqueeze(1).squeeze(1),
    "none": lambda y: y,
}


class Returned(nn.Module):
    """A product reads a moved value of a float op, which the network returns."""

    def __init__(self, move: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.query, self.move = nn.Linear(8, 8), move

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """[N, T, 8] and [N, 4, 8] -> [N, T, 4] and [N, 4, 8]."""
        y = self.move(torch.exp(y))
        return self.query(x) @ y.transpose(1, 2), y


@pytest.mark.parametrize("move", MOVES)
def test_a_returned_value_is_not_quantized_for_its_other_readers(move: str) -> None:
    """ONNX Runtime quantizes before moves: without a copy it returns the codes of the product's operand."""
    batch, target = (torch.randn(2, 5, 8), torch.randn(2, 4, 8)), targets.onnxruntime
    model = qfunc.calibrate([batch], progress=False)(qfunc.quantize(target)(Returned(MOVES[move]).eval()))
    _, returned = target.runtime.runner.run(qfunc.deploy(target)(model), batch)
    # exp in float32 is right to 2 ulp; a step of the codes is 0.05.
    torch.testing.assert_close(torch.as_tensor(returned), MOVES[move](torch.exp(batch[1])), rtol=2**-21, atol=0)


class Scattered(nn.Module):
    """Values are written at indices of their own, some of them only."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor, index: Tensor) -> Tensor:
        """[N, 4] and [N, K] -> [N, 4]."""
        return torch.scatter(self.linear(x), 1, index, x)


def test_each_row_is_written_at_its_own_indices() -> None:
    x, index = torch.randn(3, 4), torch.tensor([[2, 0, 1, 3], [3, 1, 2, 0], [0, 1, 2, 3]])
    calibrated = qfunc.calibrate([(x, index)], progress=False)(qfunc.quantize(targets.onnxruntime)(Scattered().eval()))
    report = qfunc.verify(targets.onnxruntime)(calibrated, [(x, index)])
    assert (report.mismatches, report.disagreements) == (0, ())


def test_values_beyond_the_index_are_refused() -> None:
    """torch.scatter leaves them out."""
    x, index = torch.randn(3, 4), torch.tensor([[2, 0], [3, 1], [0, 1]])
    calibrated = qfunc.calibrate([(x, index)], progress=False)(qfunc.quantize(targets.onnxruntime)(Scattered().eval()))
    with pytest.raises(DeployError) as e:
        qfunc.deploy(targets.onnxruntime)(calibrated)
    assert str(e.value) == (
        "op 'scatter': found an index of the shape [n, 2] and values of [n, 4], wanted one shape, as ScatterElements requires. "
        "Cut the values to the shape of the index before torch.scatter."
    )

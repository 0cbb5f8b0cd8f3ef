"""Ops that take entries at positions: ONNX Runtime gathers codes along one axis."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import qfunc
from qfunc import targets

pytest.importorskip("onnxruntime")

X = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))
CHANNELS, FROM_END, ROWS = torch.tensor([2, 0, 1, 5, 4, 3]), torch.tensor([2, 0, 1, -1, 4, -3]), torch.arange(8)
FORMS: dict[str, Callable[..., Tensor]] = {
    "index": lambda x, c, e, r: x[:, c],
    "from the end": lambda x, c, e, r: x[:, e],
    "matrix": lambda x, c, e, r: x[:, e.reshape(2, 3)],
    "index_select": lambda x, c, e, r: torch.index_select(x, 1, c),
    "index_select, last axis": lambda x, c, e, r: torch.index_select(x, -1, r),
    "examples": lambda x, c, e, r: x[r[:2]],
    "before a slice": lambda x, c, e, r: x[:, e, :],
    "first axes": lambda x, c, e, r: x[r[:2, None] - 2, e],
    "three axes": lambda x, c, e, r: x[r[:2, None, None], e[:, None], r],
    "inner axes": lambda x, c, e, r: x[:, e[:, None], r],
    "last axes": lambda x, c, e, r: x[:, :, r[:, None], -1 - r],
    "gather": lambda x, c, e, r: torch.gather(x, 1, c[None, :, None, None].expand(2, -1, 8, 8)),
    "gather, last axis": lambda x, c, e, r: x.gather(-1, r.expand(2, 6, 8, 8)),
}
"""Each takes all entries, so that the quantizers before and after it are equal, and ONNX Runtime may drop them."""


class Fixed(nn.Module):
    def __init__(self, form: Callable[..., Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.form = nn.Conv2d(3, 6, 3, padding=1), form
        for name, positions in {"c": CHANNELS, "e": FROM_END, "r": ROWS}.items():
            self.register_buffer(name, positions)

    def forward(self, x: Tensor) -> Tensor:
        """Positions that are constants."""
        return torch.sigmoid(self.form(self.conv(x), self.c, self.e, self.r))


class Given(Fixed):
    def forward(self, x: Tensor, c: Tensor, e: Tensor, r: Tensor) -> Tensor:
        """Positions that are inputs: shifted, so that the network reads them all."""
        return torch.sigmoid(self.form(self.conv(x), c, e, r)) + (c.sum() + e.sum() + r.sum()).float()


def _report(net: nn.Module, inputs: tuple[Tensor, ...], example: bool) -> Any:
    target = targets.onnxruntime
    quantized = qfunc.quantize(target, inputs)(net.eval()) if example else qfunc.quantize(target)(net.eval())
    return qfunc.verify(target)(qfunc.calibrate([inputs], progress=False)(quantized), [inputs])


@pytest.mark.thorough
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("example", [False, True], ids=["traced", "exported"])
def test_entries_are_taken_of_codes(form: str, example: bool) -> None:
    report = _report(Fixed(FORMS[form]), (X,), example)
    assert report.verdict.startswith("bit-exact: 0 of"), report
    assert not [path for path, _ in report.float_units if path not in ("sub", "neg", "rsub")]  # of the positions


@pytest.mark.thorough
@pytest.mark.parametrize("form", FORMS)
def test_entries_are_taken_at_positions_that_are_inputs(form: str) -> None:
    report = _report(Given(FORMS[form]), (X, CHANNELS, FROM_END, ROWS), True)
    assert not report.disagreements
    assert report.verdict.startswith("bit-exact"), report
    assert not [path for path, _ in report.float_units if path.startswith(("index", "gather"))]


def test_a_list_counts_from_either_end() -> None:
    """Traced, x[:, [-1, 0]] was refused, because index_select takes no negative positions."""
    net = Fixed(lambda x, c, e, r: x[:, [2, 0, 1, -1, 4, -3]])
    report = _report(net, (X,), False)
    assert report.verdict.startswith("bit-exact: 0 of"), report
    captured = qfunc.capture()(net.eval())
    assert torch.equal(captured(X), net(X))


def test_a_new_axis_before_positions_is_no_position() -> None:
    net = Fixed(lambda x, c, e, r: x[None, :, c])
    assert torch.equal(qfunc.capture()(net.eval())(X), net(X))


@pytest.mark.parametrize("example", [False, True], ids=["traced", "exported"])
def test_single_positions_are_inputs(example: bool) -> None:
    """Exported, x[:, c[0]] has a number that is read at run time, and calibration failed inside of the op."""

    class One(Fixed):
        def forward(self, x: Tensor, c: Tensor, r: Tensor) -> Tensor:
            return self.conv(x)[:, c[0], r[1], :].sigmoid() + self.conv(x)[:, c[1], r[2]]

    report = _report(One(FORMS["index"]), (X, CHANNELS, ROWS), example)
    assert report.verdict.startswith("bit-exact"), report


def test_one_entry_keeps_its_axis() -> None:
    """PyTorch's index_select by a tensor of rank 0 keeps the axis; x[:, i] does not."""
    net = Fixed(lambda x, c, e, r: torch.cat([x.index_select(-3, c[1]), x.index_select(1, c[2])], 1))
    captured = qfunc.capture()(net.eval())
    assert torch.equal(captured(X), net(X))
    report = _report(net, (X,), False)
    assert report.verdict.startswith("bit-exact"), report

"""A budget of time stops between units: the result has the finished ones, and the rest of the model is as it was."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import qfunc
from qfunc import functions
from qfunc.errors import CalibrationError, SpecError
from qfunc.execution import time_budget as budget
from qfunc.graph.record import record_of
from qfunc.graph.sites import quantizer_nodes
from qfunc.reconstruction import Blocks, Layers, reconstructed, units
from tests.reconstruction.small_nets import Resnet, calibrated, codes, images

BATCHES = list(images().split(7))


def method(unit: Any = None) -> Any:
    return qfunc.adaround(iterations=12, batch=8, rounding_lr=0.2, unit=unit or Layers())


class Allows:
    """A budget of a number of units in place of seconds."""

    def __init__(self, count: int) -> None:
        self.left = count

    def __call__(self, of: budget.Budget) -> bool:
        self.left -= 1
        return self.left >= 0


def stopped(monkeypatch: pytest.MonkeyPatch, count: int, model: nn.Module, chosen: Any, **more: Any) -> nn.Module:
    monkeypatch.setattr(budget.Budget, "allows", lambda self, allow=Allows(count): allow(self))
    after = qfunc.reconstruct(chosen, BATCHES, seconds=1e9, **more)(model)
    monkeypatch.undo()
    return after


@pytest.mark.parametrize(("unit", "count"), [(Layers(), 1), (Layers(), 3), (Blocks(), 2)])
def test_what_is_done_is_that_of_the_whole_and_the_rest_is_as_it_was(
    unit: Any, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    before = calibrated(Resnet(), BATCHES)
    whole = qfunc.reconstruct(method(unit), BATCHES)(before)
    part = stopped(monkeypatch, count, before, method(unit))
    done = [op for u in units(unit)(before)[:count] for op in u.ops]
    assert list(reconstructed(part)) == done
    assert set(reconstructed(whole)) > set(done)
    assert reconstructed(before) == ()
    given, all_, found = codes(before), codes(whole), codes(part)
    for path, value in found.items():
        op = path.removesuffix(".weight")
        assert torch.equal(value, (all_ if op in done else given)[path])
    for quantizer in quantizer_nodes(part):
        site = quantizer.module.site
        rounded = site.slot == "weight" and site.op in done
        assert isinstance(site.function, functions.AdaRound) == rounded
    x = BATCHES[0]
    assert not torch.equal(part(x), before(x))


def test_no_unit_in_time_changes_the_model_back_to_what_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    before = calibrated(Resnet(), BATCHES)
    part = stopped(monkeypatch, 0, before, method())
    assert reconstructed(part) == ()
    assert part.state_dict().keys() == before.state_dict().keys()
    assert all(torch.equal(v, before.state_dict()[k]) for k, v in part.state_dict().items())
    assert record_of(part) == record_of(before)


def test_the_result_is_saved_loaded_and_continued(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Resnet()
    before = calibrated(model, BATCHES)
    part = stopped(monkeypatch, 2, before, method(), resume=tmp_path / "units")
    qfunc.save(tmp_path / "saved")(part)
    loaded = qfunc.load(tmp_path / "saved")(model)
    assert reconstructed(loaded) == reconstructed(part)
    assert torch.equal(loaded(BATCHES[0]), part(BATCHES[0]))
    # The next call with the same directory has the two units, and ends as one that was never stopped.
    whole = qfunc.reconstruct(method(), BATCHES)(before)
    assert torch.equal(qfunc.reconstruct(method(), BATCHES, resume=tmp_path / "units")(before)(BATCHES[0]), whole(BATCHES[0]))


def decisions(seconds: float, taken: list[float]) -> int:
    """The number of units that a budget allows, if units take these times: of four, estimated at 40 s, after 5 s."""
    now = [105.0]
    made = budget.Budget(seconds, 4, 40.0, start=100.0, clock=lambda: now[0])
    for number, each in enumerate(taken):
        if not made.allows():
            return number
        now[0] += each
        made.count()
    return len(taken)


@pytest.mark.parametrize(
    ("seconds", "taken", "count"),
    [
        (15, [10, 10, 10, 10], 1),  # the first is expected to take 10 s
        (45, [10, 10, 10, 10], 4),
        (44, [10, 10, 10, 10], 3),
        (45, [20, 20, 20, 20], 2),  # after the first, the mean of those before counts
        (15, [2, 2, 2, 2], 4),
    ],
)
def test_a_unit_begins_only_if_there_is_time_for_it(seconds: float, taken: list[float], count: int) -> None:
    assert decisions(seconds, taken) == count


def test_a_budget_that_allows_nothing_is_an_error() -> None:
    with pytest.raises(CalibrationError) as e:
        decisions(14, [10])
    assert str(e.value) == (
        "reconstruct, seconds: found 14 s, wanted about 15 s for the first of 4 units. Allow more time, or take fewer "
        "iterations or smaller units."
    )
    torch.manual_seed(0)
    with pytest.raises(
        CalibrationError, match=r"reconstruct, seconds: found 1e-06 s, wanted about .* for the first of 7 units"
    ):
        qfunc.reconstruct(method(), BATCHES, seconds=1e-6)(calibrated(Resnet(), BATCHES))


@pytest.mark.parametrize("seconds", [0, -1.0, "60", True, float("nan")])
def test_a_wrong_budget(seconds: Any) -> None:
    with pytest.raises(SpecError) as e:
        qfunc.reconstruct(method(), BATCHES, seconds=seconds)
    assert str(e.value) == (
        f"reconstruct, seconds: found {seconds!r}, wanted a positive number of seconds, or None. Write seconds=600, or leave "
        "it out."
    )


def test_the_estimate_is_written_before_the_start(capsys: pytest.CaptureFixture[str]) -> None:
    torch.manual_seed(0)
    before = calibrated(Resnet(), BATCHES)
    qfunc.reconstruct(method(), BATCHES)(before)
    assert capsys.readouterr().err.startswith("reconstruct: 7 units of 12 iterations, about ")
    qfunc.reconstruct(method(), BATCHES, progress=False)(before)
    assert capsys.readouterr().err == ""


def test_the_estimate_grows_with_iterations_and_images() -> None:
    network = qfunc.capture()(Resnet().eval())
    now = [0.0]

    def clock() -> float:
        now[0] += 0.5
        return now[0]

    inputs = budget.within({"x": BATCHES[0]}, frozenset({"x"}), 20)
    assert inputs["x"].shape == (20, *BATCHES[0].shape[1:])
    assert torch.equal(inputs["x"][7:14], BATCHES[0])
    assert budget.seconds_per_iteration(network, inputs, 7, clock) == 0.5 * budget.PASSES + 7 * budget.OVERHEAD

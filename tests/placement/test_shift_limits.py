"""Limits of shifts against brute force over every position, and as part of calibration."""

from __future__ import annotations

import pytest
import torch
from attrs import evolve
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import qfunc
from qfunc import targets
from qfunc.errors import CalibrationError
from qfunc.graph.sites import quantizer_nodes
from qfunc.placement.shift_limits import Bound, satisfy_limits
from qfunc.specs import Limit, Op

REACH = range(-4, 5)
CONV = Op("conv")
CUT = Limit(CONV, (("weight", 1), ("input", 1), ("output", -1)), 0, 3, "weight")
BIAS = Limit(CONV, (("weight", 1), ("input", 1), ("bias", -1)), -2, 2, "bias")
READ = Limit(Op("add"), (("input.max", 1), ("input.min", -1)), 0, 2, "input")
WRITE = Limit(Op("add"), (("input.min", 1), ("output", -1)), -1, 1, "output")


def _conv(unit: str, names: dict[str, str]) -> list[Bound]:
    def of(limit: Limit) -> Bound:
        terms = tuple((c, "sum", (names[slot],)) for slot, c in limit.terms)
        return Bound(unit, limit, terms, (names[limit.adjust],))

    return [of(CUT), of(BIAS)]


def _add(unit: str, inputs: tuple[str, ...], output: str) -> list[Bound]:
    read = Bound(unit, READ, ((1, "max", inputs), (-1, "min", inputs)), inputs)
    return [read, Bound(unit, WRITE, ((1, "min", inputs), (-1, "sum", (output,))), (output,))]


LAYER = _conv("conv", {"weight": "w", "input": "x", "bias": "b", "output": "y"})
NETWORK = [*LAYER, *_add("add", ("x", "y"), "z")]


def _spans(names: str) -> dict[str, tuple[float, float]]:
    return {n: (float(REACH[0]), float(REACH[-1])) for n in names}


def _nearest(bound: Bound, positions: dict[str, float]) -> float | None:
    # The position of the one adjustable tensor that keeps the limit and is nearest, by trying every position.
    (name,) = bound.adjust
    good = [float(v) for v in REACH if not bound.excess({**positions, name: float(v)})]
    return min(good, key=lambda v: abs(v - positions[name]), default=None)


@given(st.fixed_dictionaries({n: st.sampled_from([float(v) for v in REACH]) for n in "wxby"}))
@settings(max_examples=300, deadline=None)
def test_one_layer_moves_as_brute_force_does(positions: dict[str, float]) -> None:
    """The weight for the first limit, then the bias for the second, each as little as can be; else an error."""
    wanted: dict[str, float] | None = dict(positions)
    for bound in LAYER:
        moved = _nearest(bound, wanted) if wanted is not None else None
        wanted = None if moved is None or wanted is None else {**wanted, bound.adjust[0]: moved}
    if wanted is None:
        with pytest.raises(CalibrationError):
            satisfy_limits(LAYER, positions, _spans("wxby"))
    else:
        assert satisfy_limits(LAYER, positions, _spans("wxby")) == wanted


@given(st.fixed_dictionaries({n: st.sampled_from([-3.0, -1.0, 0.0, 1.0, 3.0]) for n in "wxbyz"}))
@settings(max_examples=60, deadline=None)
def test_what_can_be_kept_in_a_network_is_kept(positions: dict[str, float]) -> None:
    """Limits that share tensors: kept wherever every move has room, for a coarser scale is always within reach."""
    roomy = dict.fromkeys("wxbyz", (-40.0, 40.0))
    now = satisfy_limits(NETWORK, positions, roomy)
    assert not any(b.excess(now) for b in NETWORK)
    assert now["x"] <= positions["x"], "inputs of an add get coarser, never finer"
    assert now["y"] <= positions["y"]


def test_limits_that_pull_against_each_other_are_told() -> None:
    up = Bound("one", Limit(CONV, (("weight", 1),), 3, 9, "weight"), ((1, "sum", ("w",)),), ("w",))
    down = Bound("two", Limit(CONV, (("weight", 1),), -9, 1, "weight"), ((1, "sum", ("w",)),), ("w",))
    with pytest.raises(CalibrationError) as e:
        satisfy_limits([up, down], {"w": 0.0}, {"w": (-9.0, 9.0)})
    assert "limits of unit" in str(e.value)


def test_two_that_are_both_the_largest_move_together() -> None:
    both = Limit(Op("add"), (("input.max", 1),), 0, 2, "input")
    bound = Bound("add", both, ((1, "max", ("x", "y")),), ("x", "y"))
    assert satisfy_limits([bound], {"x": 4.0, "y": 4.0}, _spans("xy")) == {"x": 2.0, "y": 2.0}
    assert satisfy_limits([bound], {"x": 4.0, "y": 1.0}, _spans("xy")) == {"x": 2.0, "y": 1.0}


def test_positions_stay_within_their_scheme() -> None:
    with pytest.raises(CalibrationError) as e:
        satisfy_limits(LAYER, {"w": 4.0, "x": 4.0, "b": 0.0, "y": -4.0}, {**_spans("xby"), "w": (0.0, 4.0)})
    assert str(e.value) == (
        "limits of unit 'conv': found 8 at the positions w 0, x 4, y -4, wanted 0 to 3 by "
        f"{CUT!r}. Change the range of one of these tensors: moving 'weight' does not keep this limit and the others."
    )


class Net(nn.Module):
    """A convolution, a residual of another size, and a product."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 3, 3, padding=1), nn.Conv2d(3, 3, 1)

    def forward(self, x):
        """[N, 3, H, W]."""
        return torch.relu(self.a(x)) + self.b(x)


def _positions(model) -> dict[str, float]:
    return {s.module.site.name: -float(torch.log2(s.module.qparams().scale)) for s in quantizer_nodes(model)}


def _calibrated(target, scale: float = 1.0):
    torch.manual_seed(0)
    net = Net().eval()
    with torch.no_grad():
        net.b.weight.mul_(scale)
        net.b.bias.mul_(scale)
    x = torch.randn(2, 3, 5, 7)
    return qfunc.calibrate([x], progress=False)(qfunc.quantize(target)(net))


@pytest.mark.parametrize("scale", [2.0**-12, 1.0, 2.0**9])
def test_calibration_keeps_the_limits_of_the_dpu(scale: float) -> None:
    """Branches of very different sizes: the residual add reads both within 7 positions of each other."""
    p = _positions(_calibrated(targets.vitis, scale))
    for layer, output in (("a", "relu"), ("b", "b")):
        cut = p[f"{layer}.weight"] + p["x"] - p[output]
        shift = p[f"{layer}.weight"] + p["x"] - p[f"{layer}.bias"]
        assert 0 <= cut <= 16
        assert min(0, cut - 16) <= shift <= 15
    assert abs(p["relu"] - p["b"]) <= 7
    assert -7 <= min(p["relu"], p["b"]) - p["add"] <= 25


def test_without_limits_calibration_would_break_them() -> None:
    p = _positions(_calibrated(evolve(targets.vitis, limits=()), 2.0**9))
    assert abs(p["relu"] - p["b"]) > 7


def test_a_limit_on_a_slot_that_an_op_has_twice_needs_a_word() -> None:
    twice = evolve(targets.vitis, limits=(Limit(Op("add"), (("input", 1), ("output", -1)), 0, 7, "output"),))
    with pytest.raises(CalibrationError) as e:
        _calibrated(twice)
    assert 'Write "input.min", "input.max" or "input.sum" in the target.' in str(e.value)


def test_scales_that_training_moved_beyond_a_limit_are_refused() -> None:
    model = _calibrated(targets.vitis)
    weight = next(s.module for s in quantizer_nodes(model) if s.module.site.name == "a.weight")
    with torch.no_grad():
        weight.log2_t += 30
    for transform in (qfunc.emulate, qfunc.deploy):
        with pytest.raises(CalibrationError) as e:
            transform(targets.vitis)(model)
        assert str(e.value).startswith("limits of unit 'a': found -")
        assert str(e.value).endswith("Calibrate again, since training moved a scale, or do not train these scales.")

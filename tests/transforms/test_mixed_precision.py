"""Bits for each weight: the program against brute force, losses and costs against what is written out here."""

from __future__ import annotations

import copy
import itertools
import math
import random
from fractions import Fraction
from typing import Any

import pytest
import torch
from attrs import frozen
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import qfunc
from qfunc import targets
from qfunc.analysis import least_loss
from qfunc.analysis.least_loss import minimize
from qfunc.errors import CalibrationError, SpecError
from qfunc.specs import edit

NUMBERS = st.floats(0, 4).map(lambda v: round(v, 2)) | st.sampled_from([0.0, 1e-9, 1.0, 1e6])
ITEMS = st.lists(
    st.lists(st.tuples(NUMBERS, st.sampled_from([0.0, 1.0, 2.0, 3.5, 1e3])), min_size=1, max_size=3), min_size=1, max_size=8
)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(ITEMS, st.floats(0, 1))
def test_no_other_choice_within_the_limit_is_better(table: list[list[tuple[float, float]]], share: float) -> None:
    """Up to 8 items of up to 3 choices; the oracle tries all of them."""
    items = [[(i, k) for k in range(len(choices))] for i, choices in enumerate(table)]
    losses = {(i, k): table[i][k][0] for item in items for i, k in item}
    costs = {(i, k): table[i][k][1] for item in items for i, k in item}
    low, high = (sum(f(costs[c] for c in item) for item in items) for f in (min, max))
    limit = low + share * (high - low)
    chosen, gap = minimize(items, losses, costs, limit)
    every = [c for c in itertools.product(*items) if sum(costs[k] for k in c) <= limit]
    best = min(sum(losses[k] for k in c) for c in every)
    assert sum(costs[k] for k in chosen) <= limit
    # The recursion stops at gains of 2^-40; float64 sums of 8 losses are rounded by less.
    assert sum(losses[k] for k in chosen) <= best * (1 + 2**-39)
    assert gap == 0


@pytest.mark.parametrize("spread", [1e-3, 1e-9, 1e-15])
@pytest.mark.parametrize("unit", [1, 0.1])
def test_losses_of_all_magnitudes_count(spread: float, unit: float) -> None:
    """One weight of much loss does not hide the others; the oracle tries all choices, with exact sums."""
    draw = random.Random(f"{spread} {unit}")
    for _ in range(4):
        sizes = [draw.choice([144, 2304, 9216, 36864]) for _ in range(6)]
        items = [[(i, b) for b in (2, 4, 8)] for i in range(6)]
        keys = list(itertools.chain(*items))
        costs = {(i, b): sizes[i] * b * unit for i, b in keys}
        losses = {(i, b): draw.uniform(0.1, 1) * (spread if i else 1) * 4.0**-b for i, b in keys}
        limit = draw.uniform(0.4, 0.9) * sum(costs[i, 8] for i in range(6))
        chosen, gap = minimize(items, losses, costs, limit)
        exact_costs, exact = ({key: Fraction(of[key]) for key in keys} for of in (costs, losses))
        every = [c for c in itertools.product(*items) if sum(exact_costs[k] for k in c) <= Fraction(limit)]
        best = min(sum(exact[k] for k in c) for c in every)
        assert gap == 0
        assert float(sum(exact[k] for k in chosen) / best) <= 1 + 2**-39


def test_a_gap_is_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """With room for 3 sums the choice may be worse than the best one, by at most the gap."""
    monkeypatch.setattr(least_loss, "STATES", 3)
    draw, gaps = random.Random(5), []
    for _ in range(20):
        items = [[(i, k) for k in range(4)] for i in range(6)]
        costs = {key: float(draw.randint(1, 10**6)) for key in itertools.chain(*items)}
        losses = {key: 2e6 - cost for key, cost in costs.items()}  # sums of subsets: many choices are about as good
        limit = 0.5 * sum(max(costs[k] for k in item) for item in items)
        if sum(min(costs[k] for k in item) for item in items) > limit:
            continue
        chosen, gap = minimize(items, losses, costs, limit)
        best = min(sum(losses[k] for k in c) for c in itertools.product(*items) if sum(costs[k] for k in c) <= limit)
        found = sum(losses[k] for k in chosen)
        # Sums of integers are exact; the gap itself is a rounded quotient.
        assert found * (1 - gap) * (1 - 1e-12) <= best <= found
        gaps.append(gap)
    assert max(gaps) > 0


def test_a_limit_that_is_a_sum_of_costs_allows_it() -> None:
    """0.1 + 0.1 + 0.1 is above 0.3 as the sum of rationals, and 0.3 as math.fsum rounds it."""
    items = [[(i, 0), (i, 1)] for i in range(3)]
    costs = {key: 0.1 * key[1] for item in items for key in item}
    losses = {key: 1.0 - key[1] for item in items for key in item}
    assert minimize(items, losses, costs, math.fsum([0.1] * 3)) == (((0, 1), (1, 1), (2, 1)), 0.0)
    assert minimize(items, losses, costs, math.inf) == (((0, 1), (1, 1), (2, 1)), 0.0)


class Net(nn.Module):
    """A convolution, a depthwise one, a linear layer; inputs of 5 x 6 pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.deep, self.last = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3, groups=8, padding=1), nn.Linear(96, 5)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.last(self.deep(self.first(x).relu()).relu().flatten(1))
        return y


@pytest.fixture(scope="module")
def x() -> Tensor:
    return torch.randn(7, 3, 5, 6, generator=torch.Generator().manual_seed(2))


@pytest.fixture(scope="module")
def model() -> Net:
    torch.manual_seed(1)
    return Net().eval()


@pytest.fixture(scope="module")
def calibrated(model: Net, x: Tensor) -> Any:
    return qfunc.calibrate([x], progress=False)(qfunc.quantize(targets.tensorrt)(model))


COUNTS = {"first.weight": 216, "deep.weight": 72, "last.weight": 480}


def narrowed(weight: Tensor, bits: int) -> Tensor:
    """One scale an output channel, symmetric, 2^bits - 1 codes."""
    top = 2 ** (bits - 1) - 1
    scale = (weight.flatten(1).abs().amax(1) / top).reshape(-1, *[1] * (weight.ndim - 1))
    return (weight / scale).round().clamp(-top, top) * scale


@pytest.mark.parametrize("mean_bits", [8, 5, 3.3, 2])
def test_the_target_holds_the_chosen_bits_and_keeps_to_the_budget(
    calibrated: Any, model: Net, x: Tensor, mean_bits: float
) -> None:
    """Of every combination of 2, 4 and 8 bits within the budget the sum of losses is the least."""
    found = qfunc.mixed_precision([x], (2, 4), qfunc.SizeBudget(mean_bits), progress=False)(calibrated)
    chosen, losses = dict(found.bits), dict(found.losses)
    assert list(chosen) == list(COUNTS)
    every = [dict(zip(COUNTS, bits, strict=True)) for bits in itertools.product((2, 4, 8), repeat=3)]
    size = [sum(COUNTS[s] * b for s, b in e.items()) for e in every]
    assert found.limit == mean_bits * 768
    assert found.cost == sum(COUNTS[s] * b for s, b in chosen.items()) <= found.limit
    within = [e for e, bits in zip(every, size, strict=True) if bits <= found.limit]
    assert found.loss == pytest.approx(min(sum(losses[k] for k in e.items()) for e in within), rel=1e-5)
    quantized = qfunc.quantize(found.target)(model)
    held = {m.site.name: m.scheme.format.bits for m in quantized.modules() if hasattr(m, "site") and m.site.slot == "weight"}
    assert held == chosen


def test_losses_are_those_of_one_weight_replaced(calibrated: Any, model: Net, x: Tensor) -> None:
    """The oracle replaces the weight in a copy of the float model."""
    found = dict(qfunc.mixed_precision([x[:3], x[3:]], (3,), qfunc.SizeBudget(8), progress=False)(calibrated).losses)
    for site in COUNTS:
        other = copy.deepcopy(model)
        weight = other.get_parameter(site)
        with torch.no_grad():
            weight.copy_(narrowed(weight, 3))
            wanted = float((other(x) - model(x)).double().square().mean())
        assert found[site, 3] == pytest.approx(wanted, rel=1e-4)  # float32 sums of two orders


def test_the_trace_is_that_of_the_jacobian(x: Tensor) -> None:
    """With one output u^2 is 1, and the estimate exact: the oracle is torch's Jacobian."""
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 1, bias=False)).eval()
    rows = x[:1, 0, 0].reshape(1, 6)
    calibrated = qfunc.calibrate([rows], progress=False)(qfunc.quantize(targets.tensorrt)(model))
    loss = qfunc.HessianTrace(draws=2)
    found = dict(qfunc.mixed_precision([rows], (4,), qfunc.SizeBudget(8), loss=loss, progress=False)(calibrated).losses)
    for path in ("0.weight", "2.weight"):
        weight = model.get_parameter(path).detach()
        slope = torch.autograd.functional.jacobian(lambda w, p=path: torch.func.functional_call(model, {p: w}, (rows,)), weight)
        error = (narrowed(weight, 4) - weight).square().sum()
        wanted = float(slope.square().sum() / weight.numel() * error)
        assert found[path, 4] == pytest.approx(wanted, rel=1e-5)


def test_signs_average_to_the_trace(calibrated: Any, model: Net, x: Tensor) -> None:
    """Many draws come near ||J||^2, seeds repeat bit for bit, and several outputs are told apart from one."""
    few = [dict(qfunc.mixed_precision([x], (2,), qfunc.SizeBudget(8), loss=qfunc.HessianTrace(8, seed),
    progress=False)(calibrated).losses) for seed in (0, 0, 1)]  # fmt: skip
    assert few[0] == few[1] != few[2]
    many = dict(
        qfunc.mixed_precision([x], (2,), qfunc.SizeBudget(8), loss=qfunc.HessianTrace(300), progress=False)(calibrated).losses
    )
    weight = model.last.weight.detach()
    slope = torch.autograd.functional.jacobian(lambda w: torch.func.functional_call(model, {"last.weight": w}, (x,)), weight)
    wanted = float(slope.square().sum() / weight.numel() * (narrowed(weight, 2) - weight).square().sum() / 35)
    assert many["last.weight", 2] == pytest.approx(wanted, rel=0.1)  # 300 draws of a variance below twice the square


def test_bit_operations_are_counted(calibrated: Any, x: Tensor) -> None:
    """MACs by hand: outputs of a layer times what each sums; inputs have 8 bits."""
    macs = {"first.weight": 7 * 8 * 3 * 4 * 27, "deep.weight": 7 * 8 * 3 * 4 * 9, "last.weight": 7 * 5 * 96}
    found = qfunc.mixed_precision([x], (2, 4), qfunc.BitOpsBudget(share=0.6), progress=False)(calibrated)
    assert found.limit == pytest.approx(0.6 * 64 * sum(macs.values()))
    assert found.cost == sum(8 * b * macs[site] for site, b in found.bits) <= found.limit


def test_measured_times_choose(calibrated: Any, x: Tensor) -> None:
    """Only the layer that is faster with few bits is narrowed."""
    times = tuple((op, b, 1.0 if op != "deep" else b / 4) for op in ("first", "deep", "last") for b in (2, 4, 8))
    found = qfunc.mixed_precision([x], (2, 4), qfunc.LatencyBudget(times, most=3.0), progress=False)(calibrated)
    assert found.bits == (("first.weight", 8), ("deep.weight", 4), ("last.weight", 8))


class Tied(nn.Module):
    """A weight that three calls read: of two layers, of which one is called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 2)
        self.b.weight = self.a.weight

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.c(self.a(self.b(self.a(x).relu()).relu()).relu())
        return y


@pytest.mark.parametrize(("entry", "times"), [(False, 3 * 5.0), (True, 2 * 5.0 + 7.0)])
def test_a_tied_weight_takes_the_time_of_each_reader(entry: bool, times: float) -> None:
    torch.manual_seed(0)
    tied, rows = Tied().eval(), torch.randn(8, 6)
    calibrated = qfunc.calibrate([rows], progress=False)(qfunc.quantize(targets.tensorrt)(tied))
    table = (("a", 8, 5.0), ("a", 4, 1.0), ("c", 8, 2.0), ("c", 4, 1.0))
    table += (("b", 8, 7.0), ("b", 4, 1.0)) if entry else ()
    enough, less = (qfunc.LatencyBudget(table, times + most) for most in (2, 0.5))
    found = qfunc.mixed_precision([rows], (4,), enough, progress=False)(calibrated)
    assert (found.bits, found.cost) == ((("a.weight", 8), ("c.weight", 8)), times + 2)
    assert qfunc.mixed_precision([rows], (4,), less, progress=False)(calibrated).cost <= 5


class Scaled(nn.Module):
    """Two submodules; the tensor between them is k times as large, and the function does not depend on k."""

    def __init__(self, k: float) -> None:
        super().__init__()
        self.k = k
        self.a, self.b = (nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8)) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.b(self.a(x) * self.k)
        return y


@pytest.mark.parametrize("loss", [qfunc.OutputMse(), qfunc.HessianTrace(4)], ids=["mse", "trace"])
def test_the_units_between_submodules_do_not_matter(loss: Any) -> None:
    """The losses are noise / signal of each submodule's own outputs: the oracle replaces one weight in a float copy."""
    rows, results = torch.randn(64, 8, generator=torch.Generator().manual_seed(3)), []
    for k in (1.0, 2.0**10, 2.0**-10):  # powers of two: all values are exactly scaled
        torch.manual_seed(0)
        net = Scaled(k).eval().requires_grad_(False)
        net.a[2].weight.div_(k)
        net.a[2].bias.div_(k)
        quantized = qfunc.quantize(targets.tensorrt, submodules=("a", "b"))(net)
        calibrated = qfunc.calibrate([rows], progress=False)(quantized)
        results.append(qfunc.mixed_precision([rows], (2, 4), qfunc.SizeBudget(5), loss=loss, progress=False)(calibrated))
    assert results[0].bits == results[1].bits == results[2].bits
    assert [r.loss for r in results] == [pytest.approx(results[0].loss, rel=1e-6)] * 3
    if loss == qfunc.OutputMse():
        other, losses = copy.deepcopy(net), dict(results[-1].losses)
        other.b[0].weight.copy_(narrowed(other.b[0].weight, 2))
        real, given = net(rows).double(), other(rows).double()
        wanted = float((real - given).square().sum() / real.square().sum())
        assert losses["b.0.weight", 2] == pytest.approx(wanted, rel=1e-4)  # float32 sums of two orders


class Classes(nn.Module):
    """Returns classes, as integers or as floats, and no score."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype, self.fc = dtype, nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.fc(x)
        return y.argmax(1).to(self.dtype)


NO_FLOATS = "outputs: found outputs of int64 only, wanted at least one floating-point output. "
MEASURES = {
    "mse": (lambda x: qfunc.mixed_precision([x], (2,), qfunc.SizeBudget(8), progress=False), torch.int64,
            f"mixed_precision, {NO_FLOATS}Return the scores, too, of which they are computed."),
    "trace": (lambda x: qfunc.mixed_precision([x], (2,), qfunc.SizeBudget(8), loss=qfunc.HessianTrace(1), progress=False),
              torch.int64, f"mixed_precision, {NO_FLOATS}Return the scores, too, of which they are computed."),
    "sensitivity": (lambda x: qfunc.sensitivity([x], progress=False), torch.int64,
                    f"sensitivity, {NO_FLOATS}Return the scores, too, of which they are computed."),
    "classes as floats": (lambda x: qfunc.mixed_precision([x], (7,), qfunc.SizeBudget(8), progress=False), torch.float32,
                          "mixed_precision: found a loss of 0 for every weight and number of bits, wanted outputs that depend "
                          "on a weight. Use other batches, or return the scores of the model."),
    "no slope": (lambda x: qfunc.mixed_precision([x], (2,), qfunc.SizeBudget(8), loss=qfunc.HessianTrace(1), progress=False),
                 torch.float32, "mixed_precision: found a loss of 0 for every weight and number of bits, wanted outputs that "
                 "depend on a weight. Use other batches, or return the scores of the model."),
}  # fmt: skip


@pytest.mark.parametrize("name", MEASURES)
def test_classes_have_no_loss(name: str) -> None:
    measure, dtype, message = MEASURES[name]
    torch.manual_seed(0)
    rows = torch.randn(2, 6)
    calibrated = qfunc.calibrate([rows], progress=False)(qfunc.quantize(targets.tensorrt)(Classes(dtype).eval()))
    with pytest.raises(CalibrationError) as caught:
        measure(rows)(calibrated)
    assert str(caught.value) == message


def test_an_override_of_the_user_stays_and_bounds_the_choice(model: Net, x: Tensor) -> None:
    target = edit.override(edit.name("deep"), weights={"bits": 4})(targets.tensorrt)
    calibrated = qfunc.calibrate([x], progress=False)(qfunc.quantize(target)(model))
    found = qfunc.mixed_precision([x], (2, 6), qfunc.SizeBudget(6), progress=False)(calibrated)
    assert {key for key, _ in found.losses} == {
        ("first.weight", 2), ("first.weight", 6), ("first.weight", 8), ("deep.weight", 2), ("deep.weight", 4),
        ("last.weight", 2), ("last.weight", 6), ("last.weight", 8),
    }  # fmt: skip
    assert found.target.overrides[:1] == target.overrides


def test_nothing_that_was_given_changes(calibrated: Any, x: Tensor) -> None:
    """Tensors, modes and gradients; in training mode, too."""
    trained = copy.deepcopy(calibrated).train()
    before = {k: v.clone() for k, v in trained.state_dict().items()}
    one = qfunc.mixed_precision([x], (2, 4), qfunc.SizeBudget(4), loss=qfunc.HessianTrace(2), progress=False)(trained)
    other = qfunc.mixed_precision([x], (2, 4), qfunc.SizeBudget(4), loss=qfunc.HessianTrace(2), progress=False)(calibrated)
    assert one == other
    assert all(torch.equal(v, before[k]) for k, v in trained.state_dict().items())
    assert all(m.training for m in trained.modules())
    assert all(p.grad is None for p in trained.parameters())
    assert str(one).splitlines()[1].split() == [
        "weight",
        "bits",
        "loss,",
        "2",
        "bits",
        "loss,",
        "4",
        "bits",
        "loss,",
        "8",
        "bits",
    ]


@frozen
class NoLoss:
    """Of no number."""

    def watch(self, ops: Any, weights: Any) -> Any:
        return self

    def add(self, arguments: Any, number: int) -> None:
        return None

    def losses(self) -> dict[tuple[str, int], float]:
        return {(site, b): float("nan") for site in COUNTS for b in (2, 8)}


WRONG = {
    "budget": (lambda m, x: qfunc.mixed_precision([x], (4,), qfunc.SizeBudget(3), progress=False)(m),
               "mixed_precision, budget: found 2304 bits, wanted at least 3072, the cost of the narrowest weights. "
               "Allow more, or pass fewer bits."),
    "bits": (lambda m, x: qfunc.mixed_precision([x], (1, 4), qfunc.SizeBudget(3)),
             "mixed_precision, bits: found (1, 4), wanted a sequence of ints from 2 to 16. Write bits=(2, 4)."),
    "one number": (lambda m, x: qfunc.mixed_precision([x], 4, qfunc.SizeBudget(3)),  # type: ignore[arg-type]
                   "mixed_precision, bits: found 4, wanted a sequence of ints from 2 to 16. Write bits=(2, 4)."),
    "wide": (lambda m, x: qfunc.mixed_precision([x], (8, 12), qfunc.SizeBudget(8), progress=False)(m),
             "mixed_precision: found first.weight 8, deep.weight 8, last.weight 8, wanted weights of more than 8 bits. "
             "Pass fewer bits, or a target with wider weights."),
    "size": (lambda m, x: qfunc.SizeBudget(0), "SizeBudget.mean_bits: found 0, wanted a finite positive number. Give such "
             "a number."),
    "share": (lambda m, x: qfunc.BitOpsBudget(1.5), "BitOpsBudget.share: found 1.5, wanted at most 1. Use a share in (0, 1]."),
    "times": (lambda m, x: qfunc.LatencyBudget((("fc", 8),), 1.0),  # type: ignore[arg-type]
              "LatencyBudget.times: found (('fc', 8),), wanted a tuple of (op, bits, time). Write (('conv1', 8, 0.31), ...)."),
    "no time": (lambda m, x: qfunc.mixed_precision([x], (4,), qfunc.LatencyBudget((("fc", 8, 1.0),), 1.0), progress=False)(m),
                "LatencyBudget.times: found no such entry, wanted a time of op 'first' with 4 bits. Measure it, or remove 4 "
                "from bits. There are times for fc."),
    "no batches": (lambda m, x: qfunc.mixed_precision([], (4,), qfunc.SizeBudget(5), progress=False)(m),
                   "mixed_precision: found no batches, wanted batches of inputs. Pass at least one batch."),
    "nan": (lambda m, x: qfunc.mixed_precision([x], (2,), qfunc.SizeBudget(8), loss=NoLoss(), progress=False)(m),
            "mixed_precision, 'first.weight' with 2 bits: found a loss of nan, wanted a finite loss. "
            "Look for NaN or infinities in the model's outputs."),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_wrong_uses_say_what_was_wanted(name: str, calibrated: Any, x: Tensor) -> None:
    use, message = WRONG[name]
    with pytest.raises((SpecError, CalibrationError)) as caught:
        use(calibrated, x)
    assert str(caught.value) == message

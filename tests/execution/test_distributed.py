"""Calibration in two processes is calibration in one, on the batches of rank 0 followed by those of rank 1."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import qfunc
from qfunc import targets
from qfunc.errors import SpecError
from qfunc.estimators import Mse
from qfunc.graph.record import TensorInfo
from qfunc.testing import check_each_kind, check_target
from tests.execution.processes import ESTIMATORS, Last, batches, by_channel, figures, made, mixed, rounded, tokens, work
from tests.processes import start_processes
from tests.transforms.checks import same_state, state

ALL = [*batches(0), *batches(1)]

EXACT = {"MinMax", "Quantile", "Percentile", "Mse", "Entropy", "OrtEntropy", "PotMode", "PowerOfTwo", "PowerOfTwo of Mse"}
"""Statistics of extremes and counts; the others are sums, whose rounding depends on what is summed first."""


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], dict[str, Any]]:
    """What became of each case, on rank 0 and on rank 1."""
    folder = tmp_path_factory.mktemp("ranks")
    start_processes(work, (str(folder),), 2)
    return tuple(torch.load(folder / f"{rank}.pt", weights_only=False) for rank in (0, 1))  # type: ignore[return-value]


def one(parts: Any, model: Any, **how: Any) -> dict[str, torch.Tensor]:
    return state(qfunc.calibrate(parts, **how)(model))


Both = tuple[dict[str, Any], dict[str, Any]]


@pytest.mark.thorough
@pytest.mark.parametrize("name", ESTIMATORS)
def test_two_ranks_are_one_process_over_all_batches(name: str, both: Both) -> None:
    (found, inputs), (other, others) = both[0][name], both[1][name]
    assert same_state(found, other)
    assert inputs == others == (TensorInfo(tuple(ALL[0].shape), "torch.float32"),)
    wanted = one(ALL, made(ESTIMATORS[name]))
    if name in EXACT:
        assert same_state(found, wanted)
    assert found.keys() == wanted.keys()
    for key, value in found.items():
        # Some ten float64 sums, rounded to float32, may end on the other side of a tie: an ulp, 2^-23; three
        # of them for Ema, whose float32 average rounds once a batch.  No zero point lies at a tie here.
        assert torch.allclose(value.double(), wanted[key].double(), rtol=2**-21, atol=0), key


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["Ema", "Mse", "StdClip"])
def test_neither_rank_alone_finds_the_same(name: str, both: Both) -> None:
    # Else the cases would show nothing.
    for rank in (0, 1):
        assert not same_state(both[0][name][0], one(batches(rank), made(ESTIMATORS[name])))


@pytest.mark.thorough
def test_the_range_is_that_of_all_values_and_the_average_runs_in_order_of_rank(both: Both) -> None:
    key = "quantizers.input.output.scale"
    low, high = min(float(b.min()) for b in ALL), max(float(b.max()) for b in ALL)
    assert float(both[0]["MinMax"][0][key]) == pytest.approx((high - low) / 255, rel=1e-6)  # float32
    low, high = float(ALL[0].min()), float(ALL[0].max())
    for batch in ALL[1:]:
        low, high = 0.9 * low + 0.1 * float(batch.min()), 0.9 * high + 0.1 * float(batch.max())
    assert float(both[1]["Ema"][0][key]) == pytest.approx((high - low) / 255, rel=1e-6)


@pytest.mark.thorough
@pytest.mark.parametrize("idle", [0, 1])
def test_a_rank_without_batches_gets_what_the_other_found(idle: int, both: Both) -> None:
    shown = (TensorInfo(tuple(batches(1 - idle)[0].shape), "torch.float32"),)
    for rank in (0, 1):
        found, inputs = both[rank][f"rank {idle} has none"]
        assert same_state(found, one(batches(1 - idle), made()))
        assert inputs == shown


@pytest.mark.thorough
def test_the_inputs_are_the_first_batch_that_is_not_empty(both: Both) -> None:
    for rank in (0, 1):
        found, inputs = both[rank]["empty first"]
        assert same_state(found, one(batches(1), made()))
        assert inputs == (TensorInfo(tuple(batches(1)[0].shape), "torch.float32"),)


@pytest.mark.thorough
def test_scales_by_channel_tuples_of_models_and_other_passes(both: Both) -> None:
    for rank in (0, 1):
        wanted = one([tokens(0, 4), tokens(1, 4)], by_channel())
        assert wanted["quantizers.input.output.scale"].numel() == 4
        assert same_state(both[rank]["by channel"][0], wanted)
        assert same_state(both[rank]["quantized"][0], one(ALL, made(), through=qfunc.QuantizedPass()))
        for (found, _), model in zip(both[rank]["several"], (made(), made(Mse())), strict=True):
            assert same_state(found, one(ALL, model))
        assert both[rank]["unchanged"]


@pytest.mark.thorough
def test_unlike_ranges_are_those_of_both_ranks(both: Both) -> None:
    text = (
        "calibrate, op 'cat': found inputs that share one scale although their ranges differ by a factor of 14: [0, 0.7311] of "
        "'sigmoid' and [0, 10] of 'mul', wanted at most 8. Return its inputs as separate outputs, or leave the op in float by "
        "edit.skip(edit.name('cat'))."
    )
    assert both[0]["unlike ranges"] == both[1]["unlike ranges"] == [text]


@pytest.mark.thorough
def test_groups(both: Both) -> None:
    for rank in (0, 1):
        assert same_state(both[rank]["alone"][0], one(batches(rank), made(Last())))
        assert same_state(both[rank]["named"][0], one(ALL, made()))
    found = "-100, wanted a torch.distributed.ProcessGroup that this process is in, or None"
    do = "Pass the result of dist.new_group in a member process, or mesh.get_group()."
    assert both[1]["not a member"] == ("SpecError", f"calibrate, group: found {found}. {do}")
    assert same_state(both[0]["not a member"][0], one(batches(0), made()))


SKIPPED = "Use another estimator, such as Mse(), or calibrate in one process and load its state_dict in the others."
SAME = "wanted the same quantized model. Give every process of the group the same model."
INFINITE = "site 'input': found inf in the activations of batch 2"


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("case", "text"),
    [
        ("no batches", "calibrate: found no batches, wanted at least one. Pass a non-empty iterable, not one already used up."),
        ("only empty", "site 'input': found only empty tensors, wanted some values. Pass batches with at least one example."),
        (
            "no merge",
            "site 'input': found Last(), which has no merge, in 2 processes, wanted an estimator with merge(a, b) -> state. "
            + SKIPPED,
        ),
        (
            "no merge inside",
            "site 'input': found PowerOfTwo(inner=Last(), rounding='ceil', finest=None), which has no merge, in 2 processes, "
            f"wanted an estimator with merge(a, b) -> state. {SKIPPED}",
        ),
        (
            "other channels",
            "site 'input': found scales of shape (1, 4, 1) on rank 0 and (1, 3, 1) on rank 1, wanted one shape on all ranks. "
            "Pass batches that differ only in the axes that share a scale, or use a scale per tensor.",
        ),
    ],
)
def test_both_ranks_are_told(case: str, text: str, both: Both) -> None:
    assert both[0][case] == both[1][case] == ("CalibrationError", text)


@pytest.mark.thorough
@pytest.mark.parametrize(("case", "failed"), [("infinite on rank 1", 1), ("wrong on rank 0", 0)])
def test_the_failure_of_one_rank_ends_the_others(case: str, failed: int, both: Both) -> None:
    kind, text = both[failed][case]
    assert kind == "CalibrationError"
    assert not text.startswith("calibrate, rank")
    wanted = "wanted statistics of all ranks. Fix the failure on that rank; every rank must finish the pass."
    assert both[1 - failed][case] == ("CalibrationError", f"calibrate, rank {failed}: found a failure: {text!r}, {wanted}")
    for rank in (0, 1):
        assert same_state(both[rank]["after failures"][0], both[rank]["MinMax"][0])


@pytest.mark.thorough
@pytest.mark.parametrize("case", ["other estimators", "other sites"])
def test_other_models_on_other_ranks(case: str, both: Both) -> None:
    assert both[0][case] == both[1][case]
    kind, text = both[0][case]
    assert kind == "CalibrationError"
    assert text.startswith("calibrate, ranks 0 and 1: found ")
    assert text.endswith(SAME)
    if case == "other estimators":
        assert "Ema(inner=MinMax(), decay=0.5) in Scheme(" in text
        assert "Ema(inner=MinMax(), decay=0.75) in Scheme(" in text


@pytest.mark.thorough
def test_reports_and_corrections_are_those_of_one_process(both: Both) -> None:
    model = qfunc.calibrate(ALL)(made())
    for name, parts in (("figures", ALL), ("figures of rank 0", batches(0))):
        errors, losses, biases = figures(parts, model)
        for rank in (0, 1):
            found = both[rank][name]
            assert both[0][name][0] == found[0]
            for (tensor, *given), (other, *wanted) in zip(found[0], errors, strict=True):
                assert tensor == other
                assert given[2] == wanted[2]  # counts, and extremes
                for a, b in zip(given[:2], wanted[:2], strict=True):
                    _same_sums(a, b)
            for (site, a), (other, b) in zip(found[1], losses, strict=True):
                assert site == other
                _same_sums(a, b)
            # Means in float64 by other orders of summation, rounded to float32 once.
            assert all(torch.allclose(a, b, rtol=2**-22, atol=2**-30) for a, b in zip(found[2], biases, strict=True))
    assert figures(batches(0), model)[0] != figures(ALL, model)[0]


def _same_sums(a: Any, b: Any) -> None:
    assert (a is None) == (b is None)
    if a is not None:
        assert (a.elements, a.largest) == (b.elements, b.largest)
        for figure in ("signal", "noise", "power", "product"):  # float64, summed by ranks
            assert getattr(a, figure) == pytest.approx(getattr(b, figure), rel=1e-12, abs=1e-30)


@pytest.mark.thorough
def test_reports_tell_both_ranks_what_is_wrong(both: Both) -> None:
    for index, step in enumerate(("compare", "sensitivity", "correct_bias")):
        text = f"{step}: found no batches, wanted at least one. Pass a non-empty iterable, not one already used up."
        for rank in (0, 1):
            assert both[rank]["figures of none"][index] == ("CalibrationError", text)
        failure = both[1]["figures after a failure"][index][1]
        assert failure.startswith(f"{step}, batch 1, op '0': found RuntimeError: mat1 and mat2 shapes")
        wanted = "wanted statistics of all ranks. Fix the failure on that rank; every rank must finish the pass."
        told = f"{step}, rank 1: found a failure: {failure!r}, {wanted}"
        assert both[0]["figures after a failure"][index] == ("CalibrationError", told)
        with pytest.raises(SpecError, match=f"^{step}, group: found 0, wanted a torch.distributed.ProcessGroup"):
            getattr(qfunc, step)([], group=0)
    for rank in (0, 1):
        assert both[rank]["figures of two models"].startswith("compare, ranks 0 and 1: found ")
        assert both[rank]["figures of two models"].endswith(SAME)


@pytest.mark.thorough
def test_mixed_precision_is_that_of_one_process(both: Both) -> None:
    """Also its random signs, and its multiply-accumulates, which are those of the first batch of rank 0."""
    wanted = mixed(ALL, qfunc.calibrate(ALL)(made()))
    assert both[0]["mixed"] == both[1]["mixed"]
    for name, (losses, bits, cost) in wanted.items():
        found = both[0]["mixed"][name]
        assert found[1:] == (bits, cost)
        assert [key for key, _ in found[0]] == [key for key, _ in losses]
        for (_, a), (_, b) in zip(found[0], losses, strict=True):
            assert a == pytest.approx(b, rel=100 * 2.0**-52)  # fewer than 100 float64 additions
    assert wanted != mixed(batches(0), qfunc.calibrate(ALL)(made()))


@pytest.mark.thorough
def test_mixed_precision_tells_all_ranks_what_is_wrong(both: Both) -> None:
    text = "mixed_precision: found no batches, wanted batches of inputs. Pass at least one batch."
    assert both[0]["mixed, no batches on rank 0"] == text
    wanted = "wanted statistics of all ranks. Fix the failure on that rank; every rank must finish the pass."
    assert both[1]["mixed, no batches on rank 0"] == f"mixed_precision, rank 0: found a failure: {text!r}, {wanted}"
    for rank in (0, 1):
        assert both[rank]["mixed, no merge"] == (
            "mixed_precision, loss: found Unmergeable(), whose watch has no state and join, in 2 processes, wanted a watch "
            "with state() and join(states). Use OutputMse() or HessianTrace(), or call mixed_precision in one process."
        )


@pytest.mark.thorough
def test_gptq_is_that_of_one_process(both: Both) -> None:
    """Bit for bit: the sums of a batch are float32, and sums of a few of them are exact in float64."""
    wanted = rounded(ALL)
    assert wanted
    for rank in (0, 1):
        assert len(both[rank]["rounded"]) == len(wanted)
        assert all(torch.equal(a, b) for a, b in zip(both[rank]["rounded"], wanted, strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(rounded(batches(0)), wanted, strict=True))


@pytest.mark.thorough
def test_gptq_tells_all_ranks_what_is_wrong(both: Both) -> None:
    text = "gptq: found no batches, wanted at least one. Pass a non-empty iterable, not one already used up."
    assert both[0]["rounded, no batches on rank 0"] == text
    wanted = "wanted statistics of all ranks. Fix the failure on that rank; every rank must finish the pass."
    assert both[1]["rounded, no batches on rank 0"] == f"gptq, rank 0: found a failure: {text!r}, {wanted}"
    text = "gptq, op '0': found NaN or infinite values in its input, wanted finite values. "
    for rank in (0, 1):
        assert both[rank]["rounded, NaN on rank 1"] == text + "Remove the batch, or repair the weights."
    text = "no memory left"  # in the last layer, after which no statistics are sent
    assert both[1]["rounded, no memory on rank 1"] == text
    assert both[0]["rounded, no memory on rank 1"] == f"gptq, rank 1: found a failure: 'MemoryError: {text}', {wanted}"


@pytest.mark.thorough
def test_a_failure_after_the_merge_is_told_to_all(both: Both) -> None:
    text = "no memory left"
    assert both[1]["qparams, no memory on rank 1"] == text
    assert both[0]["qparams, no memory on rank 1"] == (
        f"calibrate, rank 1: found a failure: 'MemoryError: {text}', wanted statistics of all ranks. Fix the failure on that "
        "rank; every rank must finish the pass."
    )


@pytest.mark.thorough
def test_ranks_share_the_models_of_check_target(both: Both) -> None:
    """All draw the same; each is checked by one rank, as calibrated and with four more sets of scales, by two runs each."""
    one, other = (both[rank]["conformance"] for rank in (0, 1))
    assert one["drawn"] == other["drawn"]
    assert len(one["checked"]) + len(other["checked"]) == 10 * len(one["drawn"])
    assert one["checked"], "no model was checked by rank 0"
    assert other["checked"], "no model was checked by rank 1"


@pytest.mark.thorough
def test_a_failure_of_check_target_is_told_to_all(both: Both) -> None:
    one, other = (both[rank]["conformance"]["failing"] for rank in (0, 1))
    assert other.startswith(
        "check_target(onnxruntime), law 'emulation_matches_the_runtime': the runner raised NotImplementedError: broken"
    )
    assert one == f"rank 1: {other}"
    assert both[0]["conformance"]["passing"] == both[1]["conformance"]["passing"] == ""


@pytest.mark.parametrize("group", ["gloo", 0, object])
def test_what_is_no_group(group: Any) -> None:
    wanted = "a torch.distributed.ProcessGroup that this process is in, or None"
    do = "Pass the result of dist.new_group in a member process, or mesh.get_group()."
    steps = {
        "calibrate": lambda: qfunc.calibrate([], group=group),
        "mixed_precision": lambda: qfunc.mixed_precision([], (4,), qfunc.SizeBudget(4), group=group),
        "gptq": lambda: qfunc.gptq([], group=group),
        "reconstruct": lambda: qfunc.reconstruct(qfunc.adaround(), [], group=group),
        "check_each_kind": lambda: check_each_kind(targets.onnxruntime, group=group),
        "check_target": lambda: check_target(targets.onnxruntime, group=group),
    }
    for name, step in steps.items():
        with pytest.raises(SpecError) as caught:
            step()
        assert str(caught.value) == f"{name}, group: found {group!r}, wanted {wanted}. {do}"


def test_processes_without_a_group_are_warned(monkeypatch: pytest.MonkeyPatch) -> None:
    """`torchrun` sets these variables; a group of another process, or none, is not waited for."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    quantized, x = qfunc.quantize(targets.onnxruntime)(torch.nn.Linear(2, 2)), [torch.ones(1, 2)]
    with pytest.warns(UserWarning, match="no process group") as told:
        qfunc.calibrate(x, progress=False)(quantized)
    text = "found WORLD_SIZE=2 and no process group: each process works alone, on its own batches. "
    assert [str(w.message) for w in told] == [text + "Call torch.distributed.init_process_group() first."]
    monkeypatch.setenv("WORLD_SIZE", "1")
    qfunc.calibrate(x, progress=False)(quantized)  # a warning is an error of these tests

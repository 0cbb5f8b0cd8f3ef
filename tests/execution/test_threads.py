"""Threads that quantize the same model at once give equal results, and disturb nobody."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.modules import module

import qfunc
from qfunc.analysis.integer_share import integer_share
from qfunc.analysis.operations import multiply_accumulates
from qfunc.graph.view import QuantizedModel
from tests.onnxruntime_target import ONNXRUNTIME
from tests.transforms.checks import arguments, same_state, state
from tests.transforms.nets import network

TARGET = ONNXRUNTIME
THREADS = 8


def at_once(work: Any) -> list[Any]:
    """The results of 8 threads that start together."""
    barrier = Barrier(THREADS)

    def started(index: int) -> Any:
        barrier.wait()
        return work(index)

    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(started, range(THREADS)))


@pytest.mark.thorough
@pytest.mark.parametrize("export", [False, True])
def test_equal_results(export: bool) -> None:
    model, x = network("residual")
    before = state(model)

    def work(_: int) -> tuple[Any, ...]:
        done = qfunc.calibrate([x, 2 * x])(qfunc.quantize(TARGET, (x,) if export else None)(model))
        return state(done), qfunc.emulate(TARGET)(done)(x), done(x).detach(), qfunc.deploy(TARGET)(done).files["model.onnx"]

    results = at_once(work)
    want = work(0)
    for found in results:
        if not same_state(found[0], want[0]):
            # On CPUs without AVX-512, torch's own convolution differs by an ulp between threads; nothing else may.
            assert all(torch.allclose(found[0][k], want[0][k], rtol=2**-22, atol=0) for k in want[0])
            continue
        assert torch.equal(found[1], want[1])
        assert torch.equal(found[2], want[2])
        assert found[3] == want[3]
    assert same_state(state(model), before)


def test_one_quantized_model_calibrated_by_all() -> None:
    model, x = network("branches")
    made = qfunc.quantize(TARGET)(model)
    results = at_once(lambda i: state(qfunc.calibrate([x * (1 + i % 2)])(made)))
    want = [state(qfunc.calibrate([x * (1 + i)])(made)) for i in range(2)]
    assert all(same_state(found, want[i % 2]) for i, found in enumerate(results))


def test_modules_that_stay_modules_run_while_others_trace() -> None:
    # Tracing patches nn.Module for every thread: a leaf that another thread calls must compute as ever.
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.InstanceNorm2d(4, affine=True), nn.ReLU(), nn.Dropout()).eval()
    x = torch.randn(2, 3, 8, 8)
    want = model(x)

    def work(index: int) -> torch.Tensor:
        for _ in range(5):
            if index % 2:
                qfunc.quantize(TARGET)(model)
            else:
                other = network("residual")[0].eval()
                other(x)
        done = qfunc.calibrate([x])(qfunc.quantize(TARGET)(model))
        return done(*arguments(x)).detach()

    results = at_once(work)
    assert all(torch.equal(r, results[0]) for r in results)
    assert (results[0] - want).abs().max() < 0.2


def test_counting_operations_disturbs_no_module_of_another_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = network("residual")
    hooks, calibrated = list[int](), qfunc.calibrate([x])(qfunc.quantize(TARGET)(model))
    original = multiply_accumulates.kind_of

    def observed(node: Any) -> Any:
        hooks.append(len(module._global_forward_pre_hooks) + len(module._global_forward_hooks))
        return original(node)

    monkeypatch.setattr(multiply_accumulates, "kind_of", observed)
    integer_share(QuantizedModel(calibrated), (x,))
    assert hooks
    assert not any(hooks)

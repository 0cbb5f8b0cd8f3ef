"""ONNX Runtime on other processors: not one code of ops as Hypothesis draws them differs from the emulation.

    QFUNC_EXAMPLES=100 QFUNC_MACHINES=FOLDER python -m pytest -n 0 -s tests/lowering/machines/test_onnxruntime_machines.py

draws as many examples of up to eight ops on each, others every time, and prints how many were compared. One process of each
machine runs all of them.
"""

from __future__ import annotations

import random
from functools import partial
from typing import Any

import pytest
import torch
from attrs import evolve
from torch import nn

import qfunc
from qfunc.graph.sites import quantizer_nodes
from qfunc.graph.view import QuantizedModel
from qfunc.lowering import Qemu
from qfunc.placement.partition import Partition
from qfunc.specs import FixedQParams, cpus, edit
from qfunc.targets.onnxruntime.target import onnxruntime
from qfunc.targets.runtimes import OnnxRuntimeRunner
from tests.conformance.modules import Apply
from tests.lowering.drawn_law import EXAMPLES, _calibrated
from tests.lowering.drawn_ops import Side, image, move
from tests.lowering.machines.machines import MACHINES, name, require
from tests.lowering.onnxruntime.test_onnxruntime_ops import drawn_ops_law


@pytest.mark.parametrize("machine", MACHINES, ids=name)
def test_drawn_ops_are_what_the_runtime_computes(machine: Any) -> None:
    require(machine)
    told = drawn_ops_law(edit.cpu(machine.cpu)(onnxruntime), OnnxRuntimeRunner(threads=1, machine=machine), EXAMPLES or 3)
    print(f"\n{name(machine)}: {told}")


def sums(channels: int, seed: int) -> list[nn.Module]:
    """Sums of tensors of scales that are far apart, broadcast in either order."""
    found: list[nn.Module] = []
    for i in range(20):
        torch.manual_seed(1000 * seed + i)
        layer, others = (
            nn.Conv2d(channels, channels, 1),
            (nn.Identity(), nn.AdaptiveAvgPool2d(1), nn.Conv2d(channels, channels, 1)),
        )
        layer.weight.data *= 10.0 ** (i % 5 - 2)
        found.append(Apply(_swapped if i % 2 else _in_order, layer, others[i % 3]))
    return found


def _in_order(x: Any, layer: nn.Module, other: nn.Module) -> Any:
    return layer(x) + other(x)


def _swapped(x: Any, layer: nn.Module, other: nn.Module) -> Any:
    return other(x) + layer(x)


@pytest.mark.parametrize("machine", MACHINES, ids=name)
@pytest.mark.parametrize("seed", range(2))
def test_sums_of_any_scales_are_what_the_runtime_computes(machine: Any, seed: int) -> None:
    require(machine)
    target, shape = edit.cpu(machine.cpu)(onnxruntime), (2, (3, 17)[seed], 5, 6 + seed)
    model = _calibrated(Side(sums(shape[1], seed)).eval(), target, shape)
    move(model, seed, (2.0, 6.0)[seed])
    report = qfunc.verify(target, OnnxRuntimeRunner(threads=1, machine=machine))(model, [image(model, shape, seed)])
    assert report.verdict.startswith("bit-exact: 0 of "), report


def softmaxes(seed: int) -> nn.Module:
    """Over one to eight entries, of one axis or another."""
    drawn = random.Random(seed)
    sizes = [(dim, n) for dim in (1, 3) for n in range(1, 9) for _ in range(drawn.randint(1, 3))]
    return Side([Apply(partial(_softmax, dim=dim, length=n)) for dim, n in sizes]).eval()


def _softmax(x: Any, dim: int, length: int) -> Any:
    return x.narrow(dim, 0, length).softmax(dim)


@pytest.mark.parametrize("machine", MACHINES, ids=name)
@pytest.mark.parametrize("seed", range(2))
def test_softmax_of_any_scale_is_what_the_runtime_computes(machine: Any, seed: int) -> None:
    """Of 1/256 and less, where the quotient of a large entry is infinite, and of any zero point."""
    require(machine)
    target, drawn, shape = edit.cpu(machine.cpu)(onnxruntime), random.Random(seed), (2, 8, 5, 8)
    model = _calibrated(softmaxes(seed), target, shape)
    for seat in quantizer_nodes(model):
        if isinstance(seat.module.site.value, FixedQParams):
            seat.module.scale.mul_(2.0 ** -drawn.choice((0.0, 5 * drawn.random())))
            seat.module.zero_point.fill_(drawn.choice((0, 0, 1, 3, 128, 255)))
        else:
            seat.module.scale.mul_(drawn.choice((0.1, 1.0, 9.0)))
    report = qfunc.verify(target, OnnxRuntimeRunner(threads=1, machine=machine))(model, [image(model, shape, seed)])
    assert report.verdict.startswith("bit-exact: 0 of "), report


def test_verify_says_which_processor_computes_otherwise() -> None:
    machine = Qemu(cpus.x86_64_avx2)
    require(machine)
    runner, batches = OnnxRuntimeRunner(threads=1, machine=machine), [torch.rand(2, 4, 5, 5)]
    layer = nn.Conv2d(4, 3, 3)
    layer.weight.data.fill_(1.0)
    verdicts = {}
    for bits in (8, 7):
        target = edit.weights(bits=bits)(onnxruntime)
        model = _calibrated(layer, target, (2, 4, 5, 5))
        verdicts[bits] = qfunc.verify(target, runner)(model, batches).verdict
    assert verdicts[8].startswith(
        "not comparable: x86-64-avx2 computes other integers than x86-64-vnni, which edit.cpu('x86-64-avx2') describes"
    )
    assert verdicts[7].startswith("bit-exact: 0 of ")
    there = edit.cpu("x86-64-avx2")(onnxruntime)
    assert qfunc.verify(there, runner)(_calibrated(layer, there, (2, 4, 5, 5)), batches).verdict.startswith("bit-exact: 0 of ")


def test_seven_bits_have_one_emulation_with_and_without_vnni() -> None:
    for bits, same in ((7, True), (8, False)):
        target = edit.weights(bits=bits)(onnxruntime)
        there = edit.cpu("x86-64-avx2")(target)
        layer = nn.Conv2d(4, 3, 3)
        layer.weight.data.fill_(1.0)
        graphs = [
            str(qfunc.emulate(t)(_calibrated(layer, t, (2, 4, 5, 5))).graph) for t in (target, there)
        ]  # fmt: skip
        assert (graphs[0] == graphs[1]) == same


def test_a_target_without_a_build_for_the_runner_is_not_comparable() -> None:
    only = evolve(onnxruntime, runtime=evolve(onnxruntime.runtime, builds=onnxruntime.runtime.builds[:1]))
    model = _calibrated(nn.Conv2d(4, 3, 3), only, (2, 4, 5, 5))
    machine = Qemu(cpus.arm64)
    require(machine)
    report = qfunc.verify(only, OnnxRuntimeRunner(machine=machine))(model, [torch.rand(2, 4, 5, 5)])
    assert report.incomparable == "the target onnxruntime describes no arm64"
    assert Partition(QuantizedModel(model), only).units[0].integer

"""The operations that benchmarks/cost.py counts on paper are those that PyTorch counts while the steps run."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import qfunc

ROOT = Path(__file__).resolve().parents[1]
PASSES = 2
"""The further passes of `gptq` over all columns."""


@pytest.fixture
def benchmarks(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    import cost
    import scale

    yield cost, scale
    for name in ("cost", "scale", "memory"):
        sys.modules.pop(name, None)


def counted(scale: Any, step: str, depth: int) -> tuple[int, dict[str, int]]:
    """The operations of matrix products in a step."""
    point = {"width": 128, "depth": depth, "batches": 3, "ranks": 1}
    model, batches = scale.prepared(point)
    action = scale.actions(model, batches)[step]
    with FlopCounterMode(display=False) as counter:
        action()
    return counter.get_total_flops(), point


@pytest.mark.thorough
@pytest.mark.parametrize("depth", [1, 3])
@pytest.mark.parametrize("step", ["calibrate", "compare", "correct_bias"])
def test_passes(benchmarks: Any, step: str, depth: int) -> None:
    found, point = counted(benchmarks[1], step, depth)
    assert found == benchmarks[1].on_paper(step, point)


@pytest.mark.thorough
@pytest.mark.parametrize("depth", [2, 4])
def test_sensitivity(benchmarks: Any, depth: int) -> None:
    """Sites before the first ops and branches make it 10 % more than a chain of as many sites in equal steps."""
    found, point = counted(benchmarks[1], "sensitivity", depth)
    assert 1 <= found / benchmarks[1].on_paper("sensitivity", point) < 1.2


@pytest.mark.thorough
@pytest.mark.parametrize("depth", [1, 2])
def test_reconstruct(benchmarks: Any, depth: int) -> None:
    """Three images are run once more to find the axes of batches: 2 % of the operations here."""
    found, point = counted(benchmarks[1], "reconstruct", depth)
    assert 1 <= found / benchmarks[1].on_paper("reconstruct", point) < 1.02


@pytest.mark.thorough
@pytest.mark.parametrize("depth", [1, 2])
def test_gptq(benchmarks: Any, depth: int) -> None:
    """All but what PyTorch does not count: solving, factorizing, and updates in place; the last layer does not run."""
    cost, scale = benchmarks
    found, _ = counted(scale, "gptq", depth)
    net, tokens = cost.Network(128, 384, depth, 1, 1), scale.SEQUENCES * scale.LENGTH * 3
    passes = cost.forward(net, tokens, scale.LENGTH) * 2 + cost.moments(net, tokens)
    layers = [(n, m) for n, outs in net.inputs for m in outs]
    products = depth * sum((2 + 2 * PASSES + 4) * n**2 * m for n, m in layers)  # W C, slopes, errors before and after
    assert found == passes.single + products - 2 * 2 * 384 * 128 * tokens
    rest = cost.rounding(net, PASSES).single + cost.rounding(net, PASSES).double - products
    of_inputs = sum(5 * n**3 / 3 for n, _ in net.inputs)
    assert rest == pytest.approx(depth * (of_inputs + sum(2 * n**2 * m + n**2 * m for n, m in layers)))


def test_gptq_as_published(benchmarks: Any) -> None:
    """One network runs, and of sum x x^T, W C and what solves for W' only the first is computed."""
    cost, scale = benchmarks
    model, batches = scale.prepared({"width": 128, "depth": 1, "batches": 3, "ranks": 1})
    calibrated = qfunc.calibrate(batches, progress=False)(qfunc.quantize(scale.TARGET)(model))
    with FlopCounterMode(display=False) as counter:
        qfunc.gptq(batches, progress=False, earlier_errors=0)(calibrated)
    net, tokens = cost.Network(128, 384, 1, 1, 1), scale.SEQUENCES * scale.LENGTH * 3
    mixed = sum(2 * n**2 * tokens for n, _ in net.inputs)
    once = cost.forward(net, tokens, scale.LENGTH).single + cost.moments(net, tokens).single - mixed
    products = sum((2 * PASSES + 4) * n**2 * m for n, outs in net.inputs for m in outs)
    assert counter.get_total_flops() == once + products - 2 * 384 * 128 * tokens


def test_llama(benchmarks: Any) -> None:
    """The numbers of weights that Meta's model card and the shapes of its checkpoint give."""
    assert benchmarks[0].LLAMA.parameters == 80 * 855_638_016 + 2 * 128256 * 8192
    assert round(benchmarks[0].LLAMA.parameters / 1e9, 1) == 70.6


def test_the_page_has_the_table(benchmarks: Any) -> None:
    cost = benchmarks[0]
    assert (ROOT / "docs/scale.md").read_text().split(cost.MARK.format("cost"))[1].strip() == cost.table().strip()


def test_torch_counts_a_product() -> None:
    with FlopCounterMode(display=False) as counter:
        torch.randn(3, 5) @ torch.randn(5, 7)
    assert counter.get_total_flops() == 2 * 3 * 5 * 7

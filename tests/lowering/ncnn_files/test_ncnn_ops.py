"""Every op of ncnn's datasheet as Hypothesis draws it: the emulation is what ncnn computes, in int8 and bit for bit in float32.

    QFUNC_EXAMPLES=1000 python -m pytest -n 0 -s tests/lowering/ncnn_files/test_ncnn_ops.py

draws so many examples of up to eight ops, others every time, and prints how many were compared.
"""

from __future__ import annotations

import importlib.util
import math
from collections import Counter
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import qfunc
from qfunc import targets
from qfunc.graph.sites import quantizer_nodes
from qfunc.graph.view import QuantizedModel
from qfunc.placement.partition import Partition
from qfunc.specs import edit
from qfunc.targets.runtimes import NcnnRunner
from tests.conformance.modules import Apply
from tests.lowering.drawn_law import EXAMPLES, at_ties
from tests.lowering.drawn_ops import ACTIVATIONS, Drawn, Shape, Side, Trial, convolution, linear, trials, weighted
from tests.lowering.tflite.test_litert import _calibrated
from tests.lowering.tie_ops import joined, pairs, pools, products

needs_ncnn = pytest.mark.skipif(importlib.util.find_spec("ncnn") is None, reason="ncnn is not installed")
TARGET = targets.ncnn
HERE = edit.cpu(NcnnRunner().cpu)(TARGET)


@st.composite
def chain(draw: Any, shape: Shape) -> Drawn:
    """Two convolutions, the first of which requantizes, a depthwise one between them or not."""
    c, activation = shape[1], draw(ACTIVATIONS)
    first = draw(weighted(nn.Conv2d, c, 8, draw(st.integers(1, 3)), padding=draw(st.integers(0, 1))))
    alone = [draw(weighted(nn.Conv2d, 8, 8, 3, padding=1, groups=8)), nn.ReLU()] if draw(st.booleans()) else []
    return "chain", nn.Sequential(first, activation, *alone, draw(weighted(nn.Conv2d, 8, 5, draw(st.integers(1, 3)))))


@st.composite
def real(draw: Any, shape: Shape) -> Drawn:
    """An op in float32 behind a convolution and in front of another."""
    kernel, around = draw(st.integers(1, 3)), draw(st.booleans())
    padding, slope = int(around and kernel > 1), draw(st.sampled_from((0.01, 0.3)))
    made = {
        "max_pool": nn.MaxPool2d(kernel, draw(st.integers(1, 2)), padding),
        "avg_pool": nn.AvgPool2d(kernel, draw(st.integers(1, 2)), padding, count_include_pad=draw(st.booleans())),
        "mean": nn.AdaptiveAvgPool2d(1), "hardswish": nn.Hardswish(), "hardsigmoid": nn.Hardsigmoid(), "elu": nn.ELU(),
        "leaky_relu": nn.LeakyReLU(slope), "clip": nn.Hardtanh(-slope, 0.8), "add": Apply(lambda x: x + F.relu(x)),
        "mul": Apply(lambda x: x * x[..., :1]), "sub": Apply(lambda x: 1.5 - x), "nearest": nn.Upsample(scale_factor=2),
        "concat": Apply(lambda x: torch.cat([x, x], 2)),
    }  # fmt: skip
    kind, c = draw(st.sampled_from(sorted(made))), shape[1]
    return kind, nn.Sequential(draw(weighted(nn.Conv2d, c, c, 1)), made[kind], draw(weighted(nn.Conv2d, c, 3, 1)))


def moved(model: Any, seed: int, spread: float) -> None:
    """Other scales, powers of two among them."""
    g = torch.Generator().manual_seed(seed)
    for seat in quantizer_nodes(model):
        if not seat.module.site.constant:
            u, exact = torch.rand(2, generator=g).tolist()
            scale = float(seat.module.scale) * math.exp(spread * (2 * u - 1))
            seat.module.scale.fill_(2.0 ** round(math.log2(scale)) if exact < 0.5 else scale)


def image(model: Any, shape: Shape, seed: int) -> Tensor:
    """Values on every code of the first input, between them where rounding has its ties, and beyond the ends.

    But for those that become the neighbour of a half, which vectors and single entries round otherwise: a known deviation.
    """
    found = [s for s in quantizer_nodes(model) if not s.module.site.constant]
    module = next((s.module for s in found if s.tensor == "x"), found[0].module)  # which may be flattened first
    g = torch.Generator().manual_seed(seed)
    q = torch.randint(-131, 132, shape, generator=g) + 0.5 * torch.randint(0, 2, shape, generator=g)
    x = q * module.scale
    return x.masked_fill((x * (1 / module.scale)).abs() == 0.5 - 2.0**-25, 0.0)


KINDS = (convolution, convolution, linear, chain, real)


def drawn_ops_law(target: Any, runner: Any, kinds: Any = KINDS) -> str:
    """What was compared; fails where an output differs."""
    ops, elements = Counter[str](), 0

    @settings(max_examples=EXAMPLES or 3, derandomize=not EXAMPLES, deadline=None, database=None,
              phases=[Phase.generate], suppress_health_check=list(HealthCheck))  # fmt: skip
    @given(trials(kinds))
    def law(trial: Trial) -> None:
        nonlocal elements
        model, _ = _calibrated(Side(trial.ops), target, *trial.shape)
        moved(model, trial.seed, trial.spread)
        x = image(model, trial.shape, trial.seed)
        assert not Partition(QuantizedModel(model), target).float_units
        emulated, found = qfunc.emulate(target)(model)(x), runner.run(qfunc.deploy(target)(model), [x])
        for name, op, want, got in zip(trial.names, trial.ops, emulated, found, strict=True):
            different = int((want != torch.from_numpy(got)).sum())
            assert not different, f"{name}, {op} of {trial.shape}: {different} of {want.numel()} differ"
            ops[name] += 1
            elements += want.numel()

    law()
    return f"{ops.total():,} ops, {elements:,} elements, 0 differ: {dict(sorted(ops.items()))}"


@needs_ncnn
def test_drawn_ops_are_what_ncnn_computes():
    print(f"\n{drawn_ops_law(HERE, NcnnRunner())}")


@needs_ncnn
@pytest.mark.parametrize("ties", [True, False])
def test_halves_become_the_codes_that_ncnn_computes(ties):
    ties_law(HERE, NcnnRunner(), ties)


def ties_law(target: Any, runner: Any, ties: bool) -> None:
    """Fails where an output of ops whose sums are often halves differs."""
    named = [op for op in products() if op[0] not in ("transposed", "wide", "depthwise of 17")]
    named += [*(op for op in pairs(("add", "mul")) if "curved" not in op[0]), *pools(), *list(joined())[:2]]
    model, x = at_ties(target, named, 1, ties=ties)
    artifact = qfunc.deploy(target)(model)
    x = x.masked_fill((x * 32).abs() == 0.5 - 2.0**-25, 0.0)
    emulated, found = qfunc.emulate(target)(model)(x), runner.run(artifact, [x])
    for (name, op), want, got in zip(named, emulated, found, strict=True):
        different = int((want != torch.from_numpy(got)).sum())
        assert not different, f"{name}, {op}: {different} of {want.numel()} differ"

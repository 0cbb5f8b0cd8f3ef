"""One law for every runtime: ops as Hypothesis draws them are emulated as the runtime computes them, code by code."""

from __future__ import annotations

import os
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import torch
from hypothesis import HealthCheck, Phase, given, reject, settings
from torch import Tensor, nn

import qfunc
from qfunc.errors import DeployError, EmulationError
from qfunc.graph.view import QuantizedModel
from qfunc.placement.partition import Partition
from tests.lowering.drawn_ops import KINDS, Shape, Side, Trial, image, move, trials

EXAMPLES = int(os.environ.get("QFUNC_EXAMPLES", "0"))
Run = Callable[[Any, list[Tensor]], list[Any]]


def held_against(run: Run, target: Any, refusals: set[str], kinds: Any = KINDS) -> str:
    """What was compared; fails where an output differs, or a trial is refused for another reason than these.

    Args:
        run: (artifact, inputs) -> outputs, by the runtime.
        refusals: What the refusals want, as they begin.
    """
    ops, elements, refused = Counter[str](), 0, Counter[str]()

    @settings(max_examples=EXAMPLES or 4, derandomize=not EXAMPLES, deadline=None, database=None,
              phases=[Phase.generate], suppress_health_check=list(HealthCheck))  # fmt: skip
    @given(trials(kinds))
    def law(trial: Trial) -> None:
        nonlocal elements
        try:
            each = list(compared(trial, target, run))
        except (DeployError, EmulationError) as e:
            refused[str(e).split(", wanted ")[1].split(". ")[0]] += 1
            reject()
        for name, op, different, count in each:
            assert not different, f"{name}, {op} of {trial.shape}: {different} of {count} differ"
            ops[name] += 1
            elements += count

    law()
    told = f"{ops.total():,} ops, {elements:,} elements, 0 differ: {dict(sorted(ops.items()))}, refused: {dict(refused)}"
    assert set(refused) <= refusals, told
    return told


def compared(trial: Trial, target: Any, run: Run) -> Iterator[tuple[str, nn.Module, int, int]]:
    """(name, op, outputs that differ, outputs) of each op."""
    model = _calibrated(Side(trial.ops).eval(), target, trial.shape)
    move(model, trial.seed, trial.spread)
    x = image(model, trial.shape, trial.seed)
    assert not [u.path for u in Partition(QuantizedModel(model), target).units if not u.integer]
    emulated = qfunc.emulate(target)(model)(x)
    found = run(qfunc.deploy(target)(model), [x])
    for name, op, want, got in zip(trial.names, trial.ops, emulated, found, strict=True):
        yield name, op, int((want != torch.from_numpy(got)).sum()), want.numel()


def _calibrated(model: nn.Module, target: Any, shape: Shape) -> nn.Module:
    batch = torch.randn(shape, generator=torch.Generator().manual_seed(3))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return qfunc.calibrate([batch], progress=False)(qfunc.quantize(target)(model))


__all__ = ["compared", "held_against"]

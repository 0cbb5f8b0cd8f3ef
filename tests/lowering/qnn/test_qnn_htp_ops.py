"""Ops as Hypothesis draws them, on the emulator of the HTP: how far its codes are from the simulation's.

    QFUNC_EXAMPLES=1000 python -m pytest -n 0 -s tests/lowering/qnn/test_qnn_htp_ops.py

draws so many ops, others every time, and prints how many codes differ by how much, kind by kind; QFUNC_HTP=68 says for which
version of the HTP they are compiled.
"""

from __future__ import annotations

import importlib.util
import math
import os
from collections import Counter, defaultdict
from typing import Any

import onnx
import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import qfunc
from qfunc import targets
from qfunc.errors import DeployError, SpecError
from qfunc.graph.sites import quantizer_nodes
from qfunc.specs import FixedQParams
from qfunc.targets.runtimes import QnnHtpRunner
from tests.conformance.modules import Apply
from tests.lowering import drawn_ops as ops
from tests.lowering.drawn_law import EXAMPLES, _calibrated
from tests.lowering.drawn_ops import Drawn, Shape, Side, Trial, trials

needs_qnn = pytest.mark.skipif(
    importlib.util.find_spec("onnxruntime_qnn") is None, reason="onnxruntime-qnn is not installed"
)  # fmt: skip
TARGET, ARCH = targets.qnn_htp, int(os.environ.get("QFUNC_HTP", "73"))
RULES = {"matmul", "mul", "maximum", "minimum"}  # that may differ by more than one code: test_qnn_htp_rules.py has their rules


@st.composite
def pair(draw: Any, shape: Shape) -> Drawn:
    """A sum, difference, product or bound of two tensors that are codes of the image."""
    calls = {
        "add": lambda x: x + x[..., :1], "sub": lambda x: x[:, :, :1] - x, "mul": lambda x: x * x[..., :1],
        "maximum": lambda x: torch.maximum(x, x[..., :1]), "minimum": lambda x: torch.minimum(x, x[:, :1]),
    }  # fmt: skip
    kind = draw(st.sampled_from(sorted(calls)))
    return kind, nn.Sequential(Apply(calls[kind]), draw(ops.ACTIVATIONS))


KINDS = (
    ops.convolution, ops.convolution, ops.transposed, ops.linear, pair, ops.pool, ops.mean, ops.concat, ops.curve,
    ops.softmax, ops.product,
)  # fmt: skip


def moved(model: Any, seed: int, spread: float) -> None:
    """Other scales, powers of two among them, and zero points at the ends; tensors that shared theirs still do."""
    g, new = torch.Generator().manual_seed(seed), dict[tuple[float, int], tuple[float, int]]()
    for module in (seat.module for seat in quantizer_nodes(model)):
        if module.site.constant or isinstance(module.site.value, FixedQParams):
            continue
        u, exact, any_zero = torch.rand(3, generator=g).tolist()
        scale = float(module.scale) * math.exp(spread * (2 * u - 1))
        scale = 2.0 ** round(math.log2(scale)) if exact < 0.5 else scale
        zero = (0, 255, 128, 127, int(torch.randint(0, 256, (), generator=g)))[int(5 * any_zero)]
        scale, zero = new.setdefault((float(module.scale), int(module.zero_point)), (float(torch.tensor(scale)), zero))
        module.scale.fill_(scale)
        module.zero_point.fill_(zero)


def image(model: Any, shape: Shape, seed: int) -> Tensor:
    """Values on every code of the input: between them the HTP's own conversion decides, which is no part of the op."""
    (module,) = (s.module for s in quantizer_nodes(model) if s.tensor == "x" and s.module.site.slot == "input")
    q = torch.randint(0, 256, shape, generator=torch.Generator().manual_seed(seed))
    return (q - module.zero_point) * module.scale


def distances(trial: Trial) -> Tensor | None:
    """In codes, of each output; None of an op that the target or its lowering refuses, or whose output is not quantized."""
    try:
        model: Any = _calibrated(Side(trial.ops[:1]).eval(), TARGET, trial.shape)
    except SpecError:
        return None
    moved(model, trial.seed, trial.spread)
    x = image(model, trial.shape, trial.seed)
    try:
        artifact = qfunc.deploy(TARGET)(model)
    except DeployError:
        return None
    scales = {t: s["scale"][0] for s in artifact.report["tensors"] if s["role"] == "activation" for t in s["tensors"]}
    (output,) = onnx.load_from_string(artifact.files["model.onnx"]).graph.output
    if (scale := scales.get(output.name.removesuffix(".real"))) is None:
        return None
    (found,) = QnnHtpRunner(ARCH).run(artifact, [x])
    return ((torch.from_numpy(found) - model(x)[0]) / scale).abs()


@needs_qnn
def test_drawn_ops_differ_by_one_code_and_seldom():
    counts, refused, wrong = defaultdict[str, Counter[int]](Counter), 0, list[str]()

    @settings(max_examples=EXAMPLES or 4, derandomize=not EXAMPLES, deadline=None, database=None,
              phases=[Phase.generate], suppress_health_check=list(HealthCheck))  # fmt: skip
    @given(trials(KINDS))
    def law(trial):
        nonlocal refused
        far = distances(trial)
        if far is None:
            refused += 1
            return
        counts[trial.names[0]].update(far.round().int().flatten().tolist())
        if trial.names[0] not in RULES and far.max() > 1 + 1e-3:  # 1e-3 for the last bits of real values
            wrong.append(f"{far.max():g} codes: {trial.names[0]}, {trial.ops[0]} of {trial.shape}")

    law()
    for kind, found in sorted(counts.items()):
        print(f"\n{kind}: {found.total():,} codes, {dict(sorted(found.items()))}", end="")
    print(f"\n{sum(c.total() for c in counts.values()):,} codes, refused: {refused}")
    assert not wrong

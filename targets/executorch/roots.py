"""Write square roots: XNNPACK's own start from an instruction that is not the same on all processors."""

from __future__ import annotations

from typing import Any

import numpy as np

from qfunc.lowering.nhwc.tensor import NhwcTensor
from qfunc.targets.executorch.builder import XnnpackBuilder
from qfunc.targets.executorch.steps import Steps


def root(graph: XnnpackBuilder, inputs: list[NhwcTensor], out: NhwcTensor, fields: dict[str, Any]) -> None:
    """Write (s + x / max(s, 2^-126)) / 2 with s = exp(log(x) / 2): one step of Heron's method, 0 at 0."""
    step, x = Steps(graph, out), inputs[0]
    half = step.number(0.5)
    s = step.node("XNNExp", step.node("XNNMultiply", step.node("XNNLog", x), half))
    quotient = step.node("XNNDiv", x, step.node("XNNMaximum", s, step.number(float(np.finfo(np.float32).tiny))))
    step.node("XNNMultiply", step.node("XNNAdd", s, quotient), half, into=out)


def inverse_root(graph: XnnpackBuilder, inputs: list[NhwcTensor], out: NhwcTensor, fields: dict[str, Any]) -> None:
    """Write 1 / x^(1/2)."""
    step = Steps(graph, out)
    found = graph.tensor(f"{out.name}.root", out.shape)
    root(graph, inputs, found, fields)
    step.node("XNNDiv", step.number(1.0), found, into=out)

"""AdaRound, QDrop and NNIE's logarithm against MQBench's own numbers (tests/golden/mqbench_rounding.json says how made).

Deviations, each on purpose: MQBench's AdaRound gives the weights no gradient, so that training after it would
silently do nothing; here it passes straight through inside the range.  MQBench's NNIE leaves x = 2^(z/k - 1)
itself unquantized (no such x is among these).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from qfunc.functions import AdaRound, NnieLog, QDrop
from qfunc.numerics import Affine, from_range
from qfunc.specs import Int, Log, PerChannel, PerTensor, Scale, Scheme, ZeroPoint

GOLDEN = Path(__file__).parents[1] / "golden"
ROWS = json.loads((GOLDEN / "mqbench_rounding.json").read_text())["rows"]
ARRAYS = {name: torch.from_numpy(a) for name, a in np.load(GOLDEN / "mqbench_rounding.npz").items()}


def rows(function: str) -> pytest.MarkDecorator:
    chosen = [row for row in ROWS if row["fq"].startswith(function)]
    return pytest.mark.parametrize("row", chosen, ids=lambda r: r["key"].split("_", 1)[1])


def scheme_of(row: dict[str, Any]) -> Scheme:
    """MQBench's words: symmetric codes are signed, affine ones unsigned; `symmetric_range` drops the lowest."""
    given = row["scheme"]
    low = 1 - 2 ** (given["bit"] - 1) if given.get("symmetric_range") else None
    shared = PerChannel(0) if given["per_channel"] else PerTensor()
    fmt = Int(given["bit"], given["symmetry"], low=low)
    return Scheme(fmt, Scale(shared), None if given["symmetry"] else ZeroPoint())


def qparams_of(row: dict[str, Any]) -> Affine:
    shape = (-1, 1, 1, 1) if row["scheme"]["per_channel"] else ()
    return Affine(torch.tensor(row["scale"]).reshape(shape), torch.tensor(row["zp"]).reshape(shape))


def run(function: Any, params: Any, x: Tensor, scheme: Scheme) -> tuple[Tensor, Tensor]:
    x = x.clone().requires_grad_()
    noise = torch.full_like(x, 0.999)
    value = function.relax(params, x, scheme, noise) if hasattr(function, "relax") else function.apply(params, x, scheme)
    (gradient,) = torch.autograd.grad(value, x, torch.linspace(-1, 1, x.numel()).reshape(x.shape))
    return value.detach(), gradient


def assert_gradient(found: Tensor, wanted: Tensor) -> None:
    # linspace of torch 1.10, which made the numbers, differs from today's by one ulp of 1 or two.
    assert (found - wanted).abs().max() <= 2 * 2.0**-23
    assert torch.equal(found == 0, wanted == 0)


@rows("AdaRound")
def test_adaround(row: dict[str, Any]) -> None:
    """The soft value with v initialised on src and x = 1.05 src."""
    scheme, function, src = scheme_of(row), AdaRound(), ARRAYS[row["src"]]
    params = function.init(qparams_of(row), src, scheme)
    found, _ = run(function, params, src * 1.05, scheme)

    # v by another formula, float32: h moves by some 2^-22, and code and product are rounded on top.
    limit = 4 * 2.0**-22 * max(row["scale"]) + 2 * 2.0**-23 * found.abs().max()
    assert (found - ARRAYS[row["key"] + "_y"]).abs().max() <= limit


@rows("QDrop")
def test_qdrop(row: dict[str, Any]) -> None:
    """With nothing dropped: values bit for bit, and the gradient to x."""
    found, gradient = run(QDrop(p=1.0), qparams_of(row), ARRAYS[row["src"]] * 1.05, scheme_of(row))

    assert torch.equal(found, ARRAYS[row["key"] + "_y"])
    assert_gradient(gradient, ARRAYS[row["key"] + "_gx"])


@rows("NNIE")
def test_nnie(row: dict[str, Any]) -> None:
    """Values bit for bit; the gradient is the incoming one everywhere."""
    scheme, top = Scheme(Log()), torch.tensor(row["data_max"][0])
    found, gradient = run(NnieLog(), from_range(-top, top, scheme), ARRAYS[row["src"]] * 1.05, scheme)

    assert torch.equal(found, ARRAYS[row["key"] + "_y"])
    assert_gradient(gradient, ARRAYS[row["key"] + "_gx"])


def test_the_file_is_small_and_whole() -> None:
    """What a checkout carries."""
    assert sum((GOLDEN / f"mqbench_rounding.{kind}").stat().st_size for kind in ("json", "npz")) < 100_000
    assert [sum(r["fq"].startswith(n) for r in ROWS) for n in ("AdaRound", "QDrop", "NNIE")] == [18, 14, 2]

"""Every op that ExecuTorch's XNNPACK delegate runs on codes, as Hypothesis draws it: the emulation is what it computes.

    QFUNC_EXAMPLES=1000 python -m pytest -n 0 -s tests/lowering/xnnpack/test_executorch_ops.py

draws so many examples of up to eight ops, others every time, and prints how many were compared.
"""

from __future__ import annotations

import importlib.util
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import qfunc
from qfunc import targets
from qfunc.errors import SpecError
from qfunc.graph.sites import quantizer_nodes
from qfunc.specs import Op
from qfunc.targets.runtimes import ExecuTorchRunner
from tests.lowering.drawn_law import held_against, held_at_ties
from tests.lowering.drawn_ops import KINDS, curve, pool, softmax, transposed
from tests.lowering.tflite.test_litert import _calibrated
from tests.lowering.tie_ops import every
from tests.on_integers import on_integers

needs_executorch = pytest.mark.skipif(
    importlib.util.find_spec("executorch") is None, reason="executorch is not installed"
)  # fmt: skip
TARGET = on_integers(targets.executorch_xnnpack)
OTHERS = {pool: partial(pool, dilations=2), transposed: partial(transposed, dilations=2),
          curve: partial(curve, without=("gelu, tanh",))}  # fmt: skip
HERE = tuple(OTHERS.get(kind, kind) for kind in KINDS)
ANYWHERE = tuple(kind for kind in HERE if kind is not softmax)
# Ratios of scales that no calibration gives, which the kernels do not take.
REFUSED = {"ratios in [2^-10, 2^8)", "a ratio below 2^8", "s_x / s_y and alpha * s_x / s_y in [2^-8 - 2^7, 2^7]"}


@needs_executorch
def test_drawn_ops_are_what_xnnpack_computes():
    print(f"\n{held_against(ExecuTorchRunner().run, TARGET, REFUSED, HERE)}")


CURVES = (
    "sigmoid", "tanh", "hardswish", "leaky", "steep", "generic leaky", "prelu", "gelu", "elu", "relu", "relu6", "clip",
)  # fmt: skip


@needs_executorch
def test_halves_become_the_codes_that_xnnpack_computes():
    print(f"\n{held_at_ties(ExecuTorchRunner().run, TARGET, every(*CURVES))}")


def softmax_law(target: Any, runner: Any) -> None:
    """Fails where the runner differs; where the kernel is PyTorch's softmax, only by values not halfway between two codes."""
    model, batches = _calibrated(nn.Sequential(nn.Softmax(-1)), target, 50, 3, 17)
    x = 3 * batches[0]
    found = torch.from_numpy(runner.run(qfunc.deploy(target)(model), [x])[0])
    (module,) = (s.module for s in quantizer_nodes(model) if s.module.site.slot == "input")
    emulated, exact = qfunc.emulate(target)(model)(x), torch.softmax(module(x).double(), -1) * 256
    different = found != emulated
    if any(k.unit == Op("softmax") and k.arithmetic.function for k in target.kernels):
        assert not different.any()
    # exp of XNNPACK and of PyTorch, and the orders of their sums, differ by some 2^-22 of what they give.
    assert ((exact - exact.floor() - 0.5).abs() < 1e-4)[different].all()
    assert np.abs((found - emulated).numpy()).max() <= 1 / 256


@needs_executorch
def test_softmax_is_xnnpack_s():
    softmax_law(TARGET, ExecuTorchRunner())


class Tokens(nn.Module):
    """A table, of which an input or fixed positions are the rows, and a layer."""

    def __init__(self, rows: Any, *, adds: bool = False) -> None:
        super().__init__()
        self.word, self.head, self.rows, self.adds = nn.Embedding(8, 32), nn.Linear(32, 4), rows, adds

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Ids [N, T], or embeddings [N, T, 32], -> [N, T, 4]."""
        rows = self.word(self.rows(x))
        return self.head(rows + x if self.adds else rows)


@pytest.mark.parametrize("rows", [lambda x: x, lambda x: x.long(), lambda x: x.view(-1, 2)], ids=["bare", "cast", "view"])
@pytest.mark.parametrize("target", [TARGET, targets.executorch_8da4w(32)], ids=lambda t: t.name)
def test_a_table_that_an_input_indexes_is_refused(target: Any, rows: Any) -> None:
    with pytest.raises(SpecError) as error:
        qfunc.quantize(target)(Tokens(rows))
    assert str(error.value) == (
        f"target {target.name!r}, op 'word': found the kind 'embedding', wanted an op that XnnpackLowering() writes: "
        "ExecuTorch 1.5, backends/xnnpack: the delegate's inputs are real numbers, and it looks no rows up. Look the tokens up "
        "outside, and capture the model from the embeddings on: docs/executorch.md. To simulate it without a file, use "
        "attrs.evolve(target, lowering=None)."
    )


@pytest.mark.parametrize("target", [TARGET, targets.executorch_8da4w(32)], ids=lambda t: t.name)
def test_a_table_of_fixed_positions_is_a_constant(target: Any) -> None:
    model, x = Tokens(lambda x: torch.arange(x.shape[1]), adds=True), torch.randn(1, 5, 32)
    calibrated = qfunc.calibrate([x], progress=False)(qfunc.quantize(target)(model))
    assert "model.pte" in qfunc.deploy(target)(calibrated).files

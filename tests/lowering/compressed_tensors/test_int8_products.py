"""targets.compressed_tensors("W8A8") against vLLM's kernels in exact rationals, which read the bytes of the checkpoint."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import qfunc
from qfunc import targets
from qfunc.testing import check_target
from tests.lowering.compressed_tensors.checkpoints import calibrated, read
from tests.numerics.test_dynamic_products import rounded


def token(x: np.ndarray[Any, Any]) -> tuple[list[int], Fraction]:
    """int8_quant_kernels.cu: s = absmax / 127, q = half-even(x (127 / absmax)), each step in float32; zeros stay zeros."""
    largest = max(Fraction(float(abs(v))) for v in x)
    if not largest:
        return [0] * len(x), Fraction(1)
    inverse = rounded(Fraction(127) / largest)
    return [round(rounded(Fraction(float(v)) * inverse)) for v in x], rounded(largest / 127)


def product(x: np.ndarray[Any, Any], tensors: dict[str, Any], name: str) -> np.ndarray[Any, Any]:
    """ScaledEpilogueBias: s_a (s_b acc) + bias, the product with s_b rounded, then one fused multiply-add."""
    weight, scale = tensors[f"{name}.weight"], tensors[f"{name}.weight_scale"]
    bias = tensors.get(f"{name}.bias", np.zeros(len(weight), np.float32))
    rows = x.reshape(-1, x.shape[-1])
    out = np.empty((len(rows), len(weight)), np.float32)
    for i, row in enumerate(rows):
        codes, s_a = token(row)
        for o, w in enumerate(weight.tolist()):
            acc = sum(a * b for a, b in zip(codes, w, strict=True))
            inner = rounded(Fraction(float(np.float32(acc))) * Fraction(float(scale[o, 0])))
            out[i, o] = float(rounded(s_a * inner + Fraction(float(bias[o]))))
    return out.reshape(*x.shape[:-1], len(weight))


@pytest.mark.thorough
@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 2**20), st.integers(1, 40), st.integers(1, 6), st.booleans(),
    st.sampled_from(("normal", "ties", "zeros", "outlier")),
)  # fmt: skip
def test_no_bit_of_a_product_differs(seed: int, width: int, outputs: int, biased: bool, kind: str) -> None:
    generator = torch.Generator().manual_seed(seed)
    layer, target = nn.Linear(width, outputs, bias=biased), targets.compressed_tensors("W8A8")
    layer.weight.data = torch.randn(outputs, width, generator=generator) * 2.0 ** torch.randint(-9, 9, (outputs, 1))
    x = torch.randn(3, width, generator=generator) * 2.0 ** torch.randint(-12, 12, (3, 1), generator=generator)
    if kind == "ties":
        x = torch.randint(-254, 255, (3, width), generator=generator) / 2
        x[:, 0] = 127.0
    x[0] = 0.0 if kind == "zeros" else x[0]
    x[1, 0] = 1000.0 if kind == "outlier" else x[1, 0]
    done = calibrated(nn.Sequential(layer).eval(), target, x)

    found = qfunc.emulate(target)(done)(x).detach().numpy()

    tensors = read(qfunc.deploy(target)(done).files["model.safetensors"])
    np.testing.assert_array_equal(found, product(x.numpy(), tensors, "0"))


def test_the_laws_of_targets_hold_with_an_engine_that_reads_the_checkpoint() -> None:
    """Two layers and what is between them, run from the files."""

    def run(artifact: Any, inputs: Any) -> list[Any]:
        tensors = read(artifact.files["model.safetensors"])
        hidden = np.maximum(product(np.asarray(inputs[0]), tensors, "0"), 0)
        return [product(hidden, tensors, "2")]

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 7), nn.ReLU(), nn.Linear(7, 5, bias=False)).eval()
    check_target(targets.compressed_tensors("W8A8"), run=run, models=[(model, torch.randn(4, 32))])

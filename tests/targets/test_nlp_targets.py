"""Targets for transformers, on one layer with embeddings, a mask and attention written out."""

from __future__ import annotations

from typing import Any

import torch
from networks.transformer import Transformer

import qfunc
from qfunc import targets
from qfunc.graph.sites import quantizer_nodes
from qfunc.specs import Target


def inputs() -> tuple[Any, ...]:
    tokens = torch.tensor([[1, 2, 3, 4, 5, 6], [10, 9, 8, 7, 0, 0]])
    return tokens, torch.tensor([[1.0] * 6, [1.0] * 4 + [0.0] * 2])


def model() -> Transformer:
    torch.manual_seed(1)
    return Transformer().eval()


def sites(target: Target, slot: str) -> dict[str, Any]:
    made = qfunc.quantize(target)(model())
    return {s.module.site.name: s.module.site.scheme for s in quantizer_nodes(made) if s.module.site.slot == slot}


def test_tensorrt_quantizes_what_linear_layers_matmuls_and_residual_adds_read() -> None:
    found = set(sites(targets.tensorrt_nlp, "input"))
    products = {"layer.query", "layer.key", "layer.value", "layer.softmax", "layer.matmul_1"}
    assert found == {"norm", "layer.norm1", "layer.norm2", "layer.gelu", *products, "layer.dense", "layer.down"}


def test_tensorrt_leaves_the_sum_of_embeddings_and_the_mask() -> None:
    found = set(sites(targets.tensorrt_nlp, "input"))
    assert not found & {"word", "position"}  # token + position
    assert not found & {"layer.matmul", "layer.truediv", "mul"}  # scores / sqrt(d) + mask
    weights = sites(targets.tensorrt_nlp, "weight")
    assert not {"word.weight", "position.weight"} & set(weights)
    assert len(weights) == 7


def test_papers_quantize_linear_layers_and_matmuls_without_exceptions() -> None:
    found = sites(targets.academic_nlp(4, 6), "input")
    assert {(s.format.bits, s.symmetric) for s in found.values()} == {(6, False)}
    assert not set(found) & {"layer.dense", "layer.down", "word", "position"}  # what only additions read
    weights = sites(targets.academic_nlp(4, 6), "weight")
    assert {s.format.bits for s in weights.values()} == {4}
    assert len(weights) == 9


def test_embeddings_have_one_scale_a_dimension() -> None:
    made = qfunc.quantize(targets.academic_nlp(4, 8))(model())
    held = {s.module.site.name: s.module for s in quantizer_nodes(made)}
    words, positions = held["word.weight"], held["position.weight"]
    assert words.scale.shape == positions.scale.shape == (1, 8)
    # Symmetric over the 15 steps of [-8, 7]: absmax / 7.5.
    assert torch.equal(words.scale[0], model().word.weight.detach().abs().amax(0) / 7.5)
    codes, qparams = words.export(model().word.weight)
    assert codes.shape == (11, 8)
    assert ((codes * qparams.scale - model().word.weight).abs() <= qparams.scale * (0.5 + 2**-20)).sum() >= 11 * 8 - 8


def test_both_run_after_calibration() -> None:
    for target in (targets.tensorrt_nlp, targets.academic_nlp(8, 8)):
        made = qfunc.calibrate([inputs()], progress=False)(qfunc.quantize(target)(model()))
        error = (made(*inputs()) - model()(*inputs())).abs().max()
        assert 0 < error < 0.05, target.name  # 8 bits on scores of about 1

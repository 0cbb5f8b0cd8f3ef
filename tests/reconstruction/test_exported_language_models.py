"""reconstruct on exported language models: their ops with weights read an embedding of ids."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from networks.exported import Decoder, Encoder
from torch import Tensor, nn

import qfunc
from qfunc import targets
from qfunc.reconstruction import Blocks, Layers, reconstructed, units
from qfunc.specs import edit
from tests.onnxruntime_target import on_vnni

VARY = {0: torch.export.Dim.AUTO, 1: torch.export.Dim.AUTO}
QUICK = {"iterations": 100, "rounding_lr": 0.1}


def tokens(batch: int, length: int = 6, seed: int = 0) -> dict[str, Tensor]:
    """Ids and a mask in which the first sequence has padding."""
    generator = torch.Generator().manual_seed(seed)
    mask = torch.ones(batch, length, dtype=torch.int64)
    mask[0, -2:] = 0
    return {"input_ids": torch.randint(0, 13, (batch, length), generator=generator), "attention_mask": mask}


def export(model: nn.Module, given: dict[str, Tensor]) -> Any:
    """The program for any number of sequences of any length."""
    return torch.export.export(model, (), given, dynamic_shapes=dict.fromkeys(given, VARY), strict=False)


def quantized(model: nn.Module, target: Any, batches: list[dict[str, Tensor]]) -> Any:
    """The model calibrated for a target."""
    return qfunc.calibrate(batches, progress=False)(qfunc.quantize(target)(export(model, tokens(2, 7))))


@pytest.mark.parametrize("network", [Encoder, Decoder])
def test_each_linear_layer_behind_the_embedding_is_in_a_unit(network: Any) -> None:
    torch.manual_seed(0)
    model = network().eval()
    layers = [name for name, m in model.named_modules() if isinstance(m, nn.Linear)]
    program = qfunc.quantize(targets.academic(3, 8))(export(model, tokens(2, 7)))
    for how in (Layers(), Blocks()):
        assert sorted(op for unit in units(how)(program) for op in unit.ops) == sorted(layers)
    attention = next(unit for unit in units(Blocks())(program) if "dense" in unit.ops)
    assert attention.ops == ("query", "key", "value", "dense")  # the mask, computed from the ids' sizes, parts no block


@pytest.mark.thorough
@pytest.mark.parametrize("method", [qfunc.adaround(**QUICK), qfunc.brecq(**QUICK)])
@pytest.mark.parametrize("network", [Encoder, Decoder])
def test_the_error_decreases(network: Any, method: Any) -> None:
    torch.manual_seed(0)
    model, batches = network().eval(), [tokens(8, seed=seed) for seed in range(4)]
    nearest = quantized(model, targets.academic(3, 8), batches)
    result = qfunc.reconstruct(method, batches, progress=False)(nearest)
    name = "last" if network is Encoder else "logits"
    errors = [sum(float((m(**b)[name] - model(**b)[name]).detach().square().sum()) for b in batches) for m in (nearest, result)]
    assert errors[1] < errors[0] / 2
    assert len(reconstructed(result)) == sum(isinstance(m, nn.Linear) for m in model.modules())


class Scored(nn.Module):
    """Attention over embedded ids whose scores get a bias that is an input."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.qkv, self.out = nn.Embedding(13, 6), nn.Linear(6, 18), nn.Linear(6, 6)

    def forward(self, ids: Tensor, bias: Tensor) -> Tensor:
        x = self.table(ids)
        q, k, v = self.qkv(x).chunk(3, -1)
        return x + self.out((q @ k.transpose(-2, -1) + bias[:, None] * 2.0).softmax(-1) @ v)


def test_a_float_mask_beside_ids_parts_no_block() -> None:
    given = {"ids": torch.zeros(2, 7, dtype=torch.int64), "bias": torch.zeros(2, 7)}
    program = qfunc.quantize(targets.academic(3, 8))(export(Scored(), given))
    assert [unit.ops for unit in units(Blocks())(program)] == [("qkv", "out")]


@on_vnni
def test_a_runtime_of_language_models_computes_the_rounded_codes() -> None:
    torch.manual_seed(0)
    model, batches = Decoder(width=64, heads=4).eval(), [tokens(4, seed=seed) for seed in range(2)]
    target = edit.skip(edit.name("down"))(targets.onnxruntime_nbits(4, 32))  # of 24 inputs
    nearest = quantized(model, target, batches)
    result = qfunc.reconstruct(qfunc.adaround(**QUICK), batches, progress=False)(nearest)
    report = qfunc.verify(target)(result, batches)
    assert report.predicted == len(reconstructed(result)) == 7
    assert not report.disagreements
    assert "bit-exact" in report.verdict

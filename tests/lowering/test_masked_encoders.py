"""Encoders of sentences whose masks are computed from an input, exported for fixed sizes, in runtimes without booleans."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import qfunc
from qfunc import targets
from qfunc.lowering.runner_support import other_kernels

WIDTH, LENGTH, WORDS = 32, 7, 40


class Layer(nn.Module):
    """Attention of four heads with a mask of booleans, and two linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor, seen: Tensor) -> Tensor:
        n, t, _ = x.shape
        q, k, v = (f(x).view(n, t, 4, -1).transpose(1, 2) for f in (self.q, self.k, self.v))
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=seen).transpose(1, 2).reshape(n, t, -1)
        x = self.first(x + self.o(mixed))
        return self.second(x + self.down(F.gelu(self.up(x))))


def grid(mask: Tensor) -> Tensor:
    """As transformers builds the mask of BERT: by indices of all examples and positions, and a condition that holds."""
    rows, columns = torch.arange(mask.shape[0])[:, None, None, None], torch.arange(mask.shape[1])[None, None, None]
    here = torch.arange(mask.shape[1])[None, None, :, None] >= 0
    seen = mask.bool()[rows, columns] & (mask.new_ones((), dtype=torch.bool) & here)
    return seen.expand(mask.shape[0], -1, mask.shape[1], mask.shape[1])


def view(mask: Tensor) -> Tensor:
    """As written by hand."""
    return mask.bool()[:, None, None, :]


class Encoder(nn.Module):
    """Word, position and type embeddings, a layer, and the normalized mean over the words that the mask keeps."""

    types: Tensor
    places: Tensor

    def __init__(self, form: Any, embeds: bool) -> None:
        super().__init__()
        self.form, self.layer, self.embeds = form, Layer(), embeds
        self.word, self.kind, self.place = nn.Embedding(WORDS, WIDTH), nn.Embedding(2, WIDTH), nn.Embedding(12, WIDTH)
        self.register_buffer("types", torch.zeros(1, 12, dtype=torch.int64), persistent=False)
        self.register_buffer("places", torch.arange(12)[None], persistent=False)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        n, t = mask.shape
        words = self.word(ids) if self.embeds else ids
        places = self.places[:, :t]
        kinds = torch.gather(self.types.expand(places.shape[0], -1), 1, places).expand(n, t)
        h = self.layer(words + self.kind(kinds) + self.place(places), self.form(mask))
        kept = mask if mask.is_floating_point() or self.form is grid else mask.bool()
        weight = kept.unsqueeze(-1).to(h.dtype)
        return F.normalize((h * weight).sum(1) / weight.sum(1).clamp(min=1e-9), p=2, dim=1)


CASES = {
    "litert": ("ai_edge_litert", True, torch.int64, 2),
    "litert, one example": ("ai_edge_litert", True, torch.int64, 1),
    "ncnn": ("ncnn", True, torch.float32, 1),
    "executorch_xnnpack": ("executorch", False, torch.float32, 1),
}


def sentences(count: int, embeds: bool, dtype: torch.dtype, seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    kept = torch.randint(3, LENGTH + 1, (count, 1), generator=generator)
    mask = (torch.arange(LENGTH)[None] < kept).to(dtype)
    words = torch.randint(0, WORDS, (count, LENGTH), generator=generator)
    return (words if embeds else torch.randn(count, LENGTH, WIDTH, generator=generator)), mask


@pytest.mark.skipif(bool(other_kernels()), reason="the kernels' arithmetic is that of x86-64 with VNNI")
@pytest.mark.parametrize("form", [grid, view])
@pytest.mark.parametrize("case", CASES)
def test_an_encoder_runs_with_its_mask(case: str, form: Any) -> None:
    """All codes are the runtime's; embeddings of words are looked up outside of an ExecuTorch file."""
    package, embeds, dtype, count = CASES[case]
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    torch.manual_seed(0)
    target, model = getattr(targets, case.split(",")[0]), Encoder(form, embeds).eval()
    batches = [sentences(count, embeds, dtype, seed) for seed in range(3)]
    program = torch.export.export(model, batches[0], strict=False)

    calibrated = qfunc.calibrate(batches, progress=False)(qfunc.quantize(target)(program))
    report = qfunc.verify(target)(calibrated, batches)

    assert sum(r.elements for r in report.of("codes")) > 1000
    assert not any(r.mismatches for r in report.of("codes"))
    assert not report.disagreements
    ran = target.runtime.runner.run(qfunc.deploy(target)(calibrated), list(batches[1]))
    with torch.no_grad():
        assert F.cosine_similarity(torch.as_tensor(ran[0]), program.module()(*batches[1])).min() > 0.98

"""Whole transformers: every code and every output of the emulation is the runtime's, float ops between the integers too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import qfunc
from qfunc.specs import KeepFloat, edit
from tests.lowering.onnxruntime.test_float_kernels import pytestmark as pytestmark
from tests.networks.transformer import Transformer
from tests.onnxruntime_target import ONNXRUNTIME

IN_FLOAT = edit.pipe(ONNXRUNTIME, edit.skip(edit.op("add")), edit.outputs(edit.op("linear"), KeepFloat()))


class Decoder(nn.Module):
    """Norms first, a causal mask, GELU by tanh, gates by sigmoid and tanh, sums that other norms read again."""

    def __init__(self, width: int = 24, heads: int = 3, words: int = 31) -> None:
        super().__init__()
        self.word, self.heads = nn.Embedding(words, width), heads
        self.norms = nn.ModuleList(nn.LayerNorm(width, eps=1e-6) for _ in range(5))
        self.qkv = nn.ModuleList(nn.Linear(width, 3 * width, bias=False) for _ in range(2))
        self.out = nn.ModuleList(nn.Linear(width, width) for _ in range(2))
        self.up = nn.ModuleList(nn.Linear(width, 2 * width) for _ in range(2))
        self.down = nn.ModuleList(nn.Linear(2 * width, width) for _ in range(2))
        self.gate, self.head = nn.Linear(width, width), nn.Linear(width, 7)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.word(tokens)
        for i in range(2):
            parts = self.qkv[i](self.norms[2 * i](x)).chunk(3, -1)
            q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in parts)
            x = x + self.out[i](F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
            x = x + self.down[i](F.gelu(self.up[i](self.norms[2 * i + 1](x)), approximate="tanh"))
        gate = self.gate(x)
        return self.head(self.norms[4](x * torch.sigmoid(gate) + torch.tanh(gate)))


class Rotary(nn.Module):
    """One layer of ModernBERT: queries, keys and values from one product, rotated by angles of computed positions."""

    def __init__(self, width: int = 32, heads: int = 4, words: int = 31) -> None:
        super().__init__()
        self.word, self.norm, self.heads = nn.Embedding(words, width), nn.LayerNorm(width), heads
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width)
        self.register_buffer("steps", 10000 ** (-torch.arange(0, width // heads, 2) * heads / width), persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.norm(self.word(tokens))
        q, k, v = (t.transpose(1, 2) for t in self.qkv(x).view(*x.shape[:2], 3, self.heads, -1).unbind(dim=-3))
        angles = (self.steps[None, :, None] @ torch.arange(tokens.shape[1])[None, None].float()).transpose(1, 2)
        cos, sin = (torch.cat([t, t], -1).unsqueeze(1) for t in (angles.cos(), angles.sin()))
        q, k = (t * cos + torch.cat([-t[..., t.shape[-1] // 2 :], t[..., : t.shape[-1] // 2]], -1) * sin for t in (q, k))
        return x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(x.shape).contiguous())


def encoded(images: int) -> tuple[Tensor, Tensor]:
    tokens = torch.randint(0, 19, (images, 11))
    return tokens, (torch.arange(11)[None] < torch.randint(3, 12, (images, 1))).float()


CASES: dict[str, tuple[Callable[[], nn.Module], Callable[[int], tuple[Tensor, ...]]]] = {
    "encoder": (lambda: Transformer(width=36, heads=3, words=19, length=11, classes=5), encoded),
    "decoder": (Decoder, lambda n: (torch.randint(0, 31, (n, 9)),)),
}


@pytest.mark.thorough
@pytest.mark.parametrize("target", [ONNXRUNTIME, IN_FLOAT], ids=["as it is", "residual stream in float"])
@pytest.mark.parametrize("case", CASES)
def test_not_one_element_differs(case: str, target: Any) -> None:
    torch.manual_seed(5)
    make, inputs = CASES[case]
    model, batches = make().eval(), [inputs(8), inputs(8)]
    calibrated = qfunc.calibrate(batches, progress=False)(qfunc.quantize(target, inputs(2))(model))
    report = qfunc.verify(target)(calibrated, [inputs(8), inputs(5)])
    assert (report.mismatches, report.disagreements, report.float_units) == (0, (), ())
    assert report.predicted >= 7
    assert report.tensors >= 10


def test_reading_codes_between_float_ops_changes_no_unit() -> None:
    """Whether the runtime shares the quantizer of a float tensor depends on the outputs; no product depends on it."""
    torch.manual_seed(5)
    both = {0: torch.export.Dim.AUTO, 1: torch.export.Dim.AUTO}
    program = torch.export.export(Rotary().eval(), (torch.randint(0, 31, (2, 7)),), dynamic_shapes=(both,))
    batches = [torch.randint(0, 31, (2, length)) for length in (9, 12)]
    calibrated = qfunc.calibrate(batches, progress=False)(qfunc.quantize(IN_FLOAT)(program))
    report = qfunc.verify(IN_FLOAT)(calibrated, [*batches, batches[0][:1]])
    assert (report.mismatches, report.disagreements) == (0, ())

"""A small network, calibrated and lowered for each target with a file of qparams, and its own ranges."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from qfunc import targets
from qfunc.lowering.program import Program
from qfunc.specs import DerivedQParams
from tests.lowering.onnx.test_qdq_nodes import parts
from tests.lowering.toolchains.vendor_readers import (
    Range, Ranges, blob_ranges, encodings_0, encodings_1, encodings_2, ppl_cuda, ppl_json, stpu,
)  # fmt: skip

Reader = Callable[[Any], Ranges]
READERS: dict[str, tuple[Reader, ...]] = {
    "tensorrt": (blob_ranges,), "snpe": (encodings_0, encodings_1, encodings_2), "ppl_w8a16": (ppl_json,),
    "ppl_cuda": (ppl_cuda,), "stpu": (stpu,),
}  # fmt: skip
CASES = [(name, reader) for name, readers in READERS.items() for reader in readers]


class Net(nn.Module):
    """What the formats treat apart: transposed and grouped convolutions, a constant factor, a Concat, a Sigmoid."""

    def __init__(self, gain: Any = 0.75) -> None:
        super().__init__()
        self.a, self.t = nn.Conv2d(3, 6, 3, padding=1), nn.ConvTranspose2d(6, 4, 2, 2, groups=2)
        self.b, self.c = nn.Conv2d(10, 5, (1, 3)), nn.Conv2d(5, 5, 3, padding=1, groups=5, bias=False)
        self.gain, self.pool, self.up = nn.Parameter(torch.tensor(gain)), nn.MaxPool2d(2), nn.Upsample(scale_factor=2.0)
        self.fc = nn.Linear(5 * 16 * 8, 7)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.a(x))
        z = self.pool(torch.relu(self.t(y) * -self.gain))  # the gain trains, so that it does not fold
        z = nn.functional.relu6(self.b(torch.cat((y, torch.sigmoid(z)), 1)))
        return self.fc(self.up(self.c(z) + z).flatten(1))


@cache
def made(name: str, gain: Any = 0.75) -> tuple[Any, Any, Any, Any]:
    """(the calibrated model, its Q/DQ model, its sites, the files) of a target's own lowering."""
    torch.manual_seed(0)
    target = getattr(targets, name)
    done, model, sites = parts(target, Net(gain), torch.randn(2, 3, 8, 6))
    return done, model, sites, target.lowering.lower(Program(model, sites))


def own_ranges(done: Any) -> dict[str, tuple[Range, ...]]:
    """The ranges of a model's fake-quantizers, by the names of what they quantize, exactly."""
    found = {}
    for module in done.modules():
        if not hasattr(module, "site") or isinstance(module.site.value, DerivedQParams):
            continue
        fmt, qparams = module.site.scheme.format, module.qparams()
        each = zip(qparams.scale.flatten().tolist(), qparams.zero_point.flatten().tolist(), strict=True)
        exact = [(Fraction(s), int(z)) for s, z in each]
        found[module.site.name] = tuple(Range(s, s * (fmt.qmin - z), s * (fmt.qmax - z)) for s, z in exact)
    return found


def as_float(ranges: tuple[Range, ...]) -> list[tuple[float, float, float]]:
    return [(float(r.step), float(r.low), float(r.high)) for r in ranges]

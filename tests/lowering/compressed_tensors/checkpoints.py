"""Networks for the tests of checkpoints, and readers of their bytes that share no code with the library."""

from __future__ import annotations

import json
import struct
from typing import Any

import numpy as np
import torch
from torch import nn

import qfunc
from qfunc import targets

SCHEMES = (
    "W4A16",
    "W4A16_ASYM",
    "W8A8",
    "FP8",
    "FP8_CHANNEL",
    "FP8_DYNAMIC",
    "MXFP4A16",
    "NVFP4A16",
    "W4AFP8",
    "MXFP4",
    "NVFP4",
)
_DTYPES = {"F32": "<f4", "I32": "<i4", "I64": "<i8", "I8": "i1", "U8": "u1", "F8_E4M3": "u1"}


def network() -> nn.Module:
    """Two layers with a bias and without, and a float parameter between them."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 24), nn.LayerNorm(24), nn.Linear(24, 64), nn.Linear(64, 5, bias=False)).eval()


def layers() -> nn.Module:
    """Layers alone, of sizes that 32 divides, whose weights reach over several powers of two."""
    torch.manual_seed(1)
    made = nn.Sequential(nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 64, bias=False))
    for layer in (made[0], made[2]):
        layer.weight.data *= 2.0 ** torch.randint(-8, 8, (len(layer.weight), 1))
    return made.eval()


def calibrated(model: nn.Module, target: Any, x: torch.Tensor) -> Any:
    """The model, quantized and calibrated on one batch."""
    return qfunc.calibrate([x], progress=False)(qfunc.quantize(target)(model))


def deployed(scheme: str, model: nn.Module, config: str = "{}") -> tuple[Any, Any]:
    """(the simulation, the artifact) of a network of 64 inputs."""
    target = targets.compressed_tensors(scheme, 32, config)
    simulation = calibrated(model, target, torch.randn(2, 3, 64, generator=torch.Generator().manual_seed(2)))
    return simulation, qfunc.deploy(target)(simulation)


def read(content: bytes) -> dict[str, np.ndarray[Any, Any]]:
    """The tensors of a safetensors file, from its bytes; E4M3 as bytes."""
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + length])
    header.pop("__metadata__")
    return {
        name: np.frombuffer(content[8 + length :][slice(*e["data_offsets"])], _DTYPES[e["dtype"]]).reshape(e["shape"])
        for name, e in header.items()
    }


def e4m3(code: int) -> float:
    """The value of a byte of E4M3: a sign, four bits of exponent with bias 7, three of mantissa."""
    exponent, mantissa = code >> 3 & 15, code & 7
    assert code & 127 != 127  # NaN
    value = (8 + mantissa) * 2.0 ** (exponent - 10) if exponent else mantissa * 2.0**-9
    return -value if code >> 7 else value


def e2m1(code: int) -> float:
    """The value of four bits of E2M1: a sign, two bits of exponent with bias 1, one of mantissa."""
    exponent, mantissa = code >> 1 & 3, code & 1
    value = (2 + mantissa) * 2.0 ** (exponent - 2) if exponent else mantissa * 0.5
    return -value if code >> 3 else value


def weight_of(tensors: dict[str, Any], name: str, scheme: str) -> list[list[float]]:
    """A weight, entry by entry, by the definition of its format, in float64."""
    held = {key.removeprefix(f"{name}."): value for key, value in tensors.items() if key.startswith(f"{name}.")}
    scale = np.asarray(held["weight_scale"])
    if scheme.startswith("W4"):
        rows, columns = (int(n) for n in held["weight_shape"])
        words, zeros = held["weight_packed"].astype(np.uint32), held.get("weight_zero_point")

        def half(row: int, column: int, source: Any) -> int:
            return (int(source[row, column // 8]) >> 4 * (column % 8) & 15) - 8

        offsets = None if zeros is None else zeros.astype(np.uint32).T
        return [
            [
                (half(o, k, words) - (0 if offsets is None else half(k // 32, o, offsets))) * float(scale[o, k // 32])
                for k in range(columns)
            ]
            for o in range(rows)
        ]
    if "FP4" in scheme:
        packed = held["weight_packed"]
        block = 32 if scheme.startswith("MX") else 16
        step = e4m3 if block == 16 else (lambda exponent: 2.0 ** (exponent - 127))
        steps = [[step(int(s)) for s in row] for row in scale]
        outer = 1.0 if block == 32 else float(held["weight_global_scale"][0])
        return [
            [e2m1(int(row[k // 2]) >> 4 * (k % 2) & 15) * steps[o][k // block] / outer for k in range(2 * len(row))]
            for o, row in enumerate(packed)
        ]
    codes = held["weight"]
    value = (lambda c: e4m3(int(c))) if scheme.startswith("FP8") else float
    return [[value(c) * float(scale.flat[o if scale.size > 1 else 0]) for c in row] for o, row in enumerate(codes)]

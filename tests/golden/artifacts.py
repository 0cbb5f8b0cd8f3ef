"""The golden artifacts: one small network deployed to every target, byte by byte.

    python tests/golden/artifacts.py [WORD]   rewrites tests/golden/artifacts, of targets whose names hold WORD

Those of LiteRT need the extra `litert`.

Weights and inputs are multiples of 1/8, so every sum of the float network is exact in float32
whatever its order: statistics, scales and bytes are the same on any machine.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

import onnx
import torch
from torch import Tensor, nn

import qfunc
from qfunc import targets
from qfunc.specs import Target
from qfunc.targets.onnxruntime.target import onnxruntime

sys.path.insert(0, str(Path(__file__).parents[2]))
from tests.golden.tflite_text import text_of

PLACE = Path(__file__).parent / "artifacts"
FAMILIES = {"academic_w4a4": targets.academic(4, 4), "academic_nlp_w8a8": targets.academic_nlp(8, 8)}
TARGETS: dict[str, Target] = {name: value for name in targets.__all__ if isinstance(value := getattr(targets, name), Target)}
TARGETS |= FAMILIES | {"onnxruntime": onnxruntime}  # by its own module: tests may narrow the other


class Net(nn.Module):
    """A residual block, both kinds of pools and a linear layer; every size differs.  `ceil`: NNIE's pools round sizes up."""

    def __init__(self, ceil: bool = False) -> None:
        super().__init__()
        self.stem, self.body = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 4, (1, 3), padding=(0, 1), bias=False)
        self.pool, self.mean, self.head = nn.MaxPool2d(2, ceil_mode=ceil), nn.AdaptiveAvgPool2d(1), nn.Linear(4, 5)
        for seed, parameter in enumerate(self.parameters()):
            parameter.data = dyadic(tuple(parameter.shape), seed)

    def forward(self, x: Tensor) -> Tensor:
        """Logits [n, 5] of images [n, 3, 16, 8]."""
        x = torch.relu(self.stem(x))
        x = self.pool(torch.relu(self.body(x) + x))
        return self.head(self.mean(x).flatten(1))


def dyadic(shape: tuple[int, ...], seed: int) -> Tensor:
    """Multiples of 1/8 in [-1, 1], by the remainders of a linear congruence: no generator of any library."""
    steps = torch.arange(torch.Size(shape).numel(), dtype=torch.int64)
    return (((steps * 1103 + seed * 577 + 12345) * 7919 % 65537 % 17 - 8).float() / 8).reshape(shape)


def deployed(target: Target) -> dict[str, bytes]:
    """The files of the small network on a target; the report of versions is left out."""
    model = qfunc.quantize(target)(Net(ceil=target.name == "nnie").eval())
    batches = [dyadic((2, 3, 16, 8), seed) for seed in (101, 102)]
    files = qfunc.deploy(target)(qfunc.calibrate(batches, progress=False)(model)).files
    return {name: content for name, content in files.items() if name != "qfunc.json"}


def readable(files: dict[str, bytes]) -> dict[str, str]:
    """What stands beside the bytes: models in text form."""
    models = {name: onnx.load_from_string(content) for name, content in files.items() if name.endswith(".onnx")}
    flat = {f"{name}.txt": text_of(content) for name, content in files.items() if name.endswith(".tflite")}
    return {f"{name}.txt": _text(model) for name, model in models.items()} | flat


def _text(model: Any) -> str:
    return str(onnx.printer.to_text(model)) + "\n"


def write(word: str = "", place: Path = PLACE) -> None:
    """Rewrites those of targets whose names hold the word."""
    for name, target in TARGETS.items():
        if word not in name:
            continue
        files = deployed(target)
        shutil.rmtree(place / name, ignore_errors=True)
        (place / name).mkdir(parents=True)
        for file, content in files.items():
            (place / name / file).write_bytes(content)
        for file, text in readable(files).items():
            (place / name / file).write_text(text)
        print(f"{name}: {', '.join(sorted(files))}")


if __name__ == "__main__":
    sys.exit(write(*sys.argv[1:]))

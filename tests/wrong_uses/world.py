"""What wrong uses are tried on: small models at every step, and a folder with files of all sorts."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from attrs import evolve
from torch import Tensor, nn

import qfunc
from qfunc.errors import QfuncError
from qfunc.specs import Target
from tests.onnxruntime_target import ONNXRUNTIME

TARGET = ONNXRUNTIME
Row = tuple[str, Callable[[Any], object], str, str]
"""What is wrong in words, the use, the kind of its error and the whole message."""


class Outer(nn.Module):
    """A model of parts: one of its two heads is the other, one part never runs."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU())
        self.heads = nn.ModuleList([nn.Linear(4, 2)])
        self.heads.append(self.heads[0])
        self.pool = nn.MaxPool2d(2)
        self.spare = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))

    def forward(self, x: Tensor) -> Tensor:
        rows = self.pool(self.backbone(x)).mean((2, 3))
        return self.heads[0](rows[rows.sum(1) > 0])


def world(folder: Path) -> Any:
    """Everything, by name; `{folder}` stands for the folder in messages."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 5)).eval()
    batches = [torch.randn(2, 3, 6, 6)]
    quantized = qfunc.quantize(TARGET)(net)
    calibrated = qfunc.calibrate(batches)(quantized)
    outer = Outer().eval()
    tied = copy.deepcopy(outer)
    tied.rest = nn.Linear(4, 4)
    tied.rest.weight = tied.spare[0].weight
    artifact = qfunc.deploy(TARGET)(calibrated)
    (folder / "notes.txt").write_text("mine")
    (folder / "mine").mkdir()
    (folder / "mine" / "notes.txt").write_text("mine")
    for name in ("saved", "cut", "torn"):
        qfunc.save(folder / name)(calibrated)
    (folder / "cut" / "qfunc.json").write_text("{")
    (folder / "torn" / "model.safetensors").write_bytes(b"torn")
    artifact.save(folder / "deployed")
    return SimpleNamespace(
        net=net, batches=batches, x=batches[0], quantized=quantized, calibrated=calibrated, artifact=artifact, outer=outer,
        emulation=qfunc.emulate(TARGET)(calibrated), inside=qfunc.quantize(TARGET, submodules="backbone")(outer), tied=tied,
        folder=folder,
    )  # fmt: skip


def told(use: Callable[[Any], object], w: Any) -> tuple[str, str]:
    """The kind and the text of a use's error."""
    try:
        found = use(w)
    except QfuncError as e:
        return type(e).__name__, str(e).replace(str(w.folder), "{folder}")
    except Exception as e:
        return "BARE", f"{type(e).__name__}: {e}"
    return "SILENT", repr(found)[:80]


def calibrated(target: Target, w: Any) -> Any:
    """The network calibrated for a target."""
    return qfunc.calibrate(w.batches)(qfunc.quantize(target)(w.net))


def bare() -> Target:
    """A target that writes no artifact."""
    return evolve(TARGET, lowering=None)


def in_half(w: Any) -> Any:
    """The network calibrated in half precision."""
    return qfunc.calibrate([w.x.half()])(qfunc.quantize(TARGET)(copy.deepcopy(w.net).half()))


def broken(net: nn.Module) -> nn.Module:
    """A copy with a weight that is no number."""
    copied = copy.deepcopy(net)
    next(copied.parameters()).data.flatten()[0] = torch.nan
    return copied


def scripted(w: Any) -> Any:
    """What TorchScript makes of a module, which torch itself warns of."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.jit.trace(nn.ReLU(), w.x)


def exhausted(batches: list[Tensor]) -> Iterator[Tensor]:
    """A generator that somebody has read."""
    given = iter(batches)
    list(given)
    return given

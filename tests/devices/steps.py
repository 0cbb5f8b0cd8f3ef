"""Steps whose results on the test accelerator are those of the CPU, because it computes there.

Another device adds in another order, and QDrop draws other numbers there: `benchmarks/gpu.py` states what that changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import qfunc
from qfunc import recipes, targets
from qfunc.specs import Target
from tests.devices.laws import Counts, Network, convolutional, differing, transformer

NARROW = targets.academic(4, 8)
BUDGET = qfunc.SizeBudget(mean_bits=3)


class Gated(nn.Module):
    """A feed-forward layer behind an RMSNorm, and a residual addition."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up = nn.RMSNorm(32), nn.Linear(32, 64, bias=False)
        self.down = nn.Linear(64, 32, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return [N, T, 32]."""
        return x + self.down(F.silu(self.up(self.norm(x))))


class Stream(nn.Module):
    """A residual stream that `rotate` finds."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.blocks = nn.Linear(8, 32, bias=False), nn.Sequential(Gated(), Gated())
        self.norm, self.last = nn.RMSNorm(32), nn.Linear(32, 7)

    def forward(self, x: Tensor) -> Tensor:
        """Return [N, T, 7]."""
        return self.last(self.norm(self.blocks(self.first(x))))


def stream() -> tuple[nn.Module, list[Tensor]]:
    """A network and batches, from a fixed seed."""
    torch.manual_seed(0)
    return Stream().eval(), [torch.randn(4, 5, 8)]


def chain() -> tuple[nn.Module, list[Tensor]]:
    """Convolutions whose channels `equalize` scales."""
    torch.manual_seed(0)
    layers = nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 1)
    return nn.Sequential(*layers).eval(), [torch.randn(2, 3, 9, 9)]


def calibrated(device: str, network: Network, target: Target = NARROW) -> tuple[nn.Module, list[Tensor]]:
    """The quantized network and its batches there."""
    model, batches = network()
    moved = [x.to(device) for x in batches]
    return qfunc.calibrate(moved, progress=False)(qfunc.quantize(target)(model.to(device))), moved


def trained(device: str) -> dict[str, Tensor]:
    """Two steps of LSQ."""
    model, batches = calibrated(device, convolutional, recipes.lsq()(targets.onnxruntime))
    optimizer = torch.optim.SGD(qfunc.parameter_groups(model.train(), lr=0.01))
    for x in batches:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
    return model.state_dict()


def of_float(step: Callable[[list[Tensor]], Any], network: Network, device: str) -> Any:
    """What a step makes of a float network."""
    model, batches = network()
    return _state(step([x.to(device) for x in batches])(model.to(device)))


def of_calibrated(step: Callable[[list[Tensor]], Any], network: Network, device: str) -> Any:
    """What a step makes of a calibrated network."""
    model, batches = calibrated(device, network)
    return _state(step(batches)(model))


def _state(found: Any) -> Any:
    return found.state_dict() if isinstance(found, nn.Module) else str(found)


def same(step: Callable[[str], Any], device: str) -> Counts:
    """The counts of a step; a report is one element."""
    found, wanted = step(device), step("cpu")
    return (1, int(found != wanted)) if isinstance(wanted, str) else differing(found, wanted)


def steps() -> Iterator[tuple[str, Callable[[str], Counts]]]:
    """Yield the name and the law of each step."""
    yield "training", partial(same, trained)
    floats: dict[str, tuple[Callable[[list[Tensor]], Any], Network]] = {
        "equalize": (lambda _: qfunc.equalize(), chain),
        "smooth_quant": (lambda x: qfunc.smooth_quant(x, progress=False), transformer),
        "rotate": (lambda _: qfunc.rotate(), stream),
        "awq": (lambda x: qfunc.awq(targets.onnxruntime_nbits(4, 16), x, progress=False), transformer),
        "diagnose": (lambda x: qfunc.diagnose(NARROW, x, progress=False), chain),
    }
    for name, (step, network) in floats.items():
        yield name, partial(same, partial(of_float, step, network))
    reads: dict[str, tuple[Callable[[list[Tensor]], Any], Network]] = {
        "explain": (lambda _: qfunc.explain, convolutional),
        "compare": (lambda x: qfunc.compare(x, progress=False), convolutional),
        "sensitivity": (lambda x: qfunc.sensitivity(x, progress=False), convolutional),
        "correct_bias": (lambda x: qfunc.correct_bias(x, progress=False), convolutional),
        "gptq": (lambda x: qfunc.gptq(x, progress=False), transformer),
        "mixed_precision": (
            lambda x: qfunc.mixed_precision(x, bits=(2, 4), budget=BUDGET, progress=False), convolutional,
        ),
        "mixed_precision, HessianTrace": (
            lambda x: qfunc.mixed_precision(x, bits=(2, 4), budget=BUDGET, loss=qfunc.HessianTrace(), progress=False),
            convolutional,
        ),
    }  # fmt: skip
    for method in (qfunc.adaround, qfunc.brecq):  # QDrop feels the order of sums, which is another one on the CPU
        made = method(iterations=3)
        reads[f"reconstruct, {method.__name__}"] = partial(_reconstructed, made), convolutional
    for name, (step, network) in reads.items():
        yield name, partial(same, partial(of_calibrated, step, network))


def _reconstructed(method: Any, batches: list[Tensor]) -> Any:
    return qfunc.reconstruct(method, batches, progress=False)

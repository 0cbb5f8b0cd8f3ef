"""What a device must compute as the CPU does: each law returns (elements compared, elements that differ)."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor, nn

import qfunc
from qfunc import targets
from qfunc.errors import QfuncError
from qfunc.numerics import fake_quantize
from qfunc.numerics.qparams import of_tensor
from qfunc.ops.opset import OPS
from qfunc.specs import Int, PerBlock, PerChannel, PerTensor, Scale, Scheme, Target, ZeroPoint, edit
from qfunc.specs.formats import E4M3FN
from tests.execution.processes import ESTIMATORS, TARGET

Counts = tuple[int, int]
Network = Callable[[], tuple[nn.Module, list[Tensor]]]
Kernels = Callable[[], AbstractContextManager[Any]]
SCHEMES = {
    "int8": Scheme(Int(8)),
    "uint8": Scheme(Int(8, signed=False), zero_point=ZeroPoint()),
    "channels": Scheme(Int(4), Scale(PerChannel(0))),
    "blocks": Scheme(Int(4), Scale(PerBlock(1, 16)), ZeroPoint()),
    "fp8": Scheme(E4M3FN, Scale(PerTensor())),
}
EMULATED = {
    "onnxruntime": targets.onnxruntime,
    "litert": targets.litert,
    "executorch_xnnpack": targets.executorch_xnnpack,
    "ncnn": targets.ncnn,
    "tosa": targets.tosa,
    "openvino": targets.openvino,
}


RECURRENT = frozenset(["lstm", "gru", "rnn"])
"""Kinds of ops that test accelerators do not have."""


class Behind(nn.Module):
    """An op behind a convolution, which quantizes its input."""

    def __init__(self, op: Callable[[Tensor], Any]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.op = nn.Conv2d(3, 3, 1), op

    def forward(self, x: Tensor) -> Any:
        """Return what the op returns."""
        return self.op(self.first(x))


class Residual(nn.Module):
    """Convolutions, a residual addition, pooling, and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.head = nn.Linear(8, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Return [N, 10]."""
        x = torch.relu(self.first(x))
        x = nn.functional.max_pool2d(torch.relu(x + self.second(x)), 2)
        return self.head(x.mean((2, 3)))


class Encoder(nn.Module):
    """Attention with a softmax, a layer norm and GELU, without sizes that vary."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Return [N, T, width]."""
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        x = x + self.out((q @ k.transpose(1, 2) / 6.0).softmax(-1) @ v)
        return x + self.down(nn.functional.gelu(self.up(x)))


def convolutional() -> tuple[nn.Module, list[Tensor]]:
    """A network and batches, from a fixed seed."""
    torch.manual_seed(0)
    return Residual().eval(), [torch.randn(4, 3, 16, 16) for _ in range(2)]


def transformer() -> tuple[nn.Module, list[Tensor]]:
    """A network and batches, from a fixed seed."""
    torch.manual_seed(0)
    return Encoder().eval(), [torch.randn(4, 12, 32) for _ in range(2)]


def wide() -> tuple[nn.Module, list[Tensor]]:
    """Sums of so many products that float32 does not hold them all, and weights and inputs of one sign."""
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Conv2d(96, 8, 5), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 12 * 12, 16))
    with torch.no_grad():
        for p in layers.parameters():
            p.abs_()
    return layers.eval(), [torch.rand(2, 96, 16, 16) for _ in range(2)]


def integral(network: tuple[nn.Module, list[Tensor]]) -> tuple[nn.Module, list[Tensor]]:
    """A network and batches of small integers: float32 sums are exact in every order, also in TF32 products."""
    model, batches = network
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.randint(-3, 4, p.shape))
    return model, [torch.randint(-4, 5, x.shape).float() for x in batches]


def differing(found: Any, wanted: Any) -> Counts:
    """Compare tensors bit by bit, in nested tuples and dicts."""
    if isinstance(wanted, Tensor):
        a, b = (t.detach().cpu().contiguous() for t in (found, wanted))
        if a.shape != b.shape or a.dtype != b.dtype:
            return b.numel(), b.numel()
        whole = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[a.element_size()]
        return b.numel(), int((a.view(whole) != b.view(whole)).sum())
    pairs = [(found[k], wanted[k]) for k in wanted] if isinstance(wanted, dict) else list(zip(found, wanted, strict=True))
    counts = [differing(a, b) for a, b in pairs if b is not None]
    return sum(n for n, _ in counts), sum(n for _, n in counts)


def values(seed: int) -> Tensor:
    """Values with ties, zeros, huge and subnormal numbers."""
    x = torch.randn(64, 48, generator=torch.Generator().manual_seed(seed))
    x[0] = torch.arange(48) * 0.5  # ties at a scale of 1
    x[1, :4] = torch.tensor([0.0, -0.0, 1e-40, 3e38])
    return x


def same_codes(scheme: Scheme, device: str) -> Counts:
    """Qparams of a tensor, and its values rounded to them."""
    total = [0, 0]
    for seed in range(4):
        x = values(seed)
        qparams = of_tensor(x, scheme)
        moved = type(qparams)(*(None if p is None else p.to(device) for p in qparams))
        pairs = [(of_tensor(x.to(device), scheme), qparams)]
        pairs += [((fake_quantize(x.to(device), moved, scheme),), (fake_quantize(x, qparams, scheme),))]
        for found, wanted in pairs:
            counts = differing(tuple(found), tuple(wanted))
            total = [a + b for a, b in zip(total, counts, strict=True)]
    return total[0], total[1]


def same_estimates(name: str, device: str) -> Counts:
    """Qparams of an estimator after two batches of small integers, whose sums are exact in every order."""
    target, found = edit.activations(estimator=ESTIMATORS[name])(TARGET), []
    for place in ("cpu", device):
        model, batches = integral(convolutional())
        quantized = qfunc.quantize(target)(model.to(place))
        found.append(qfunc.calibrate([x.to(place) for x in batches], progress=False)(quantized).state_dict())
    return differing(found[1], found[0])


@cache
def on_cpu(target: Target, network: Network) -> tuple[nn.Module, list[Tensor], list[Any]]:
    """A model calibrated on the CPU, its batches, and what its emulation returns there."""
    model, batches = network()
    calibrated = qfunc.calibrate(batches, progress=False)(qfunc.quantize(target)(model))
    exact = qfunc.emulate(target)(calibrated)
    return calibrated, batches, [exact(x) for x in batches]


def same_emulation(target: Target, network: Network, device: str, kernels: Kernels = nullcontext) -> Counts:
    """The emulation, on a device and with other kernels of torch, of a model calibrated on the CPU."""
    calibrated, batches, wanted = on_cpu(target, network)
    emulation = qfunc.emulate(target)(calibrated)
    with kernels():
        moved = emulation.to(device)
        return differing([moved(x.to(device)) for x in batches], wanted)


def emulated_there(target: Target, network: Network, device: str) -> Counts:
    """The emulation of a model that was calibrated on the device, with the CPU's qparams."""
    calibrated, batches, wanted = on_cpu(target, network)
    found = qfunc.emulate(target)(copy.deepcopy(calibrated).to(device))
    return differing([found(x.to(device)) for x in batches], wanted)


def same_kinds(target: Target, device: str) -> Counts:
    """The emulation of a convolution with an op behind it, for each op that the target computes."""
    total, x = [0, 0], torch.randn(2, 3, 5, 6, generator=torch.Generator().manual_seed(0))
    for op in OPS:
        if op.kind in RECURRENT:
            continue
        model = Behind(op.example).eval()
        try:
            quantized = qfunc.quantize(target, example_inputs=(x,))(model)
            exact = qfunc.emulate(target)(qfunc.calibrate([x], progress=False)(quantized))
            wanted = exact(x)
        except QfuncError:  # the target has no such op
            continue
        counts = differing(exact.to(device)(x.to(device)), wanted)
        total = [a + b for a, b in zip(total, counts, strict=True)]
    return total[0], total[1]


def same_artifact(target: Target, device: str) -> Counts:
    """The files, the report of `verify` and the sweep's value of a model on the device; each counts as one element."""
    here, batches, _ = on_cpu(target, convolutional)
    model = convolutional()[0]
    there, moved = copy.deepcopy(here).to(device), [x.to(device) for x in batches]
    pairs: list[tuple[Any, Any]] = [(qfunc.deploy(target)(there).files, qfunc.deploy(target)(here).files)]
    runner: Any = target.runtime.runner
    verified = qfunc.verify(target, latency=False)  # times differ
    if not getattr(runner, "missing", str)():
        pairs += [(str(verified(there, moved)), str(verified(here, batches)))]
        each = ((copy.deepcopy(model).to(device), moved), (model, batches))
        rows = [qfunc.sweep([target], given, runs=1, progress=False)(m).rows for m, given in each]
        pairs += [(a.why, b.why) for a, b in zip(*rows, strict=True)]
    return len(pairs), sum(a != b for a, b in pairs)


def laws() -> Iterator[tuple[str, Callable[[str], Counts]]]:
    """Yield the name of each law, and the law of a device."""
    for name, scheme in SCHEMES.items():
        yield f"qparams and values, {name}", partial(same_codes, scheme)
    for name in ESTIMATORS:
        yield f"estimator {name}", partial(same_estimates, name)
    for name, (target, network) in emulated().items():
        yield f"emulation, {name}", partial(same_emulation, target, network)
        yield f"emulation made there, {name}", partial(emulated_there, target, network)
    yield "emulation of each op, onnxruntime", partial(same_kinds, EMULATED["onnxruntime"])
    for name, target in EMULATED.items():
        yield f"artifact, {name}", partial(same_artifact, target)


def emulated() -> dict[str, tuple[Target, Network]]:
    """Return the targets and networks whose emulations are compared."""
    found: dict[str, tuple[Target, Network]] = {}
    for name, target in EMULATED.items():
        found |= {f"{name}, {n.__name__}": (target, n) for n in (convolutional, wide)}
    found |= {f"{name}, transformer": (EMULATED[name], transformer) for name in ("onnxruntime", "litert", "ncnn")}
    found["onnxruntime_nbits, transformer"] = targets.onnxruntime_nbits(4, 16), transformer
    found["gguf Q4_0, transformer"] = targets.gguf("Q4_0"), transformer
    return found

"""ExecuTorch's 4-bit layers with inputs quantized at run time: drawn products and a transformer block against the runtime.

QFUNC_EXAMPLES=1000 python -m pytest -n 0 tests/lowering/xnnpack/test_executorch_8da4w.py
"""

from __future__ import annotations

import importlib.util
import json
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from attrs import evolve
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import qfunc
from qfunc import targets
from qfunc.errors import DeployError, SpecError
from qfunc.graph.sites import quantizer_nodes
from qfunc.lowering import QdqLowering
from qfunc.lowering.runner_support import other_kernels
from qfunc.specs import edit
from qfunc.targets.executorch.pte import delegate_of
from qfunc.targets.executorch.schema import read
from qfunc.targets.runtimes import ExecuTorchRunner, TfliteLowering
from tests.lowering.drawn_law import EXAMPLES
from tests.onnxruntime_target import REASON

INSTALLED = importlib.util.find_spec("executorch") is not None
needs_executorch = pytest.mark.skipif(not INSTALLED, reason="executorch is not installed")
needs_vnni = pytest.mark.skipif(bool(other_kernels() or REASON), reason="the kernels' arithmetic is that of x86-64 with VNNI")

BATCHES = ((3,), (1,), (2, 5), (1, 1), (2, 3, 4))
KINDS = ("normal", "ties", "zeros", "positive", "constant", "huge", "tiny", "mixed", "outlier")


def inputs(kind: str, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Inputs of one kind: rows that differ in range and place, and their special cases."""
    x = torch.randn(shape, generator=generator)
    rows = (*shape[:-1], 1)
    power = torch.randint(-12, 12, rows, generator=generator).float()
    match kind:
        case "ties":  # a span of 255 and entries at half steps
            x = torch.randint(-200, 200, shape, generator=generator) / 2
            x[..., 0], x[..., 1] = -100.0, 155.0
        case "zeros":
            x = torch.where(torch.rand(rows, generator=generator) < 0.5, 0.0, x)
        case "positive":
            x = x.abs() + torch.rand(rows, generator=generator)
        case "constant":
            x = torch.randn(rows, generator=generator).expand(shape).contiguous()
        case "huge":
            x = x / x.abs().amax(-1, keepdim=True) * 2.0 ** (120 + power.abs() % 7)
        case "tiny":
            x = x / x.abs().amax(-1, keepdim=True) * 2.0 ** (-115 - power.abs() * 3)
        case "mixed":
            x = (x + 3 * torch.randn(rows, generator=generator)) * 2.0**power
        case "outlier":
            x[..., 3] = 1000.0
    return x


def difference(
    seed: int, block: int, blocks: int, outputs: int, batch: tuple[int, ...], kind: str, biased: bool,
    runner: Any = ExecuTorchRunner(),
) -> tuple[int, int]:  # fmt: skip
    """Return (outputs that differ, outputs) of one product, emulated and by ExecuTorch."""
    generator = torch.Generator().manual_seed(seed)
    target = targets.executorch_8da4w(block)
    target = target if runner.machine is None else edit.cpu(runner.machine.cpu)(target)
    layer = nn.Linear(block * blocks, outputs, bias=biased)
    spread = 2.0 ** torch.randint(-10, 10, (outputs, blocks), generator=generator)
    weight = torch.randn(outputs, block * blocks, generator=generator) * spread.repeat_interleave(block, 1)
    weight[0, :block] = 0.0
    weight[-1] = weight[-1].abs().sign() * spread[-1].repeat_interleave(block)  # the largest sums of a block
    layer.weight.data = weight
    if biased:
        layer.bias.data = torch.randn(outputs, generator=generator)
    x = inputs(kind, (*batch, block * blocks), generator)
    calibrated = qfunc.calibrate([x], progress=False)(qfunc.quantize(target)(layer))
    with torch.no_grad():
        found = qfunc.emulate(target)(calibrated)(x).numpy()
    (wanted,) = runner.run(qfunc.deploy(target)(calibrated), [x])
    assert np.isfinite(wanted).all() or kind == "huge"
    return int((found != wanted).sum()), wanted.size


@needs_executorch
@needs_vnni
@settings(max_examples=EXAMPLES or 30, deadline=None)
@given(
    st.integers(0, 2**20), st.sampled_from((32, 64, 128)), st.integers(1, 6), st.integers(1, 37), st.sampled_from(BATCHES),
    st.sampled_from(KINDS), st.booleans(),
)  # fmt: skip
def test_drawn_products_are_those_of_executorch(seed, block, blocks, outputs, batch, kind, biased):
    assert difference(seed, block, blocks, outputs, batch, kind, biased)[0] == 0


class RmsNorm(nn.Module):
    """x / sqrt(mean(x^2) + eps) * weight."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(1 + 0.1 * torch.randn(width))

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.weight


class Block(nn.Module):
    """A block of a language model: attention, and a gated layer."""

    def __init__(self, curve: Any = F.silu, width: int = 64, heads: int = 4, inner: int = 96) -> None:
        super().__init__()
        self.curve, self.heads, self.before, self.between = curve, heads, RmsNorm(width), RmsNorm(width)
        self.q, self.k, self.v, self.o = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.gate, self.up = (nn.Linear(width, inner, bias=False) for _ in range(2))
        self.down = nn.Linear(inner, width)

    def forward(self, x: Tensor) -> Tensor:
        """[N, T, D] -> [N, T, D]."""
        batch, length, width = x.shape
        y = self.before(x)
        q, k, v = (f(y).view(batch, length, self.heads, -1).transpose(1, 2) for f in (self.q, self.k, self.v))
        weights = F.softmax(q @ k.transpose(-1, -2) / 4.0, -1)
        x = x + self.o((weights @ v).transpose(1, 2).reshape(batch, length, width))
        y = self.between(x)
        return x + self.down(self.curve(self.gate(y)) * self.up(y))


def block_on(target, curve=F.silu):
    torch.manual_seed(0)
    x = torch.randn(2, 7, 64)
    return qfunc.calibrate([x], progress=False)(qfunc.quantize(target)(Block(curve).eval())), x


@needs_executorch
@needs_vnni
def test_a_transformer_block_is_exact_as_a_whole():
    target = targets.executorch_8da4w()
    calibrated, x = block_on(target)
    report = qfunc.verify(target)(calibrated, [x, x[:1] * 3])
    verdict = "97.4 % of the multiply-accumulates run on integers; bit-exact: 0 of 12,096 elements differ"
    assert (report.verdict, report.float_units) == (verdict, ())


@needs_executorch
@needs_vnni
def test_each_layer_is_exact_on_the_inputs_that_the_runtime_gives_it():
    """Behind a curve that no kernel describes."""
    target = targets.executorch_8da4w()
    calibrated, x = block_on(target, F.mish)
    report = qfunc.verify(target)(calibrated, [x, x[:1] * 3])
    alone = {row.name: (row.mismatches, row.exact) for row in report.of("alone")}
    layers = ("q", "k", "v", "o", "gate", "up", "down")
    assert {name: alone[name] for name in layers} == dict.fromkeys(layers, (0, True))
    assert "97.4 % of the multiply-accumulates run on integers; bit-exact outside 1 float unit" in report.verdict
    assert not any(row.mismatches for row in report.of("float"))


@needs_executorch
@needs_vnni
def test_layers_without_curves_between_them_are_exact_as_a_whole():
    target = targets.executorch_8da4w(64)
    torch.manual_seed(1)
    x = torch.randn(3, 5, 128)
    model = nn.Sequential(nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 10, bias=False))
    report = qfunc.verify(target)(qfunc.calibrate([x], progress=False)(qfunc.quantize(target)(model)), [x])
    assert report.verdict == "bit-exact: 0 of 1,110 elements differ"


def test_units_are_integer_and_read_real_inputs():
    target = targets.executorch_8da4w()
    calibrated, _ = block_on(target)
    text = str(qfunc.explain(calibrated))
    assert "at run time" in text
    assert " q " in text
    assert not any(f"\n {name} " in text.split("in float")[1] for name in ("q", "down"))


def test_the_file_has_codes_of_four_bits_and_scales_of_bfloat16():
    target = targets.executorch_8da4w()
    torch.manual_seed(0)
    layer = nn.Linear(64, 3)
    calibrated = qfunc.calibrate([torch.randn(2, 64)], progress=False)(qfunc.quantize(target)(layer))
    artifact = qfunc.deploy(target)(calibrated)
    graph, constants = read(delegate_of(artifact.files["model.pte"]))
    tensors = [v["xvalue_union"] for v in graph["xvalues"]]
    weight = next(
        t for t in tensors if t.kind == "XNNQuantizedTensorValue" and t["quant_params"].kind == "PerChannelGroupQuant"
    )
    packed = np.frombuffer(constants[weight["tensor_value"]["constant_buffer_idx"] - 1], np.uint8).reshape(3, 32)
    codes = np.stack((packed & 15, packed >> 4), -1).reshape(3, 64).astype(int) - 8
    bits = np.frombuffer(constants[weight["quant_params"]["scale_buffer_idx"] - 1], np.uint16).astype(np.uint32)
    scale = (bits << 16).view(np.float32).reshape(3, 2).repeat(32, 1)
    module = next(q.module for q in quantizer_nodes(calibrated) if q.module.site.slot == "weight")
    assert np.array_equal(codes * scale, module(layer.weight).detach().numpy())
    assert (weight["tensor_value"]["datatype"], weight["quant_params"]["group_size"]) == (10, 32)
    listed = json.loads(artifact.files["model.values.json"])
    assert listed == {}


def test_onnx_quantizes_at_run_time_too():
    target = edit.deploy(QdqLowering())(targets.executorch_8da4w())
    calibrated, _ = block_on(target)
    assert b"DynamicQuantize" in qfunc.deploy(target)(calibrated).files["model.onnx"]


def test_sizes_that_blocks_do_not_divide_are_refused():
    with pytest.raises(SpecError, match="an axis of the tensor that the block size divides"):
        qfunc.quantize(targets.executorch_8da4w())(nn.Linear(48, 3))


def test_other_files_hold_no_blocks():
    with pytest.raises(SpecError, match="a scheme that files store"):
        qfunc.quantize(edit.deploy(TfliteLowering())(targets.executorch_8da4w()))(nn.Linear(64, 3))


def test_blocks_that_xnnpack_does_not_take_are_refused():
    target = evolve(targets.executorch_8da4w(16), legality=())
    calibrated = qfunc.calibrate([torch.randn(2, 64)], progress=False)(qfunc.quantize(target)(nn.Linear(64, 3)))
    with pytest.raises(DeployError, match="4-bit codes in blocks of a multiple of 32"):
        qfunc.deploy(target)(calibrated)

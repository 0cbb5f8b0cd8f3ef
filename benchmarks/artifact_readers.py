"""Read every kind of file that targets write, and compare it with the model's own qparams."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from onnx import numpy_helper

from qfunc.targets.runtimes import OnnxRuntimeRunner

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "lowering" / "toolchains"))
import vendor_readers as vendor

Files = Mapping[str, bytes]
Reader = Callable[[Files], vendor.Ranges]


def scale_lines(files: Files) -> vendor.Ranges:
    """Read Tengine's lines of "tensor scale zero_point", with unsigned 8-bit codes."""
    made = {}
    for line in files["model.scale"].decode().splitlines():
        tensor, scale, zero = line.split(" ")
        made[tensor] = (_range(float(scale), int(zero), 0, 255),)
    return made


def fix_positions(files: Files) -> vendor.Ranges:
    """Read Vitis AI's powers of two, with signed 8-bit codes."""
    table = json.loads(files["vitis.json"])["vitis"]
    assert all(np.log2(e["scale"]).is_integer() for e in table.values())
    return {tensor: (_range(e["scale"], 0, -128, 127),) for tensor, e in table.items()}


def log_clips(files: Files) -> vendor.Ranges:
    """Read NNIE's largest magnitude of each node input, in 16ths of an octave; return it by the input's tensor."""
    table = json.loads(files["gfpq_param_dict.json"])["nnie"]["gfpq_param_dict"]
    graph = onnx.load_from_string(files["model.onnx"]).graph
    constants = {i.name for i in graph.initializer}
    nodes = {n.name: [i for i in n.input if i not in constants] for n in graph.node}
    made = {}
    for node, clips in table.items():
        for tensor, clip in zip(nodes[node], clips, strict=True):
            assert abs(16 * np.log2(clip) - round(16 * np.log2(clip))) < 1e-9
            made[tensor] = (vendor.Range(Fraction(0), -Fraction(clip), Fraction(clip)),)
    return made


OUTPUT_SCALE = {
    "QuantizeLinear": 1, "QLinearConv": 6, "QLinearMatMul": 6, "QGemm": 7, "QLinearAdd": 6, "QLinearMul": 6, "QLinearConcat": 0,
    "QLinearAveragePool": 3, "QLinearGlobalAveragePool": 3,
}  # fmt: skip
"""The index of the input that is the scale of an operator's output.  The zero point is the next input."""


def quantizers(files: Files) -> vendor.Ranges:
    """Return the output qparams of QuantizeLinear (narrowed by its Clip) and of QLinear operators."""
    graph = onnx.load_from_string(files["model.onnx"]).graph
    held = {i.name: numpy_helper.to_array(i) for i in graph.initializer}
    made_by = {n.output[0]: n for n in graph.node}
    made = {}
    for node in graph.node:
        if node.op_type not in OUTPUT_SCALE:
            continue
        at = OUTPUT_SCALE[node.op_type]
        scale, zero = held[node.input[at]], held[node.input[at + 1]]
        tensor = node.input[0] if node.op_type == "QuantizeLinear" else node.output[0].removesuffix(".codes")
        kind = np.iinfo(zero.dtype) if zero.dtype.kind in "iu" else ml_dtypes.iinfo(zero.dtype)
        found = _range(float(scale), int(zero), int(kind.min), int(kind.max))
        if tensor.endswith(".clipped"):
            clip = made_by[tensor]
            low, high = (round(float(held[n]) / float(scale)) + int(zero) for n in clip.input[1:])
            tensor, found = clip.input[0], _range(float(scale), int(zero), low, high)
        guard = made_by.get(tensor)  # Max of one tensor is the tensor itself; it prevents fusion in ONNX Runtime
        made[guard.input[0] if guard and guard.op_type == "Max" and len(guard.input) == 1 else tensor] = (found,)
    return made


def fake_quantizers(files: Files) -> vendor.Ranges:
    """Return the qparams of each FakeQuantize after an activation."""
    graph = onnx.load_from_string(files["model.onnx"]).graph
    held = {i.name: numpy_helper.to_array(i) for i in graph.initializer}
    made = {}
    for node in graph.node:
        if node.op_type == "FakeQuantize" and node.input[0] not in held:
            assert node.input[1:3] == node.input[3:5]
            low, high = (Fraction(float(held[node.input[k]].reshape(()))) for k in (1, 2))
            (levels,) = (a.i for a in node.attribute if a.name == "levels")
            made[node.input[0]] = (vendor.Range((high - low) / (levels - 1), low, high),)
    return made


READERS: dict[str, tuple[Reader, ...]] = {
    "encodings_0.6.1.json": (vendor.encodings_0,), "encodings_1.0.0.json": (vendor.encodings_1,),
    "encodings_2.0.0.json": (vendor.encodings_2,), "clip_ranges.txt": (vendor.ppl_cuda,), "stpu_minmax.json": (vendor.stpu,),
    "model.scale": (scale_lines,), "vitis.json": (fix_positions,), "gfpq_param_dict.json": (log_clips,),
}  # fmt: skip


def readers_of(files: Files, name: str) -> tuple[Reader, ...]:
    """Return the readers of a file."""
    if name == "clip_ranges.json":
        return (vendor.blob_ranges if b'"tensorrt"' in files[name] else vendor.ppl_json,)
    if name == "model.onnx":
        ops = {n.op_type for n in onnx.load_from_string(files[name]).graph.node}
        return (fake_quantizers,) if "FakeQuantize" in ops else (quantizers,) if ops & OUTPUT_SCALE.keys() else ()
    return READERS.get(name, ())


def read_back(files: Files) -> tuple[list[str], list[str]]:
    """Return (the kind of each file, complaints)."""
    sites = json.loads(files["qfunc.json"])["tensors"]
    own = {t: s for s in sites if s["role"] == "activation" for t in s["tensors"]}
    said, complaints = [], []
    for name, content in files.items():
        if name.endswith(".onnx"):
            model = onnx.load_from_string(content)
            onnx.checker.check_model(model)
            if not any(n.op_type == "FakeQuantize" for n in model.graph.node):
                OnnxRuntimeRunner(optimise=False).session(content)
        for reader in readers_of(files, name):
            found = reader(files)
            wrong = [t for t, ranges in found.items() if t in own and not _same(ranges, own[t])]
            known = sum(t in own for t in found)
            said.append(f"{name}: {known} of {len(own)}" + (f" and {len(found) - known}" if len(found) > known else ""))
            complaints += [f"{name}: {tensor!r} has another range" for tensor in wrong]
            complaints += [f"{name}: no activation is named"] if own and not known else []
    return said, complaints


def _range(scale: float, zero: int, low: int, high: int) -> vendor.Range:
    step = Fraction(scale)
    return vendor.Range(step, step * (low - zero), step * (high - zero))


def _same(ranges: tuple[vendor.Range, ...], site: Any) -> bool:
    # Files contain float64 products of float32 values.  A relative error of 2^-20 is smaller than any code.
    (found,) = ranges
    (scale,), (zero,) = site["scale"], site["zero_point"]
    if site["format"].startswith("Log"):
        return bool(np.isclose(float(found.high), scale * 2.0 ** (site["high"] / 16), rtol=2**-20))
    wanted = [scale, scale * (site["low"] - zero), scale * (site["high"] - zero)]
    return bool(np.allclose([float(v) for v in found], wanted, rtol=2**-20, atol=0))


__all__ = ["log_clips", "quantizers", "read_back", "readers_of", "scale_lines"]

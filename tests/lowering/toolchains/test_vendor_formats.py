"""What each vendor's file says in particular: signs, offsets, channels, exponents, folded products."""

from __future__ import annotations

import json
import math
from fractions import Fraction
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from attrs import evolve
from torch import Tensor, nn

from qfunc import targets
from qfunc.lowering import Combined, ExplicitQdqLowering
from qfunc.lowering.program import Program
from qfunc.specs import FixedQParams, Int, PerChannel, Scale, Scheme
from qfunc.targets.runtimes import PplCudaLowering, PplDspLowering, SnpeEncodings, StpuLowering, TensorRtRanges
from tests.lowering.onnx.test_qdq_nodes import parts, run
from tests.lowering.toolchains.vendor_net import Net, made
from tests.lowering.toolchains.vendor_readers import (
    encodings_0, encodings_1, encodings_2, obeying, stpu,
)  # fmt: skip

# TensorRT


def test_tensorrt_has_q_dq_and_clip_ranges_in_one_artifact() -> None:
    _, model, _, files = made("tensorrt")
    assert targets.tensorrt.lowering == Combined((ExplicitQdqLowering(), TensorRtRanges()))
    assert list(files) == ["model.onnx", "clip_ranges.json", "model_float.onnx"]
    kinds = [n.op_type for n in onnx.load_from_string(files["model.onnx"]).graph.node]
    assert kinds == [n.op_type for n in model.graph.node if n.op_type != "Max"]


def test_the_scale_of_tensorrt_is_ours_with_and_without_the_code_below() -> None:
    _, model, sites, _ = made("tensorrt")
    narrow = tuple(evolve(s, format=Int(8, low=-127)) for s in sites)
    for given in (sites, narrow):
        found = json.loads(TensorRtRanges().lower(Program(model, given))["clip_ranges.json"])["tensorrt"]["blob_range"]
        assert {np.float32(found[s.name] / 127) for s in given if s.role == "activation"} == {
            np.float32(s.scale[0]) for s in given if s.role == "activation"
        }


# SNPE


def channels(**weight: Any) -> Any:
    """SNPE with symmetric weights, which QAIRT takes per channel."""
    rule = evolve(targets.snpe.rules[0], **weight)
    return evolve(targets.snpe, rules=(rule, *targets.snpe.rules[1:]), legality=())


def test_encodings_per_channel() -> None:
    scheme = Scheme(Int(8, low=-127), Scale(PerChannel()))
    torch.manual_seed(0)
    _, model, sites = parts(channels(weight=scheme), Net(), torch.randn(2, 3, 8, 6))
    files = SnpeEncodings().lower(Program(model, sites))
    first, second = (json.loads(files[f"encodings_{v}.json"]) for v in ("0.6.1", "1.0.0"))
    third = {e["name"]: e for e in json.loads(files["encodings_2.0.0.json"])["encodings"]}
    shapes = {i.name: list(i.dims) for i in onnx.load_from_string(files["model.onnx"]).graph.initializer}
    for name, axis in (("a.weight", 0), ("t.weight", 1), ("a.bias", 0)):
        scales = next(list(s.scale) for s in sites if s.name == name)
        # The channels of the transposed convolution are those of a group.
        assert len(scales) == shapes[name][axis]
        bits = 32 if name == "a.bias" else 8
        entries, entry = first["param_encodings"][name], next(e for e in second["param_encodings"] if e["name"] == name)
        assert [(e["scale"], e["offset"], e["is_symmetric"]) for e in entries] == [
            (s, -(2 ** (bits - 1)), "True") for s in scales
        ]
        assert entry == {"name": name, "dtype": "INT", "enc_type": "PER_CHANNEL", "bw": bits, "is_sym": True,
                         "scale": scales, "offset": [-(2 ** (bits - 1))] * len(scales)}  # fmt: skip
        assert third[name] == {"name": name, "output_dtype": f"int{bits}", "y_scale": scales, "axis": axis}
    assert encodings_0(files) == encodings_1(files) == encodings_2(files)


def test_signs_and_offsets_of_zero_points() -> None:
    _, model, sites, _ = made("snpe")
    site = next(s for s in sites if s.name == "a.weight")
    cases = (
        (Int(8, signed=False), 128, -128, False, {"output_dtype": "uint8", "y_zero_point": 128}),
        (Int(8), 0, -128, True, {"output_dtype": "int8"}),
        (Int(8), -3, -125, False, {"output_dtype": "int8", "y_zero_point": -3}),
        (Int(4, signed=False), 15, -15, False, {"output_dtype": "uint4", "y_zero_point": 15}),
        (Int(16, low=-32767), 0, -32768, True, {"output_dtype": "int16"}),
    )
    for fmt, zero, offset, symmetric, said in cases:
        files = SnpeEncodings(opset=21).lower(Program(model, (evolve(site, format=fmt, zero_point=(zero,)),)))
        (old,) = json.loads(files["encodings_0.6.1.json"])["param_encodings"]["a.weight"]
        (new,) = json.loads(files["encodings_1.0.0.json"])["param_encodings"]
        (newest,) = json.loads(files["encodings_2.0.0.json"])["encodings"]
        assert (old["offset"], old["is_symmetric"], old["bitwidth"]) == (offset, str(symmetric), fmt.bits)
        assert (new["offset"], new["is_sym"], new["bw"]) == ([offset], symmetric, fmt.bits)
        assert newest == {"name": "a.weight", "y_scale": site.scale[0], **said}


def test_a_derived_bias_has_as_many_encodings_as_its_weight_scales() -> None:
    _, _, sites, files = made("snpe")
    found = {s.name: s.scale[0] for s in sites}
    assert encodings_2(files)["a.bias"][0].step == Fraction(float(np.float32(found["x"]) * np.float32(found["a.weight"])))
    assert all(len(r) == 1 for r in encodings_0(files).values())


# PPL


def test_ppl_has_lists_over_channels_and_bits_of_the_type() -> None:
    _, model, sites, files = made("ppl_w8a16")
    entries = json.loads(files["clip_ranges.json"])["ppl"]
    assert (entries["x"]["bit"], entries["a.weight"]["bit"]) == (16, 8)
    site = next(s for s in sites if s.name == "a.weight")
    several = evolve(site, format=Int(8, low=-127), scale=(0.5, 0.25), zero_point=(0, 0), axis=0)
    found = json.loads(PplDspLowering(opset=21).lower(Program(model, (several,)))["clip_ranges.json"])["ppl"]["a.weight"]
    assert found == {"step": [0.5, 0.25], "zero_point": [0, 0], "min": [-63.5, -31.75], "max": [63.5, 31.75],
                     "bit": 8, "type": "biased"}  # fmt: skip


def test_ppl_cuda_has_lines_of_what_one_number_can_say() -> None:
    _, model, sites, files = made("ppl_cuda")
    assert not any(line.startswith(("a.", "t.", "b.", "c.", "fc.")) for line in files["clip_ranges.txt"].decode().splitlines())
    one = evolve(next(s for s in sites if s.name == "a.weight"), scale=(0.5,), zero_point=(0,), axis=None)
    assert PplCudaLowering(opset=21).lower(Program(model, (one,)))["clip_ranges.txt"] == b"a.weight: 64.0\n"


# STPU


def biased_exponent(value: float) -> int:
    """The exponent bits of a float32, by its bits."""
    return int(np.float32(value).view(np.uint32)) >> 23 & 255


def test_exponents_and_biases_of_stpu() -> None:
    _, _, sites, files = made("stpu")
    found = json.loads(files["stpu_minmax.json"])
    scale = {s.name: s.scale[0] for s in sites} | {"t.weight": 0.75 * next(s.scale[0] for s in sites if s.name == "t.weight")}
    top = {t: e["max"] for t, e in found.items() if "max" in e}
    # (node, what it writes, its input, N products a sum)
    for node, output, given, products in (
        ("a", "a", "x", 27),
        ("t", "mul", "relu", 3 * 4),
        ("b", "b", "cat", 30),
        ("c", "c", "relu6", 9),
    ):
        total = math.sqrt(products) * top[given] * top[f"{node}_weights"]
        assert found[output]["emin"] == biased_exponent(max(total, top[output])) - 10
        if node != "c":
            alpha = scale[f"{node}.weight"] * scale[given]
            assert found[f"{node}_bias"] == {"alpha": pytest.approx(alpha, rel=1e-15), "zero_point": 0}
    assert "c_bias" not in found
    assert found["up"]["emin"] == biased_exponent(top["up"]) - 20
    assert found["fc"]["emin"] == 128
    assert [t for t, e in found.items() if "emin" in e] == [t for t in found if t in ("a", "mul", "b", "c", "up", "fc")]
    assert top["a"] == top["relu"] == top["sigmoid"] == top["cat"]
    assert top["t_weights"] == pytest.approx(127 * scale["t.weight"], rel=1e-15)


def test_a_transposed_convolution_sums_over_its_inputs() -> None:
    torch.manual_seed(0)
    _, model, sites = parts(targets.stpu, nn.ConvTranspose2d(64, 2, 1, groups=2), torch.randn(2, 64, 3, 4))
    found = json.loads(StpuLowering().lower(Program(model, sites))["stpu_minmax.json"])
    (out,) = (e for e in found.values() if "emin" in e)
    total = math.sqrt(32) * found[sites[0].name]["max"] * next(e["max"] for n, e in found.items() if n.endswith("_weights"))
    assert out["emin"] == biased_exponent(max(total, out["max"])) - 10
    assert biased_exponent(total / math.sqrt(32)) < biased_exponent(total)


@pytest.mark.parametrize("value", [0.0, 1e-45, 2.0**-126, 2.0**-126 * 1.5, 0.1, 1.0, 2 - 2**-23, 2.0, 3e38, 1e39])
def test_exponents_are_those_of_float32(value: float) -> None:
    from qfunc.targets.stpu.ranges import exponent

    wanted = 254 if value > 3.5e38 else max(biased_exponent(value), 1 if value else 0)
    assert exponent(value) == wanted


def test_a_sigmoid_writes_one() -> None:
    _, model, sites = parts(targets.stpu, nn.Sequential(nn.Conv2d(3, 2, 1), nn.Sigmoid()), torch.randn(2, 3, 4, 5))
    found = json.loads(StpuLowering().lower(Program(model, sites))["stpu_minmax.json"])
    assert {k: v for k, v in found.items() if v.get("max") == 1} == {"1": {"min": -1.0, "max": 1.0}}
    assert isinstance(targets.stpu.rules[2].output, FixedQParams)


class Twice(nn.Module):
    """A convolution that is read beside its product, and one that is called twice, multiplied once."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 3, 3, padding=1), nn.Conv2d(3, 3, 1)
        self.much, self.less = nn.Parameter(torch.tensor(0.5)), nn.Parameter(torch.tensor(0.25))

    def forward(self, x: Tensor) -> Tensor:
        y = self.a(x)
        return self.b(self.b(y * self.much + y) * self.less)


def test_a_product_is_folded_where_no_one_else_sees_it() -> None:
    torch.manual_seed(0)
    net = Twice()
    done, model, sites = parts(targets.stpu, net, torch.randn(2, 3, 5, 4))
    files = StpuLowering().lower(Program(model, sites))
    proto = onnx.load_from_string(files["model.onnx"])
    onnx.checker.check_model(proto)
    assert [n.op_type for n in proto.graph.node].count("Mul") == 1
    x = torch.randn(3, 3, 5, 4)
    with torch.no_grad():
        simulated = done(x)
    assert ((run(obeying(files, stpu), x) - simulated).abs() <= 1e-5).double().mean() >= 0.95  # ties may flip

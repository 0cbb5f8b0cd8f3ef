"""Readers of vendors' files of qparams, written from the formats' descriptions, and a toolchain that obeys them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
import onnx
from onnx import helper, numpy_helper


class Range(NamedTuple):
    """The step between values, the lowest and the highest, exactly."""

    step: Fraction
    low: Fraction
    high: Fraction


Ranges = Mapping[str, tuple[Range, ...]]


def blob_ranges(files: Mapping[str, bytes]) -> Ranges:
    """TensorRT: a dynamic range of +-c has 127 steps to each side, and the code -128 below."""
    found = json.loads(files["clip_ranges.json"])
    assert found.keys() == {"tensorrt"}
    assert found["tensorrt"].keys() == {"blob_range"}
    steps = {t: Fraction(c) / 127 for t, c in found["tensorrt"]["blob_range"].items()}
    return {t: (Range(s, -128 * s, 127 * s),) for t, s in steps.items()}


def encodings_0(files: Mapping[str, bytes]) -> Ranges:
    """AIMET 0.6.1: a dict of lists; what is said twice must agree."""
    found = json.loads(files["encodings_0.6.1.json"])
    assert found.pop("version") == "0.6.1"
    assert found.keys() == {"activation_encodings", "param_encodings"}
    return {t: tuple(map(_encoding_0, e)) for part in found.values() for t, e in part.items()}


def _encoding_0(e: dict[str, Any]) -> Range:
    assert e.keys() == {"bitwidth", "dtype", "is_symmetric", "min", "max", "scale", "offset"}
    assert e["dtype"] == "int"
    assert e["is_symmetric"] in ("True", "False")
    assert type(e["offset"]) is int
    if e["is_symmetric"] == "True":
        assert e["offset"] == -(2 ** (e["bitwidth"] - 1))
    step = Fraction(e["scale"])
    low, high = step * e["offset"], step * (e["offset"] + 2 ** e["bitwidth"] - 1)
    # A product of a float32 and a code of 17 bits is exact in float64; of 32 bits it is the nearest.
    assert (float(low), float(high)) == (e["min"], e["max"])
    return Range(step, low, high)


def encodings_1(files: Mapping[str, bytes]) -> Ranges:
    """AIMET 1.0.0: lists of entries, with lists of scales and offsets."""
    found = json.loads(files["encodings_1.0.0.json"])
    assert found.pop("version") == "1.0.0"
    made = {}
    for part in ("activation_encodings", "param_encodings"):
        for e in found.pop(part):
            assert e.keys() == {"name", "dtype", "enc_type", "bw", "is_sym", "scale", "offset"}
            assert (e["dtype"], type(e["is_sym"])) == ("INT", bool)
            assert e["enc_type"] == ("PER_TENSOR" if len(e["scale"]) == 1 else "PER_CHANNEL")
            each = zip(map(Fraction, e["scale"]), e["offset"], strict=True)
            assert e["name"] not in made
            made[e["name"]] = tuple(Range(s, s * o, s * (o + 2 ** e["bw"] - 1)) for s, o in each)
    assert not found
    return made


def encodings_2(files: Mapping[str, bytes]) -> Ranges:
    """AIMET 2.0.0: the inputs of QuantizeLinear."""
    found = json.loads(files["encodings_2.0.0.json"])
    assert found.pop("version") == "2.0.0"
    made = {}
    for e in found.pop("encodings"):
        assert {"name", "output_dtype", "y_scale"} <= e.keys() <= {"name", "output_dtype", "y_scale", "y_zero_point", "axis"}
        scales = e["y_scale"] if "axis" in e else [e["y_scale"]]
        zeros = e.get("y_zero_point", [0] * len(scales) if "axis" in e else 0)
        bits = int(e["output_dtype"].removeprefix("u").removeprefix("int"))
        lowest = 0 if e["output_dtype"].startswith("u") else -(2 ** (bits - 1))
        each = zip(map(Fraction, scales), zeros if "axis" in e else [zeros], strict=True)
        assert e["name"] not in made
        made[e["name"]] = tuple(Range(s, s * (lowest - z), s * (lowest + 2**bits - 1 - z)) for s, z in each)
    assert not found
    return made


def ppl_json(files: Mapping[str, bytes]) -> Ranges:
    """PPL: step, zero point and ends; lists over channels."""
    found = json.loads(files["clip_ranges.json"])
    assert found.keys() == {"ppl"}
    made = {}
    for tensor, e in found["ppl"].items():
        assert e.keys() == {"step", "zero_point", "min", "max", "bit", "type"}
        assert e["type"] == "biased"
        keys = ("step", "zero_point", "min", "max")
        lists = [e[k] if isinstance(e["step"], list) else [e[k]] for k in keys]
        rows = [(Fraction(s), z, Fraction(low), Fraction(high)) for s, z, low, high in zip(*lists, strict=True)]
        for s, z, low, high in rows:
            assert (high - low) / s < 2 ** e["bit"]
            assert (low / s + z).denominator == 1
        made[tensor] = tuple(Range(s, low, high) for s, _, low, high in rows)
    return made


def ppl_cuda(files: Mapping[str, bytes]) -> Ranges:
    """PPL-CUDA: lines of "tensor: number", the largest of 128 steps."""
    lines = [line.rpartition(": ") for line in files["clip_ranges.txt"].decode().splitlines()]
    assert len({tensor for tensor, _, _ in lines}) == len(lines)
    steps = {tensor: Fraction(float(number)) / 128 for tensor, _, number in lines}
    return {t: (Range(s, -128 * s, 127 * s),) for t, s in steps.items()}


def stpu(files: Mapping[str, bytes]) -> Ranges:
    """STPU: +-127 steps; weights are named by their node, biases have a scale only."""
    model = onnx.load_from_string(files["model.onnx"])
    constants = {f"{n.name}_{kind}": n.input[i] for n in model.graph.node for i, kind in ((1, "weights"), (2, "bias"))
                 if len(n.input) > i}  # fmt: skip
    made = {}
    for name, e in json.loads(files["stpu_minmax.json"]).items():
        if name.endswith("_bias"):
            assert e.keys() == {"alpha", "zero_point"}
            assert e["zero_point"] == 0
            continue
        assert {"min", "max"} <= e.keys() <= {"min", "max", "emin"}
        high = Fraction(e["max"])
        assert Fraction(e["min"]) == -high
        made[constants.get(name, name)] = (Range(high / 127, -high, high),)
    return made


def model_of(files: Mapping[str, bytes]) -> onnx.ModelProto:
    """The float model that the names are of."""
    model = onnx.load_from_string(files.get("model_float.onnx", files["model.onnx"]))
    assert not [n.op_type for n in model.graph.node if "Quantize" in n.op_type]
    return model


def names_of(model: onnx.ModelProto) -> set[str]:
    """Every tensor that a model names."""
    graph = model.graph
    written = {o for n in graph.node for o in n.output} | {i for n in graph.node for i in n.input}
    return written | {v.name for v in (*graph.input, *graph.output, *graph.initializer)}


def obeying(files: Mapping[str, bytes], read: Callable[[Mapping[str, bytes]], Ranges]) -> onnx.ModelProto:
    """What a toolchain makes of the files: every activation that has a range is rounded to its steps."""
    model = model_of(files)
    graph = model.graph
    constants = {i.name for i in graph.initializer}
    rounded: dict[str, str] = {}
    for tensor, ranges in read(files).items():
        if tensor in constants or tensor not in names_of(model):
            continue
        (r,) = ranges
        ends = {"step": r.step, "low": r.low / r.step, "high": r.high / r.step}
        held = {key: f"{tensor}.{key}" for key in ends}
        for key, value in ends.items():
            graph.initializer.append(numpy_helper.from_array(_float32(value), held[key]))
        names = [f"{tensor}/{part}" for part in ("steps", "round", "inside", "value")]
        made = [
            helper.make_node("Div", [tensor, held["step"]], names[:1]),
            helper.make_node("Round", names[:1], names[1:2]),
            helper.make_node("Clip", [names[1], held["low"], held["high"]], names[2:3]),
            helper.make_node("Mul", [names[2], held["step"]], names[3:]),
        ]
        for node in graph.node:
            for index, name in enumerate(node.input):
                if name == tensor:
                    node.input[index] = names[3]
        after = [i for i, n in enumerate(graph.node) if tensor in n.output]
        place = after[0] + 1 if after else 0
        for offset, node in enumerate(made):
            graph.node.insert(place + offset, node)
        rounded[tensor] = names[3]
    for output in graph.output:
        output.name = rounded.get(output.name, output.name)
    return model


def _float32(value: Fraction) -> Any:
    return np.array(float(value), dtype=np.float32)

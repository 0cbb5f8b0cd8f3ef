"""Write layer, group, instance, rms and response norms as ONNX."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from qfunc.errors import DeployError
from qfunc.lowering.onnx.context import OpContext, known, normalized
from qfunc.lowering.onnx.formula import Write
from qfunc.lowering.onnx.reduction import dims_of, norm_along, reduced


def _response_norm(c: OpContext) -> str:
    return c.write("LRN", c.input(), size=c["size"], alpha=float(c["alpha"]), beta=float(c["beta"]), bias=float(c["k"]))


def _instance_norm(c: OpContext) -> str:
    if not c["use_input_stats"]:
        do = "Use nn.BatchNorm, or use_input_stats=True."
        raise DeployError(where=f"op {c.name!r}", found="running statistics", wanted="statistics of the input", do=do)
    channels = known(c, c.shape().dims[1])
    affine = [c.input(p) if c[p] is not None else c.graph.constant(np.full(channels, fill, np.float32), f"{c.name}.{p}")
             for p, fill in (("weight", 1), ("bias", 0))]  # fmt: skip
    return c.write("InstanceNormalization", c.input(), *affine, epsilon=float(c["eps"]))


def _rms_norm(c: OpContext) -> str:
    g, name = c.graph, c.name
    axes = list(range(-normalized(c), 0))
    square = g.node("Mul", [c.input(), c.input()], f"{name}.square")
    mean = reduced(c, "ReduceMean", square, axes, True, f"{name}.mean")
    eps = torch.finfo(c.result.dtype).eps if c["eps"] is None else c["eps"]
    root = g.node("Sqrt", [g.node("Add", [mean, g.number(eps, f"{name}.eps")], f"{name}.shifted")], f"{name}.rms")
    if c["weight"] is None:
        return c.write("Div", c.input(), root)
    return c.write("Mul", g.node("Div", [c.input(), root], f"{name}.normed"), c.input("weight"))


def _layer_norm(c: OpContext) -> str:
    axes = normalized(c)
    bias = [c.input("bias")] if c["bias"] is not None else []
    if c["weight"] is not None:
        scale = c.input("weight")
    else:
        scale = c.graph.constant(np.ones([known(c, n) for n in c.shape().dims[-axes:]], np.float32), f"{c.name}.ones")
    return c.write("LayerNormalization", c.input(), scale, *bias, axis=-axes, epsilon=float(c["eps"]))


def _group_norm(c: OpContext) -> str:
    channels = known(c, c.shape().dims[1])
    affine = [c.input(p) if c[p] is not None else c.graph.constant(np.full(channels, fill, np.float32), f"{c.name}.{p}")
             for p, fill in (("weight", 1), ("bias", 0))]  # fmt: skip
    return c.write("GroupNormalization", c.input(), *affine, num_groups=int(c["num_groups"]), epsilon=float(c["eps"]))


def write_norm_module(c: OpContext, kind: str) -> str:
    """Write a BatchNorm or InstanceNorm module that was not folded."""
    module: Any = c.module
    channels = int(module.num_features)
    weight = torch.ones(channels) if module.weight is None else module.weight
    bias = torch.zeros(channels) if module.bias is None else module.bias
    affine = [c.graph.constant(t, f"{c.name}.{n}") for t, n in ((weight, "weight"), (bias, "bias"))]
    source = c.read(c.node.args[0])  # type: ignore[arg-type]
    if kind == "batch_norm" and module.running_mean is None:
        do = "Train with track_running_stats=True, or put nn.GroupNorm or nn.InstanceNorm in its place."
        raise DeployError(where=f"op {c.name!r}", found="no running statistics", wanted="running statistics", do=do)
    if kind == "instance_norm" and module.running_mean is None:
        return c.write("InstanceNormalization", source, *affine, epsilon=float(module.eps))
    stats = [c.graph.constant(getattr(module, n), f"{c.name}.{n}") for n in ("running_mean", "running_var")]
    return c.write("BatchNormalization", source, *affine, *stats, epsilon=float(module.eps))


def _normalize(c: OpContext) -> str:
    lengths = norm_along(c, c.input(), c["p"], dims_of(c), True, f"{c.name}.length")
    return c.write(
        "Div", c.input(), c.graph.node("Max", [lengths, c.graph.number(c["eps"], f"{c.name}.eps")], f"{c.name}.above")
    )


def _cosine(c: OpContext) -> str:
    g, dims = c.graph, [c["dim"] % c.result.rank + (c["dim"] < 0)]
    least, unit = g.number(c["eps"], f"{c.name}.eps"), []
    for name in ("x1", "x2"):
        length = reduced(c, "ReduceL2", c.input(name), dims, True, f"{c.name}.{name}.length")
        unit.append(
            g.node("Div", [c.input(name), g.node("Max", [length, least], f"{c.name}.{name}.above")], f"{c.name}.{name}")
        )
    return reduced(c, "ReduceSum", g.node("Mul", unit, f"{c.name}.product"), dims, False)


WRITERS: dict[str, Write] = {
    "layer_norm": _layer_norm, "group_norm": _group_norm, "instance_norm": _instance_norm, "rms_norm": _rms_norm,
    "local_response_norm": _response_norm, "normalize": _normalize, "cosine_similarity": _cosine,
}  # fmt: skip
"""The writers of this family, by kind."""

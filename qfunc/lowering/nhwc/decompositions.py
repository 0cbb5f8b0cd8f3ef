"""Write ops as several TFLite operators in float32; write GELU."""

from __future__ import annotations

import numpy as np

from qfunc.lowering.nhwc.context import OpContext
from qfunc.lowering.nhwc.elementwise import unary
from qfunc.lowering.nhwc.tensor import NhwcTensor


def gelu(step: OpContext) -> None:
    """Write GELU, by the error function or by tanh."""
    unary("GELU", "GeluOptions", approximate=step.attribute("approximate", b"none") == b"tanh")(step)


def celu(step: OpContext) -> None:
    """Write max(0, x) + alpha (exp(min(0, x) / alpha) - 1), to within alpha 2^-22. Values above 0 are exact.

    TFLite's ELU has no alpha, and LiteRT's reference kernels have no ELU.
    """
    x, alpha = step.input(), float(step.attribute("alpha", 1.0))
    below, curve, above = (step.inner(n, x.shape, x, last=x.last) for n in ("below", "curve", "above"))
    step.file.operator("MINIMUM", [x, _number(step, "zero", 0.0)], [below], "MaximumMinimumOptions")
    step.file.operator("EXP", [_binary(step, "MUL", below, _number(step, "rate", 1 / alpha), "scaled", x)], [curve])
    lowered = _binary(step, "SUB", curve, _number(step, "one", 1.0), "lowered", x)
    negative = _binary(step, "MUL", lowered, _number(step, "alpha", alpha), "negative", x)
    step.file.operator("RELU", [x], [above])
    output = step.result(x.shape, last=x.last)
    step.file.operator("ADD", [above, negative], [output], "AddOptions", fusedActivationFunction="NONE")


def hard_sigmoid(step: OpContext) -> None:
    """Write max(0, min(1, alpha x + beta)): a product, a sum, and two bounds."""
    x = step.input()
    alpha, beta = (_number(step, n, float(step.attribute(n, d))) for n, d in (("alpha", 0.2), ("beta", 0.5)))
    sloped = _binary(step, "MUL", x, alpha, "sloped", x)
    raised = _binary(step, "ADD", sloped, beta, "raised", x)
    positive = step.inner("positive", x.shape, x, last=x.last)
    step.file.operator("RELU", [raised], [positive])
    output = step.result(x.shape, last=x.last)
    step.file.operator("MINIMUM", [positive, _number(step, "one", 1.0)], [output], "MaximumMinimumOptions")


def layer_norm(step: OpContext) -> None:
    """Write (x - mean) * rsqrt(mean((x - mean)^2) + epsilon) * scale + bias, over the last axes."""
    x = step.writer.plain(step.input())
    rank = len(x.shape)
    axes = list(range(int(step.attribute("axis", -1)) % rank, rank))
    axes_tensor = step.file.integers(axes, f"{step.name}.axes")
    mean, variance = (_reduced(step, n, x, axes) for n in ("mean", "variance"))
    step.file.operator("MEAN", [x, axes_tensor], [mean], "ReducerOptions", keepDims=True)
    square = step.inner("square", x.shape, x)
    step.file.operator("SQUARED_DIFFERENCE", [x, mean], [square], "SquaredDifferenceOptions")
    step.file.operator("MEAN", [square, axes_tensor], [variance], "ReducerOptions", keepDims=True)
    epsilon = _number(step, "epsilon", float(step.attribute("epsilon", 1e-5)))
    wide = _binary(step, "ADD", variance, epsilon, "wide", variance)
    inverse = step.inner("inverse", variance.shape, variance)
    step.file.operator("RSQRT", [wide], [inverse])
    value = _binary(step, "MUL", _binary(step, "SUB", x, mean, "centred", x), inverse, "normal", x)
    parts = [("MUL", "scaled", 1)] + [("ADD", "shifted", 2)] * (len(step.node.input) > 2)
    for op, name, index in parts[:-1]:
        value = _binary(step, op, value, step.input(index), name, x)
    op, _, index = parts[-1]
    none = "NONE"
    output, last = step.result(x.shape), step.input(index)
    step.file.operator(op, [value, last], [output], f"{op.capitalize()}Options", fusedActivationFunction=none)


def _reduced(step: OpContext, name: str, x: NhwcTensor, axes: list[int]) -> NhwcTensor:
    return step.inner(name, [1 if i in axes else n for i, n in enumerate(x.shape)], x)


def _number(step: OpContext, name: str, value: float) -> NhwcTensor:
    return step.file.tensor(f"{step.name}.{name}", (1,), value=np.array([value], np.float32))


def _binary(step: OpContext, op: str, a: NhwcTensor, b: NhwcTensor, name: str, like: NhwcTensor) -> NhwcTensor:
    output = step.inner(name, like.shape, like, last=like.last)
    fields = {"fusedActivationFunction": "NONE"}
    step.file.operator(op, [a, b], [output], f"{op.capitalize()}Options", **fields)
    return output


__all__ = ["celu", "gelu", "hard_sigmoid", "layer_norm"]

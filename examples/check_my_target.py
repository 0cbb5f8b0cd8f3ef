"""Check that a chip computes as described, and find a counterexample where it does not.

    python examples/check_my_target.py

`simulator` represents a vendor's simulator: a program that executes the artifact in integers and does not depend on
qfunc.  Its first version has a bug.  Where a sum is exactly halfway between two codes, it rounds to the even code; the
manual specifies rounding up.  Ties are rare in random data, so a test on images would rarely find the bug.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import onnx
import torch
import torch.nn.functional as F
from custom_target import chip
from hypothesis import strategies as st
from torch import Tensor

from qfunc.testing import Block, SmallNet, check_target

Shifter = Callable[[Tensor, int], Tensor]


class Codes(NamedTuple):
    """Integers and their scale's exponent: value = codes * 2^exponent."""

    codes: Tensor
    exponent: int


def half_even(acc: Tensor, k: int) -> Tensor:
    """Return R(acc * 2^-k), with ties to the even code.  This is the bug."""
    return torch.round(acc.double() * 2.0**-k).long()


def half_up(acc: Tensor, k: int) -> Tensor:
    """Return R(acc * 2^-k), with ties up, as in the manual."""
    return torch.floor(acc.double() * 2.0**-k + 0.5).long()


def simulator(shift: Shifter) -> Callable[[Any, Sequence[Tensor]], list[Any]]:
    """Return run(artifact, inputs) -> outputs: the chip, with `shift` as its output stage."""

    def run(artifact: Any, inputs: Sequence[Tensor]) -> list[Any]:
        graph = onnx.load_from_string(artifact.files["model.onnx"]).graph
        values: dict[str, Any] = {i.name: torch.from_numpy(onnx.numpy_helper.to_array(i).copy()) for i in graph.initializer}
        values |= {i.name: v for i, v in zip(graph.input, inputs, strict=True)}
        for node in graph.node:
            given = [values[name] for name in node.input]
            values[node.output[0]] = step(node, given, shift)
        return [(values[o.name].codes.double() * 2.0 ** values[o.name].exponent).float().numpy() for o in graph.output]

    return run


def step(node: Any, given: list[Any], shift: Shifter) -> Any:
    """Execute one node on codes."""
    attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    x = given[0]
    match node.op_type:
        case "QuantizeLinear":
            low, high = (0, 255) if given[2].dtype == torch.uint8 else (-128, 127)
            if isinstance(x, Tensor):  # a real input
                return torch.floor(x.double() / given[1] + 0.5).clamp(low, high).long()
            return shift(x.codes, exponent(given[1]) - x.exponent).clamp(low, high)
        case "DequantizeLinear":
            return Codes(x.long(), exponent(given[1].flatten()[0]))
        case "Conv":
            pads, groups = attributes["pads"][: x.codes.ndim - 2], attributes["group"]
            w, bias = given[1], given[2].codes.double()
            acc = F.conv2d(
                x.codes.double(), w.codes.double(), bias, attributes["strides"], pads, attributes["dilations"], groups
            )
            return Codes(acc.long(), x.exponent + w.exponent)
        case "Gemm":
            acc = F.linear(x.codes.double(), given[1].codes.double(), given[2].codes.double())
            return Codes(acc.long(), x.exponent + given[1].exponent)
        case "Relu":
            return Codes(x.codes.clamp(min=0), x.exponent)
        case "MaxPool":
            padding = attributes["pads"][: x.codes.ndim - 2]
            moved = F.max_pool2d(x.codes.double(), attributes["kernel_shape"], attributes["strides"], padding)
            return Codes(moved.long(), x.exponent)
        case "Flatten":
            return Codes(x.codes.flatten(1), x.exponent)
    raise NotImplementedError(node.op_type)


def exponent(scale: Tensor) -> int:
    """Return log2 of a power of two."""
    fraction, power = np.frexp(scale.item())
    assert fraction == 0.5, f"{scale.item()} is not a power of two"
    return int(power) - 1


@st.composite
def networks(draw: st.DrawFn) -> tuple[SmallNet, Tensor]:
    """Draw (network, input [2, 3, 6, 6]): one to three convolutions, an optional pool, a linear layer.  Shrinks to 1x1."""
    channels, size, steps = 3, 6, list[Block]()
    for _ in range(draw(st.integers(1, 3))):
        out, kernel, act = draw(st.integers(1, 5)), draw(st.sampled_from((1, 3))), draw(st.sampled_from((None, "relu")))
        steps.append(Block("conv", channels, out, kernel, act=act))
        channels = out
    if draw(st.booleans()):
        size //= 2
        steps.append(Block("max_pool", kernel=3, stride=2))
    net = SmallNet((*steps, Block("linear", channels * size * size, 2)), draw(st.integers(0, 2**16)))
    return net, torch.randn((2, 3, 6, 6), generator=torch.Generator().manual_seed(net.seed + 1))


def main() -> int:
    """Return 0 if the bug is found and the repaired simulator passes."""
    print("the simulator that rounds ties to even:")
    try:
        check_target(chip, run=simulator(half_even), models=networks(), examples=12)
    except AssertionError as e:
        print("  found:", "\n  ".join(str(e).splitlines()))
    else:
        print("  no difference found")
        return 1
    check_target(chip, run=simulator(half_up), models=networks(), examples=12)
    print("\nthe repaired simulator: no difference on 12 networks")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Sums and products of tensors of any scales, far beyond the codes too: the emulation is what LiteRT and XNNPACK compute.

    QFUNC_EXAMPLES=1000 python -m pytest -n 0 -s tests/lowering/tflite/test_litert_products.py

draws so many for each runtime, others every time, and prints how many were compared.
"""

from __future__ import annotations

import operator
from collections import Counter

import pytest
import torch
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st
from torch import nn

import qfunc
from qfunc import targets
from qfunc.graph.sites import quantizer_nodes
from tests.lowering.drawn_law import EXAMPLES

TARGETS = {t.name: t for t in (targets.litert, targets.litert_reference, targets.litert_optimised, targets.executorch_xnnpack)}
LENGTHS = st.sampled_from((1, 2, 3, 7, 15, 16, 17, 33))
ZEROS = st.sampled_from((-128, -5, 0, 3, 127))


class Pair(nn.Module):
    """An op of two tensors that broadcast; a convolution makes the first an image with its channels last."""

    def __init__(self, op, channels: int, convolved: bool, bounded: bool):
        super().__init__()
        self.op, self.bounded = op, bounded
        self.conv = nn.Conv2d(channels, channels, 1) if convolved else None

    def forward(self, x, y):
        made = self.op(x if self.conv is None else self.conv(x), y)
        return torch.relu(made) if self.bounded else made


@st.composite
def pairs(draw):
    """(network, shapes of its inputs, s_x / s_y of each input, zero points of the inputs and the output, a seed)."""
    shape, op = [draw(LENGTHS) for _ in range(draw(st.integers(1, 3)))], draw(st.sampled_from(("add", "sub", "mul")))
    sides = [[n if draw(st.integers(0, 3)) else 1 for n in shape] for _ in range(2)]
    convolved = len(shape) == 3 and draw(st.booleans())
    first = shape if convolved else sides[0]
    net = Pair(getattr(operator, op), first[0], convolved, draw(st.booleans()))
    powers = draw(st.tuples(*[st.floats(-9, 7.45) if op == "mul" else st.floats(-14, 10)] * 2))
    return (
        net,
        ([2, *first], [2, *sides[1]]),
        [2.0**p for p in powers],
        draw(st.tuples(*[ZEROS] * 3)),
        draw(st.integers(0, 999)),
    )


def pairs_law(target, runner, joined: bool = True) -> str:
    """What was compared; fails at the first pair of which an output differs. Two have runs of 16 that XNNPACK does not take.

    Args:
        joined: True if the runner takes several examples whose tensors have no image's axes.
    """
    ops, elements = Counter[str](), 0

    @settings(max_examples=EXAMPLES or 25, derandomize=not EXAMPLES, deadline=None, database=None,
              phases=[Phase.explicit, Phase.generate], suppress_health_check=list(HealthCheck))  # fmt: skip
    @given(pairs())
    @example((Pair(operator.add, 40, False, False), ([2, 40], [2, 40]), [478.0, 478.0], (-5, -5, 3), 0))
    @example((Pair(operator.mul, 40, False, False), ([2, 40], [2, 40]), [33.9, 33.9], (-5, 127, -128), 0))
    def law(drawn) -> None:
        nonlocal elements
        net, shapes, ratios, zeros, seed = drawn
        g = torch.Generator().manual_seed(seed)
        inputs = [torch.randint(-128, 128, s, generator=g).float() for s in shapes]
        inputs = [torch.where(torch.rand(t.shape, generator=g) < 0.5, t.sign() * 127.0, t) for t in inputs]
        model = qfunc.calibrate([tuple(inputs)], progress=False)(qfunc.quantize(target)(net.eval()))
        modules = {s.tensor: s.module for s in quantizer_nodes(model) if not s.module.site.constant}
        (*_, out) = modules.values()
        operands = modules["x" if net.conv is None else "conv"], modules["y"]
        for module, zero in zip((*operands, out), zeros, strict=True):
            module.zero_point.fill_(zero)
        if net.op is operator.mul:
            out.scale.fill_(float(operands[0].scale * operands[1].scale / (ratios[0] * ratios[1])))
        else:
            for module, ratio in zip(operands, ratios, strict=True):
                module.scale.fill_(float(out.scale * ratio))
        given = [(t - m.zero_point) * m.scale for t, m in zip(inputs, (modules["x"], modules["y"]), strict=True)]
        want = qfunc.emulate(target)(model)(*given)
        examples = [given] if joined else [[t[i : i + 1] for t in given] for i in range(2)]
        found = [runner.run(qfunc.deploy(target)(model), each)[0] for each in examples]
        assert torch.equal(want, torch.cat([torch.as_tensor(f) for f in found])), (net.op, shapes, ratios, zeros)
        ops[net.op.__name__] += 1
        elements += want.numel()

    law()
    return f"{ops.total():,} ops, {elements:,} elements, 0 differ: {dict(sorted(ops.items()))}"


@pytest.mark.parametrize("name", TARGETS)
def test_drawn_pairs_of_any_scales(name):
    runner = TARGETS[name].runtime.runner
    if runner.missing():
        pytest.skip(runner.missing())
    print(f"\n{name}: {pairs_law(TARGETS[name], runner, name.startswith('litert'))}")

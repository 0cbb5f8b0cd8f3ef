"""TVM by ONNX: uint8 on both sides of a product, against exact rationals."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import torch
from torch import Tensor, nn

import qfunc
from qfunc import targets
from qfunc.graph.interpreter import ObservingInterpreter
from qfunc.graph.sites import quantizer_nodes
from qfunc.specs import Int
from qfunc.testing import integer_oracle as oracle

QNN = targets.onnx_qnn


def test_both_zero_points_are_subtracted() -> None:
    """acc = sum (q_x - z_x)(q_w - z_w) + b, requantized by one float32 multiplier, half to even."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 5 * 6, 3)).eval()
    with torch.no_grad():
        net[0].weight.add_(0.05)
        net[3].weight.sub_(0.03)
    x = torch.randn(2, 3, 5, 6)
    model = qfunc.calibrate([x], progress=False)(qfunc.quantize(QNN)(net))
    found: dict[str, Tensor] = {}
    ObservingInterpreter(qfunc.emulate(QNN)(model), found.__setitem__).run(x, enable_io_processing=False)
    held = {s.module.site.name: s.module for s in quantizer_nodes(model)}

    def layer(codes, source: str, module: nn.Module, path: str, output: str, windows):
        (s_x, z_x, *_), (s_w, z_w, *_), (s_y, z_y, *_) = (held[n].qparams() for n in (source, f"{path}.weight", output))
        assert held[f"{path}.weight"].site.scheme.format == Int(8, signed=False)
        assert 0 < int(z_w) < 255
        w = np.array(
            [oracle.clamp(oracle.rounded(Fraction(float(np.float32(v) / np.float32(s_w))), "half_even") + int(z_w), 0, 255)
             for v in module.weight.detach().flatten().tolist()]
        ).reshape(tuple(module.weight.shape)) - int(z_w)  # fmt: skip
        m = oracle.multiplier(float(s_x), float(s_w), float(s_y))
        step = Fraction(float(np.float32(float(s_x)) * np.float32(float(s_w))))
        for o, b in enumerate(module.bias.tolist()):
            bias = oracle.rounded(Fraction(b) / step, "half_even")
            for index, window in windows(codes - int(z_x)):
                acc = int((window * w[o]).sum()) + bias
                yield o, index, oracle.requantize(acc, m, int(z_y), 0, 255)

    def patches(q):
        q = np.pad(q, [(0, 0), (0, 0), (1, 1), (1, 1)])
        for n, i, j in np.ndindex(2, 5, 6):
            yield (n, i, j), q[n, :, i : i + 3, j : j + 3]

    compared = 0
    for o, (n, i, j), code in layer(found["input_1_codes"].numpy().astype(np.int64), "input", net[0], "0", "1", patches):
        assert int(found["_1"][n, o, i, j]) == max(code, int(held["1"].qparams().zero_point))
        compared += 1
    flat = found["_2"].numpy().astype(np.int64)
    for o, n, code in layer(flat, "1", net[3], "3", "3", lambda q: enumerate(q)):
        assert int(found["_3"][n, o]) == code
        compared += 1
    assert compared == 2 * 4 * 30 + 2 * 3

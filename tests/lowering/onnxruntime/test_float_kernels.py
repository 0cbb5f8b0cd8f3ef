"""ONNX Runtime's float32 ops against `qfunc.targets.onnxruntime.mlas`, entry by entry: not one bit may differ."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime  # type: ignore[import-untyped]
import pytest
import torch
from onnx import TensorProto, helper
from torch import Tensor

from qfunc.numerics.kernels.integer import logistic
from qfunc.targets.executorch.functions import hard_swish_by_sixths
from qfunc.targets.onnxruntime import eigen
from qfunc.targets.onnxruntime import mlas as mlas_real
from tests.lowering.onnxruntime.test_kernels import REASON

CAPABILITY = torch.backends.cpu.get_cpu_capability()
WIDE = "AVX512" if REASON is None and CAPABILITY == "AVX512" else ""
pytestmark = pytest.mark.skipif(not WIDE, reason="without AVX-512, MLAS adds in another order")

GENERATOR = torch.Generator().manual_seed(3)
LOWEST = torch.finfo(torch.float32).min
# Every place of the grid that rows of 8, 16 and 48 make, and of what is left over in fours and ones.
SIZES = [1, 2, 3, 7, 8, 9, 11, 12, 15, 16, 17, 20, 23, 31, 47, 48, 49, 64, 100, 103, 384]


def run(op: str, *given: Tensor, opset: int = 21, threads: int = 0, **attributes: Any) -> Tensor:
    names = [f"x{i}" for i in range(len(given))]
    types = [TensorProto.FLOAT if v.is_floating_point() else TensorProto.INT64 for v in given]
    infos = [helper.make_tensor_value_info(n, t, None) for n, t in zip([*names, "y"], [*types, TensorProto.FLOAT], strict=True)]
    graph = helper.make_graph([helper.make_node(op, names, ["y"], **attributes)], "g", infos[:-1], infos[-1:])
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)], ir_version=10
    )
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    fed = {n: v.contiguous().numpy() for n, v in zip(names, given, strict=True)}
    return torch.from_numpy(session.run(None, fed)[0])


def normal(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=GENERATOR)


def differ(a: Tensor, b: Tensor) -> int:
    return int(((a != b) & ~(a.isnan() & b.isnan())).sum())


@pytest.mark.parametrize("size", SIZES)
def test_layer_norm(size: int) -> None:
    """Rows of every size with and without a bias; epsilons that vanish, that count, and that rule; large means."""
    weight, bias = normal(size), normal(size)
    for spread, mean, eps in ((3.0, 0.5, 1e-12), (1e-3, 0.0, 1e-5), (1.0, 1000.0, 1e-5), (1.0, 0.0, 2.0)):
        x = normal(61, size) * spread + mean
        found = mlas_real.layer_norm(x, (size,), weight, bias, eps)
        assert differ(found, run("LayerNormalization", x, weight, bias, axis=-1, epsilon=eps)) == 0
        bare = mlas_real.layer_norm(x, (size,), weight, None, eps)
        assert differ(bare, run("LayerNormalization", x, weight, axis=-1, epsilon=eps)) == 0


def test_layer_norm_over_two_axes() -> None:
    x, weight, bias = normal(5, 7, 3, 6), normal(3, 6), normal(3, 6)
    found = mlas_real.layer_norm(x, (3, 6), weight, bias)
    assert differ(found, run("LayerNormalization", x, weight, bias, axis=2, epsilon=1e-5)) == 0


@pytest.mark.parametrize("size", SIZES)
def test_softmax(size: int) -> None:
    """Masked by -infinity, by the least float and by -10000, also whole rows; exponentials down to the subnormal ones."""
    x = normal(40, size) * 4
    x[torch.rand(40, size, generator=GENERATOR) < 0.3] = -torch.inf
    x[0], x[1], x[2] = -torch.inf, LOWEST, -10000.0
    x[3] = torch.linspace(-104.2, -103.6, size).flip(0)
    x[3, 0] = 0.0
    x[4, ::2] = LOWEST
    assert differ(mlas_real.softmax(x, -1), run("Softmax", x, axis=-1)) == 0


def test_softmax_over_another_axis() -> None:
    x = normal(3, 19, 5, 4)
    assert differ(mlas_real.softmax(x, 1), run("Softmax", x, axis=1)) == 0


@pytest.mark.parametrize(
    ("op", "form", "attributes", "arguments"),
    [
        ("Gelu", mlas_real.gelu, {}, ()),
        ("Gelu", mlas_real.gelu, {"approximate": "tanh"}, ("tanh",)),
        ("Erf", mlas_real.erf, {}, ()),
        ("Tanh", mlas_real.tanh, {}, ()),
        ("Sigmoid", logistic, {}, ()),
        ("HardSigmoid", mlas_real.hard_sigmoid, {"alpha": 1 / 6, "beta": 0.5}, ()),
        ("HardSwish", hard_swish_by_sixths, {}, ()),
        ("QuickGelu", mlas_real.silu, {"alpha": 1.0, "domain": "com.microsoft"}, ()),
    ],
    ids=["gelu", "gelu by tanh", "erf", "tanh", "sigmoid", "hard sigmoid", "hard swish", "silu"],
)
def test_curves(op: str, form: Any, attributes: dict[str, str], arguments: tuple[str, ...]) -> None:
    """A fine grid over all that is no constant, what lies beside the seams, tiny, huge and subnormal numbers."""
    seams = torch.tensor([0.921875, 3.725, 3.925, 9.0, 18.0]).repeat_interleave(3)
    seams[::3], seams[2::3] = seams[::3].nextafter(torch.tensor(0.0)), seams[2::3].nextafter(torch.tensor(99.0))
    seams = torch.cat([seams, seams * np.float32(2**0.5)])
    sizes = torch.cat([seams, 10.0 ** torch.arange(-45, 5), torch.linspace(0, 20, 200_003)])
    x = torch.cat([sizes, -sizes, normal(100_000), torch.tensor([0.0, -0.0, torch.inf, -torch.inf, torch.nan])])
    assert differ(form(x, *arguments), run(op, x, **attributes)) == 0


@pytest.mark.parametrize("size", SIZES)
def test_rms_norm(size: int) -> None:
    """Rows that begin at all places of a packet of four; squares that are large, small and subnormal."""
    weight = normal(size)
    for spread, eps in ((3.0, 1e-6), (1e-3, 1e-5), (1e-22, 1e-12), (1e17, 2.0)):
        x = normal(3, 7, size) * spread
        square = run("Mul", x, x)
        mean = run("ReduceMean", square, axes=[-1], keepdims=1, opset=13)
        root = run("Sqrt", run("Add", mean, torch.tensor(eps)))
        wanted = run("Mul", run("Div", x, root), weight)
        assert differ(eigen.rms_norm(x, (size,), weight, eps), wanted) == 0


@pytest.mark.parametrize("size", SIZES)
def test_sums_of_rows(size: int) -> None:
    """Any number of rows, so that they begin at each place in a packet."""
    x, axes = normal(3, 7, size) * 10, torch.tensor([-1])
    for threads in (1, 2):
        assert differ(eigen.last_axis_sum(x, (-1,)), run("ReduceSum", x, axes, threads=threads, keepdims=0)) == 0
        assert differ(eigen.last_axis_sum(x, -1, True), run("ReduceSum", x, axes, threads=threads)) == 0


@pytest.mark.thorough
@pytest.mark.parametrize(("op", "form"), [("Sin", eigen.sin), ("Cos", eigen.cos)])
@pytest.mark.parametrize("rest", [0, 1, 2, 3])
def test_angles(op: str, form: Any, rest: int) -> None:
    """Integers as positions are, small and large angles up to the last float, multiples of pi / 4, and what fills no packet."""
    places = torch.arange(60_000.0)
    large = 2.0 ** torch.linspace(-126, 127.9, 4001)
    eighths = torch.arange(4000) * np.float32(np.pi / 4)
    x = torch.cat([places, large, -large, eighths, eighths.nextafter(torch.tensor(0.0)), normal(50_000) * 300])
    x = torch.cat([x[: len(x) // 4 * 4], torch.tensor([-0.0, 1.5, -700.25])[:rest]])
    assert differ(form(x), run(op, x)) == 0

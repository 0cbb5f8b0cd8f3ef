"""Quantizers to E4M3 in ONNX: each value is that of the simulation, at ties, at the ends and below the smallest scale."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import onnx
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from qfunc.graph.sites import quantizer_nodes
from qfunc.lowering.onnx.builder import GraphBuilder
from qfunc.lowering.onnx.shape_inference import Shape
from qfunc.lowering.onnx_quantizers.floats import is_small_float, write_dynamic_floats, write_float_quantizer
from qfunc.lowering.onnxruntime.session import Session
from qfunc.numerics import fake_quantize, of_tensor
from qfunc.placement.encoding import encoding_of
from qfunc.specs import E2M1, E4M3FN, E5M2, PerToken, Scale, Scheme
from tests.lowering.compressed_tensors.checkpoints import deployed, e4m3, layers, read

VALUES = sorted({e4m3(code) for code in range(256) if code & 127 != 127})
TOKENS = Scheme(E4M3FN, Scale(PerToken(), dynamic=True, low=1 / (448 * 512)))


def rows(seed: int, kind: str) -> torch.Tensor:
    """Rows whose largest value is 448 and whose entries lie halfway between two values; or of many ranges; or tiny."""
    r = np.random.default_rng(seed)
    x = r.standard_normal((4, 16)) * 2.0 ** r.integers(-30, 30, (4, 1))
    if kind == "ties":
        index = r.integers(0, len(VALUES) - 1, (4, 16))
        x = (np.array(VALUES)[index] + np.array(VALUES)[index + 1]) / 2
        x[:, 0] = 448.0
    if kind == "tiny":
        x *= 2.0 ** r.integers(-110, -20, (4, 1))
        x[0] = 0.0
    return torch.from_numpy(x.astype(np.float32))


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from(("normal", "ties", "tiny")), st.booleans())
def test_tokens_in_onnx_are_those_of_the_simulation(seed: int, kind: str, division: bool) -> None:
    scheme = Scheme(E4M3FN, TOKENS.scale, division=division)
    graph, x = GraphBuilder(21), rows(seed, kind)
    graph.fresh("x")
    graph.declare("x", Shape((4, 16), torch.float32))
    real = write_dynamic_floats(graph, "x", scheme, 16, "x")
    graph.declare(real, Shape((4, 16), torch.float32), output=True)

    (found,) = Session(graph.model("tokens").SerializeToString(), optimise=False).run([x.numpy()])

    np.testing.assert_array_equal(found, fake_quantize(x, of_tensor(x, scheme), scheme).numpy())


@cache
def static(scheme: str) -> tuple[Any, Any]:
    """The quantizer of an input with one static scale, and its session."""
    simulation, artifact = deployed(scheme, layers())
    seat = next(q for q in quantizer_nodes(simulation) if not q.module.site.constant)
    assert read(artifact.files["model.safetensors"])["0.input_scale"].tolist() == [seat.module.qparams().scale.item()]
    graph = GraphBuilder(21)
    graph.fresh("x")
    graph.declare("x", Shape((4, 16), torch.float32))
    real = write_float_quantizer(graph, "x", encoding_of(seat, seat.module.qparams()), "x")
    graph.declare(real, Shape((4, 16), torch.float32), output=True)
    return seat.module, Session(graph.model("static").SerializeToString(), optimise=False)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from(("normal", "ties", "tiny")))
def test_static_scales_in_onnx_are_multiplied_by_their_inverse_as_in_vllm(seed: int, kind: str) -> None:
    """At every value: x (1 / s), which differs from x / s at ties."""
    module, session = static("FP8_CHANNEL")
    x = rows(seed, kind) * float(module.qparams().scale) if kind == "ties" else rows(seed, kind)

    (found,) = session.run([x.numpy()])

    np.testing.assert_array_equal(found, module(x).detach().numpy())
    scale = np.float32(module.qparams().scale)
    quotient = np.clip(x.numpy() * (np.float32(1) / scale), -448, 448)
    np.testing.assert_array_equal(torch.from_numpy(quotient).to(torch.float8_e4m3fn).float() * scale, found)


def test_formats_whose_values_e4m3_has() -> None:
    assert [is_small_float(Scheme(f)) for f in (E4M3FN, E2M1, E5M2)] == [True, True, False]
    assert onnx.TensorProto.FLOAT8E4M3FN == 17  # the type of the casts

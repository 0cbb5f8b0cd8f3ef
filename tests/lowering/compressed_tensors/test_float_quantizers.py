"""Quantizers to E4M3 in ONNX: each value is that of the simulation, at ties, at the ends and below the smallest scale."""

from __future__ import annotations

from fractions import Fraction
from functools import cache
from typing import Any

import numpy as np
import onnx
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from qfunc import targets
from qfunc.graph.sites import quantizer_nodes
from qfunc.lowering.onnx.builder import GraphBuilder
from qfunc.lowering.onnx.shape_inference import Shape
from qfunc.lowering.onnx_quantizers.floats import is_small_float, write_dynamic_floats, write_float_quantizer
from qfunc.lowering.onnxruntime.session import Session
from qfunc.numerics import fake_quantize, of_tensor
from qfunc.placement.encoding import encoding_of
from qfunc.specs import PerToken, Scale, Scheme
from qfunc.specs.formats import E2M1, E4M3FN, E5M2
from tests.lowering.compressed_tensors.checkpoints import deployed, e4m3, layers, read

VALUES = sorted({e4m3(code) for code in range(256) if code & 127 != 127})
MXFP4_INPUT = targets.compressed_tensors("MXFP4").rules[0].input
NVFP4_INPUT = targets.compressed_tensors("NVFP4").rules[0].input
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


def e2m1_rows(seed: int, kind: str, scale: float) -> torch.Tensor:
    """Rows of blocks whose largest value is 6 scales and whose entries lie halfway between two values; or as `rows`."""
    r = np.random.default_rng(seed)
    if kind != "ties":
        return rows(seed, kind).repeat(1, 4)
    values = np.array([-6, -4, -3, -2, -1.5, -1, -0.5, 0, 0.5, 1, 1.5, 2, 3, 4, 6])
    index = r.integers(0, len(values) - 1, (4, 64))
    x = (values[index] + values[index + 1]) / 2
    x[:, ::16] = 6.0 * 2.0 ** r.integers(-2, 3, (4, 4))
    return torch.from_numpy((x * scale).astype(np.float32))


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from(("normal", "ties", "tiny")), st.sampled_from((1.0, 2.0**-9, 2.0**4)))
def test_blocks_of_fp4_in_onnx_are_those_of_the_simulation(seed: int, kind: str, outer: float) -> None:
    """Scales of powers of two, and scales of E4M3 within a calibrated one, at ties and beyond the calibrated range."""
    for scheme in (MXFP4_INPUT, NVFP4_INPUT):
        graph, x = GraphBuilder(21), e2m1_rows(seed, kind, outer)
        graph.fresh("x")
        graph.declare("x", Shape((4, 64), torch.float32))
        real = write_dynamic_floats(graph, "x", scheme, 64, "x", outer)
        graph.declare(real, Shape((4, 64), torch.float32), output=True)

        (found,) = Session(graph.model("blocks").SerializeToString(), optimise=False).run([x.numpy()])

        of_calibration = torch.tensor(outer) if scheme is NVFP4_INPUT else None
        np.testing.assert_array_equal(found, fake_quantize(x, of_tensor(x, scheme, of_calibration), scheme).numpy())


def exact_fp4(block: np.ndarray[Any, Any], outer: Fraction | None) -> list[Fraction]:
    """A block of FP4 in exact numbers: the scale by the definition, then the nearest value, of two the even one."""
    largest = max(Fraction(float(v)) for v in np.abs(block))
    real = largest / 6
    if outer is None:
        scale = Fraction(1, 2**127)
        while scale < real:
            scale *= 2
    else:
        steps = sorted({Fraction(e4m3(code)) for code in range(1, 127)})
        wanted = real / outer if largest else Fraction(1)
        nearest = min(abs(s - wanted) for s in steps)
        scale = next(s for s in steps if abs(s - wanted) == nearest) * outer
    values = [Fraction(v) for v in (0, 0.5, 1, 1.5, 2, 3, 4, 6)]
    found = []
    for v in block:
        size = min(abs(Fraction(float(v))) / scale, Fraction(6))
        index = min(range(8), key=lambda i: (abs(values[i] - size), i % 2))
        found.append(values[index] * scale * (-1 if v < 0 else 1))
    return found


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from(("normal", "ties")), st.sampled_from((1.0, 2.0**-9, 2.0**4)))
def test_blocks_of_fp4_by_exact_numbers(seed: int, kind: str, outer: float) -> None:
    x = e2m1_rows(seed, kind, outer)

    for scheme, of_calibration in ((MXFP4_INPUT, None), (NVFP4_INPUT, outer)):
        given_outer = None if of_calibration is None else torch.tensor(of_calibration)
        found = fake_quantize(x, of_tensor(x, scheme, given_outer), scheme).numpy()
        size = scheme.scale.shared.size
        for row, real in zip(x.numpy(), found, strict=True):
            for start in range(0, 64, size):
                wanted = exact_fp4(row[start : start + size], None if of_calibration is None else Fraction(outer))
                assert [Fraction(float(v)) for v in real[start : start + size]] == wanted


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

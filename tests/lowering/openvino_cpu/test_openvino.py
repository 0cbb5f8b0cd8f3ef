"""OpenVINO: FakeQuantize's tie rule by its formula, and both it and whole networks against the runtime where it is."""

from __future__ import annotations

import importlib.util
from fractions import Fraction

import numpy as np
import pytest
import torch
from attrs import evolve
from torch import nn

import qfunc
from qfunc import targets
from qfunc.graph.sites import quantizer_nodes
from qfunc.numerics.affine import fake_quantize, quantize
from qfunc.numerics.qparams import Affine
from qfunc.specs import Int, Scheme, edit
from qfunc.testing.oracle import rounded
from qfunc.testing.small_models import Block, SmallNet
from tests.conformance.modules import Apply
from tests.on_integers import on_integers

FORMATS = [Int(8), Int(8, low=-127), Int(8, signed=False), Int(8, low=-64, high=63)]
INSTALLED = importlib.util.find_spec("openvino") is not None
needs_openvino = pytest.mark.skipif(not INSTALLED, reason="openvino is not installed")


def _fake_quantized(x: Fraction, low: Fraction, high: Fraction, levels: int) -> Fraction:
    # FakeQuantize-1: round((x - low) / (high - low) * (levels - 1)) / (levels - 1) * (high - low) + low, half to even.
    if x <= low:
        return low
    if x > high:
        return high
    return rounded((x - low) / (high - low) * (levels - 1), "half_even") * (high - low) / (levels - 1) + low


def _ties(fmt: Int) -> list[Fraction]:
    return [Fraction(2 * k + 1, 2) * Fraction(1, 2) for k in range(fmt.qmin - 9, fmt.qmax + 9)]


@pytest.mark.parametrize("fmt", FORMATS)
def test_ties_go_to_the_even_index_of_the_level(fmt: Int) -> None:
    """With 255 levels the index is q + 127: ties go to odd integers."""
    scale, scheme = Fraction(1, 2), Scheme(fmt, rounding="half_even_on_index")
    one = Affine(torch.tensor(0.5), torch.tensor(0.0))
    x = torch.tensor([float(v) for v in _ties(fmt)])
    wanted = [_fake_quantized(v, fmt.qmin * scale, fmt.qmax * scale, fmt.qmax - fmt.qmin + 1) for v in _ties(fmt)]
    assert fake_quantize(x, one, scheme).tolist() == [float(v) for v in wanted]
    odd = quantize(torch.tensor([0.25, 0.75, -0.25]), one, scheme) % 2
    assert odd.tolist() == ([1.0] * 3 if fmt.qmin == -127 else [0.0] * 3)


@needs_openvino
@pytest.mark.parametrize("fmt", FORMATS)
def test_the_runtime_breaks_ties_so(fmt: Int) -> None:
    from openvino import Core, Model, Type, opset13

    x = np.array([[float(v) for v in _ties(fmt)]], dtype=np.float32)
    given = opset13.parameter(list(x.shape), Type.f32)
    low, high = (opset13.constant(np.full((1, 1), q * 0.5, dtype=np.float32)) for q in (fmt.qmin, fmt.qmax))
    made = opset13.fake_quantize(given, low, high, low, high, fmt.qmax - fmt.qmin + 1)
    run = Core().compile_model(Model([opset13.result(made)], [given]), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    ours = fake_quantize(
        torch.from_numpy(x), Affine(torch.tensor(0.5), torch.tensor(0.0)), Scheme(fmt, rounding="half_even_on_index")
    )
    assert np.array_equal(run([x])[0], ours.numpy())


def _halved(rule):
    # Half the range of weights, with which no pair of products overflows on CPUs without VNNI.
    weight = rule.weight and evolve(rule.weight, format=Int(8, low=-64, high=63))
    return evolve(rule, weight=weight)


HALF = evolve(targets.openvino, rules=tuple(_halved(r) for r in targets.openvino.rules), legality=())
NETS = {
    "convolutions": (Block("conv", 3, 8, 3, act="relu"), Block("conv", 8, 16, 3, act="relu"), Block("conv", 16, 6, 3)),
    "classifier": (
        Block("conv", 3, 8, 3, act="relu", norm=True), Block("add", 8, 8, 3, act="relu"), Block("max_pool", kernel=3, stride=2),
        Block("conv", 8, 8, 3, groups=8, act="relu6"), Block("mean"), Block("linear", 8, 5),
    ),
}  # fmt: skip


@needs_openvino
@pytest.mark.parametrize("name", NETS)
def test_emulation_is_what_the_runtime_computes(name: str) -> None:
    """Int8 convolutions, and a float layer at the end that shows whether any code before it differs."""
    from openvino import Core

    torch.manual_seed(0)
    net, x = SmallNet(NETS[name]), torch.randn(4, 3, 24, 26)
    model = qfunc.calibrate([x], progress=False)(qfunc.quantize(HALF)(net))
    artifact = qfunc.deploy(HALF)(model)
    run = Core().compile_model(Core().read_model(artifact.files["model.onnx"]), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    with torch.no_grad():
        emulated, found = qfunc.emulate(HALF)(model)(x), torch.from_numpy(run([x.numpy()])[0].copy())
    # The last layer's sums are float32 in another order, some 2^-24 for each of up to 144 terms; one wrong code before
    # it moves an output by a scale times a weight, a hundred times as much.
    assert float((emulated - found).abs().max()) < 4e-6 * float(found.abs().max())


def test_a_concat_has_one_scale_and_the_sign_of_its_parts() -> None:
    torch.manual_seed(0)

    class Both(nn.Module):
        """Two branches, with a ReLU or without."""

        def __init__(self, act: nn.Module) -> None:
            super().__init__()
            self.a, self.b, self.last, self.act = nn.Conv2d(3, 4, 1), nn.Conv2d(3, 2, 3, padding=1), nn.Conv2d(6, 5, 1), act

        def forward(self, x):
            """[N, 3, H, W]."""
            return self.last(torch.cat([torch.relu(self.a(x)), self.act(self.b(x))], 1))

    for act, fmt in ((nn.ReLU(), Int(8, signed=False)), (nn.Identity(), Int(8))):
        model = qfunc.quantize(targets.openvino)(Both(act).eval())
        sites = {s.tensor: s.module for s in quantizer_nodes(qfunc.calibrate([torch.randn(2, 3, 5, 7)], progress=False)(model))}
        tied = [sites[n] for n in ("relu", "cat", "act" if fmt.qmin == 0 else "b")]
        assert [m.site.scheme.format for m in tied] == [fmt] * 3
        assert len({m.qparams().scale.item() for m in tied}) == 1


@needs_openvino
@pytest.mark.parametrize("behind", [(), (Block("mean"), Block("linear", 8, 5))], ids=["its output quantized", "a linear layer"])
def test_tensors_of_two_scales_and_quantized_outputs_are_not_mixed_up(behind: tuple[Block, ...]) -> None:
    """What the concat reads and what the conv reads have scales of their own; weights of 7 bits are exact on every CPU."""
    target = edit.weights(bits=7)(on_integers(targets.openvino))
    model = SmallNet((Block("conv", 3, 4, 3, act="relu"), Block("concat", 4, 4, 1), *behind), seed=1)
    batches = [torch.randn(2, 3, 9, 11, generator=torch.Generator().manual_seed(seed)) for seed in range(2)]
    calibrated = qfunc.calibrate(batches)(qfunc.quantize(target)(model))
    assert {s.module.site.name for s in quantizer_nodes(calibrated)} >= {"relu", "relu@cat"}
    report = qfunc.verify(target)(calibrated, batches)
    assert report.agreement.startswith("bit-exact"), report
    assert {row.name for row in report.of("codes")} - {"mean", "flatten"} == {"x", "layers.1", "cat"}


@needs_openvino
@pytest.mark.parametrize("shape", [(6, 6), (6, 1), (6,)])
@pytest.mark.parametrize("left", [False, True])
def test_factors_of_a_matrix_product_are_those_of_their_axes(shape, left):
    """Fused into the product, factors of rows are read along columns: the output was off by 355 LSB."""
    torch.manual_seed(0)
    weight, factors = torch.randn(6, 6), torch.rand(shape) + 0.5
    net = Apply(lambda x, w, c: torch.sigmoid((w @ x if left else x @ w) * c), weight, factors).eval()
    batches = [torch.randn(2, 6, 6) for _ in range(2)]
    target = edit.skip(edit.op("mul"))(targets.openvino)
    calibrated = qfunc.calibrate(batches, progress=False)(qfunc.quantize(target)(net))
    assert qfunc.verify(target)(calibrated, batches).agreement.startswith("bit-exact")

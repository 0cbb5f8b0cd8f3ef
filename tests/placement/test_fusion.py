"""Fusions are values: ops of every rank, with and without a norm, with every activation, run as one unit."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from attrs import evolve
from torch import Tensor, nn

import qfunc
from qfunc.frontend.capture import capture
from qfunc.graph.selectors import Context
from qfunc.passes.fold_batch_norm import fold_batch_norms
from qfunc.placement.fusion import match_fusions
from qfunc.specs import AnyInput, Attr, Constant, Fusion, FusionStep, Op, Rule, edit
from qfunc.targets.onnxruntime.target import onnxruntime
from qfunc.targets.tensorrt.target import tensorrt

OPS: dict[str, tuple[Callable[[], nn.Module], Callable[[], nn.Module], tuple[int, ...]]] = {
    "conv1d": (lambda: nn.Conv1d(4, 6, 3), lambda: nn.BatchNorm1d(6), (2, 4, 7)),
    "conv2d": (lambda: nn.Conv2d(4, 6, (2, 3), groups=2), lambda: nn.BatchNorm2d(6), (2, 4, 7, 5)),
    "conv3d": (lambda: nn.Conv3d(4, 6, 2, bias=False), lambda: nn.BatchNorm3d(6), (2, 4, 3, 5, 7)),
    "deconv1d": (lambda: nn.ConvTranspose1d(4, 6, 3, bias=False), lambda: nn.BatchNorm1d(6), (2, 4, 7)),
    "deconv2d": (lambda: nn.ConvTranspose2d(4, 6, (2, 3), groups=2), lambda: nn.BatchNorm2d(6), (2, 4, 7, 5)),
    "deconv3d": (lambda: nn.ConvTranspose3d(4, 6, 2), lambda: nn.BatchNorm3d(6), (2, 4, 3, 5, 7)),
    "linear": (lambda: nn.Linear(4, 6), lambda: nn.BatchNorm1d(6), (3, 4)),
}
ACTS: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "relu": (nn.ReLU, "relu"), "relu6": (nn.ReLU6, "clip"), "leaky_relu": (lambda: nn.LeakyReLU(0.2), "leaky_relu"),
    "prelu": (lambda: nn.PReLU(6), "prelu"), "hardswish": (nn.Hardswish, "hardswish"), "silu": (nn.SiLU, "silu"),
    "gelu": (nn.GELU, "gelu"), "gelu, tanh": (lambda: nn.GELU("tanh"), "gelu"), "clip": (lambda: nn.Hardtanh(-0.5, 2), "clip"),
    "in place": (lambda: nn.ReLU(inplace=True), "relu"), "hardsigmoid": (nn.Hardsigmoid, "hardsigmoid"),
    "mish": (nn.Mish, "mish"), "elu": (nn.ELU, "elu"), "sigmoid": (nn.Sigmoid, "sigmoid"), "tanh": (nn.Tanh, "tanh"),
}  # fmt: skip
WEIGHTED = Op(("conv", "conv_transpose", "linear"))
EVERY = Fusion(WEIGHTED, (FusionStep(Op("add")), FusionStep(Op(tuple({kind for _, kind in ACTS.values()})))))


def units(model: nn.Module, *fusions: Fusion) -> list[list[str]]:
    network = fold_batch_norms(capture()(model.eval()))
    context = Context(network)
    return [[context.kind(n) for n in g.nodes] for g in match_fusions(context, fusions).groups]


def kind_of_op(name: str) -> str:
    return name[:-2].replace("deconv", "conv_transpose") if name[-1] == "d" else name


@pytest.mark.thorough
@pytest.mark.parametrize("name", OPS)
def test_op_norm_and_activation_are_one_unit(name: str) -> None:
    make, norm, _ = OPS[name]
    kind = kind_of_op(name)
    for (act, (activation, word)), normed in itertools.product(ACTS.items(), (True, False)):
        parts = [make(), *([norm()] if normed else []), activation()]
        assert units(nn.Sequential(*parts), EVERY) == [[kind, word]], (act, normed)


@pytest.mark.thorough
@pytest.mark.parametrize("name", OPS)
def test_one_unit_has_one_output_site(name: str) -> None:
    make, norm, shape = OPS[name]
    target = evolve(tensorrt, fusions=(EVERY,), legality=())
    for act, (activation, _) in ACTS.items():
        model = nn.Sequential(make(), norm(), activation()).eval()
        quantized = qfunc.quantize(target)(model)
        sites = [(s.tensor, s.slot) for s in qfunc.explain(quantized).sites if s.slot in ("input", "output")]
        assert len(sites) == len({t for t, _ in sites}), act
        assert all(tensor not in ("0", "1") for tensor, _ in sites), (act, sites)
        x = torch.randn(shape, generator=torch.Generator().manual_seed(1))
        assert qfunc.calibrate([x])(quantized)(x).shape == model(x).shape


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 5, 1), nn.Conv2d(3, 5, 1)
        self.na, self.nb = nn.BatchNorm2d(5), nn.BatchNorm2d(5)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.na(self.a(x)) + self.nb(self.b(x)))


def test_the_later_conv_takes_the_add_and_its_relu() -> None:
    assert units(Residual(), EVERY) == [["conv"], ["conv", "add", "relu"]]
    assert units(Residual(), Fusion(Op("add"), FusionStep(Op("relu")))) == [["conv"], ["conv"], ["add", "relu"]]


def test_a_constant_scale_of_columns_behind_a_conv() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.gain = nn.Conv2d(3, 5, 2), nn.Parameter(torch.ones(7))

        def forward(self, x: Tensor) -> Tensor:
            return F.relu(self.conv(x) * self.gain)

    fusion = Fusion(WEIGHTED, (FusionStep(Op("mul") & AnyInput(Constant())), FusionStep(Op("relu"))))
    assert units(Scaled(), fusion) == [["conv", "mul", "relu"]]


def test_pad_and_conv_are_one_unit_where_a_fusion_says_so() -> None:
    model = nn.Sequential(nn.ZeroPad2d((0, 1, 2, 0)), nn.Conv2d(3, 5, 2), nn.BatchNorm2d(5), nn.ReLU())
    fusion = Fusion(Op("pad"), (FusionStep(Op("conv"), optional=False), FusionStep(Op("relu"))))
    assert units(model, fusion) == [["pad", "conv", "relu"]]
    rule = next(r for r in tensorrt.rules if r.weight is not None)
    target = evolve(
        tensorrt, fusions=(fusion,), legality=(), rules=(Rule(Op("pad"), input=rule.input, weight=rule.weight),), commuting=()
    )
    sites = qfunc.explain(qfunc.quantize(target)(model.eval())).sites
    assert [(s.tensor, s.slot, s.op) for s in sites] == [("input", "input", "0"), ("1.weight", "weight", "0")]


@pytest.mark.parametrize("pad", [nn.ZeroPad2d((0, 1, 2, 0)), nn.ReflectionPad2d(1)], ids=lambda p: type(p).__name__)
def test_padding_that_moves_codes_needs_no_quantizer_of_its_own(pad: nn.Module) -> None:
    target = evolve(onnxruntime, commuting=onnxruntime.commuting | Op("pad"), fusions=(EVERY,))
    sites = qfunc.explain(qfunc.quantize(target)(nn.Sequential(pad, nn.Conv2d(3, 5, 2), nn.ReLU()).eval())).sites
    assert [s.tensor for s in sites if s.slot in ("input", "output")] == ["input", "2"]


def test_an_embedding_has_its_table_quantized() -> None:
    target = evolve(
        tensorrt, rules=(Rule(Op("embedding"), weight=next(r.weight for r in tensorrt.rules if r.weight)),), legality=()
    )
    model = nn.Sequential(nn.Embedding(7, 4), nn.Linear(4, 3))
    sites = qfunc.explain(qfunc.quantize(target)(model)).sites
    assert [(s.tensor, s.slot, s.op) for s in sites] == [("0.weight", "weight", "0")]


def misses(model: nn.Module, *fusions: Fusion) -> set[tuple[str, str, str]]:
    target: Any = evolve(onnxruntime, fusions=fusions)
    return set(qfunc.explain(qfunc.quantize(target)(model.eval())).misses)


def test_when_decides_by_structure() -> None:
    model = nn.Sequential(nn.Conv2d(4, 4, 1, groups=4), nn.ReLU(), nn.Conv2d(4, 4, 1), nn.ReLU())
    fusion = Fusion(Op("conv"), FusionStep(Op("relu")), when=Attr("groups", 1))
    assert units(model, fusion) == [["conv"], ["relu"], ["conv", "relu"]]
    assert misses(model, fusion) == {("0", "1", "the fusion requires Attr('groups', equals=1)")}
    assert misses(model, fusion, Fusion(Op("conv"), FusionStep(Op("relu")))) == set()


class ReadTwice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 5, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x)
        return F.relu(y) - y


def test_near_misses_say_why() -> None:
    relu = Fusion(Op("conv"), FusionStep(Op("relu")))
    assert misses(ReadTwice(), relu) == {("conv", "relu", "'conv' is read 2 times, and a fused op may be read only once")}
    late = ("a", "add", "another input of 'add' is not computed before 'a'")
    assert misses(Residual(), Fusion(Op("conv"), (FusionStep(Op("add")), FusionStep(Op("relu"))))) == {late}
    needed = Fusion(Op("conv"), (FusionStep(Op("add"), optional=False), FusionStep(Op("relu"))))
    plain = nn.Sequential(nn.Conv2d(3, 5, 1), nn.ReLU())
    assert misses(plain, needed) == {("0", "1", "Op('add') must stand between them")}
    assert misses(nn.Sequential(nn.Conv2d(3, 5, 1), nn.Sigmoid()), needed, relu) == set()


@pytest.mark.parametrize("kind", ["silu", "leaky_relu", "relu"])
def test_an_integer_kernel_does_not_swallow_an_activation(kind: str) -> None:
    # The kernels' conv knows relu and clip as bounds of its codes; a unit that ends otherwise runs in float.
    torch.manual_seed(0)
    target = edit.fuse(Fusion(Op("conv"), FusionStep(Op(kind))))(onnxruntime)
    model, x = nn.Sequential(nn.Conv2d(3, 5, 3), ACTS[kind][0]()), torch.randn(2, 3, 8, 7)
    calibrated = qfunc.calibrate([x])(qfunc.quantize(target)(model))
    step = calibrated(x).unique().diff().min()
    # Float sums may fall on another side of a tie, one code of the output's.
    assert (qfunc.emulate(target)(calibrated)(x) - calibrated(x)).abs().max() <= 1.001 * step
    floats = [(f.op, f.why) for f in qfunc.explain(calibrated).floats]
    assert floats == ([] if kind == "relu" else [("0", f"its integer kernel does not compute {kind}, which is fused with it")])

"""Programs after `run_decompositions` are captured as the programs before: the same ops, folds, sites and scales."""

from __future__ import annotations

import operator
from collections import Counter
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from networks.exported import Encoder
from torch import Tensor, fx, nn

import qfunc
from qfunc.errors import CaptureError
from qfunc.graph.view import QuantizedModel
from qfunc.ops.node import kind_of
from qfunc.placement.partition import Partition
from qfunc.targets.runtimes import OnnxRuntimeRunner
from tests.onnxruntime_target import ONNXRUNTIME

pytestmark = pytest.mark.filterwarnings("ignore")  # torch.export warns of its own use of deprecated names
TARGET, VARY = ONNXRUNTIME, {0: torch.export.Dim.AUTO}
MOVES = ("reshape", "flatten", "transpose", "squeeze", "unsqueeze", "slice", "expand", "split", "chunk", "unbind", "size",
         "constant", "input", "output", "cast", "stack", "dropout")  # fmt: skip


class Convolutions(nn.Module):
    """Of one to three axes, grouped, transposed, with and without bias, BatchNorms behind."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.three = nn.Conv1d(4, 6, 3), nn.Conv2d(4, 6, 3, 2, 1, groups=2), nn.Conv3d(1, 2, 2, bias=False)
        self.up1, self.up2 = nn.ConvTranspose1d(6, 4, 2, 2), nn.ConvTranspose2d(6, 4, 3, 2, 1, 1, groups=2, bias=False)
        self.up3 = nn.ConvTranspose3d(2, 3, 2)
        self.norm1, self.norm2, self.norm3 = nn.BatchNorm1d(6), nn.BatchNorm2d(6), nn.BatchNorm3d(2, affine=False)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """[N, 4, 6, 5]"""
        a = self.up1(self.norm1(self.one(x[:, :, 0])))
        b = self.up2(F.relu(self.norm2(self.two(x))))
        return a, b, self.up3(self.norm3(self.three(x[:, None])))


class Norms(nn.Module):
    """What run_decompositions makes native or a BatchNorm of another shape."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.batch = nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4)
        self.layer, self.group = nn.LayerNorm(5), nn.GroupNorm(2, 4)
        self.plain, self.affine = nn.InstanceNorm2d(4), nn.InstanceNorm2d(4, affine=True)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        """[N, 4, 6, 5]"""
        x = self.conv(x)
        return self.layer(x), self.group(x), self.plain(x), self.affine(x), self.batch(F.relu(x))


class Products(nn.Module):
    """Linear layers of any rank, matrix products that broadcast."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(5, 4), nn.Linear(5, 3, bias=False), nn.Linear(6, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        """[N, 4, 6, 5]"""
        turned = self.c(x.transpose(2, 3))
        return (
            self.a(x),
            self.b(x[:, 0]),
            self.a(x[:, 0, 0]),
            self.b(x[:, 0, 0]),
            turned,
            x @ x.transpose(-1, -2),
            x @ x[:1, :1].transpose(-1, -2),
            torch.bmm(x[:, 0], x[:, 1].transpose(1, 2)),
        )


class Attention(nn.Module):
    """Both spellings of it, with masks of both types, and a scale of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.heads = nn.MultiheadAttention(4, 2, batch_first=True)
        self.project = nn.Linear(5, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        """[N, 4, 6, 5]"""
        x = self.project(x)
        seen = torch.arange(6)[:, None] >= torch.arange(6)
        far = torch.zeros(6, 6, dtype=x.dtype) - 2.0
        return (
            self.heads(x[:, 0], x[:, 1], x[:, 1], need_weights=False)[0],
            F.scaled_dot_product_attention(x, x, x, seen),
            F.scaled_dot_product_attention(x, x, x, far),
            F.scaled_dot_product_attention(x, x[:, :1], x[:, :1], scale=0.3),
        )


class Curves(nn.Module):
    """Activations, pools, padding, numbers in where."""

    def __init__(self) -> None:
        super().__init__()
        self.prelu, self.one = nn.PReLU(4), nn.PReLU()

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        """[N, 4, 6, 5]"""
        curves = (F.relu6, F.hardswish, F.hardsigmoid, F.silu, F.mish, F.softplus, F.elu, F.selu, F.gelu, F.leaky_relu,
                  F.logsigmoid, self.prelu, self.one)  # fmt: skip
        return (
            *(f(x) for f in curves),
            F.celu(x, 2.0),
            F.celu(x),
            F.glu(x, 1),
            F.softmax(x, -1),
            F.log_softmax(x, 1),
            F.max_pool2d(x, 2, ceil_mode=True),
            F.adaptive_avg_pool2d(x, 1),
            F.adaptive_avg_pool2d(x, (2, 5)),
            F.pad(x, (1, 2), value=0.5),
            x.masked_fill(x > 0, -1.0),
            torch.where(x > 0, x, 0.5),
        )


NETS = (Convolutions, Norms, Products, Attention, Curves)


def programs(model: nn.Module, dtype: torch.dtype = torch.float32) -> tuple[Any, Any, Tensor]:
    """(program, the same decomposed, an input)."""
    torch.manual_seed(0)
    x = torch.randn(2, 4, 6, 5, dtype=dtype)
    exported = torch.export.export(model, (x,), dynamic_shapes=(VARY,))
    return exported, exported.run_decompositions(), x


def kinds(captured: fx.GraphModule) -> Counter[str]:
    """How often each kind of op that computes; arithmetic on sizes is none."""
    nodes = [n for n in captured.graph.nodes if n.target is not operator.mul]
    return Counter(kind for n in nodes if (kind := kind_of(n)) not in MOVES)


@pytest.mark.thorough
@pytest.mark.parametrize("as_module", [False, True], ids=["program", "module"])
@pytest.mark.parametrize("kind", NETS)
def test_the_ops_are_those_of_the_program_before(kind: type[nn.Module], as_module: bool) -> None:
    torch.manual_seed(1)
    model = kind().eval().double()
    before, after, x = programs(model, torch.float64)
    captured = qfunc.capture()(after.module() if as_module else after)
    assert kinds(captured) == kinds(qfunc.capture()(before))
    assert "unknown" not in kinds(captured)
    more = torch.randn(3, 4, 6, 5, dtype=torch.float64)
    for given in (x, more):
        for found, wanted in zip(captured(given), model(given), strict=True):
            torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)  # float64, sums in other orders


@pytest.mark.thorough
@pytest.mark.parametrize("kind", NETS)
def test_it_quantizes_as_before_and_the_runtime_computes_it(kind: type[nn.Module]) -> None:
    torch.manual_seed(1)
    before, after, x = programs(kind().eval())
    one, other = (qfunc.calibrate([x], progress=False)(qfunc.quantize(TARGET)(p)) for p in (before, after))
    products = ("conv", "conv_transpose", "linear", "matmul")
    units = [
        sorted((u.kind, u.path, u.integer) for u in Partition(QuantizedModel(m), TARGET).units if u.kind in products)
        for m in (one, other)
    ]
    assert units[1] == units[0]
    weights = [{s.tensor: (s.format, s.scale) for s in qfunc.explain(m).sites if s.slot == "weight"} for m in (one, other)]
    assert weights[1] == weights[0]
    artifact, given = qfunc.deploy(TARGET)(other), torch.randn(3, 4, 6, 5)
    for ran, simulated in zip(OnnxRuntimeRunner(optimise=False).run(artifact, [given]), other(given), strict=True):
        # The same formulas in float32; a code flips where the order of a sum differs.
        assert torch.cosine_similarity(torch.from_numpy(ran).flatten(), simulated.flatten(), 0) >= 0.9999


@pytest.mark.thorough
def test_a_transformer_of_any_batch_and_length() -> None:
    torch.manual_seed(0)
    vary = {0: torch.export.Dim.AUTO, 1: torch.export.Dim.AUTO}
    given = {"input_ids": torch.randint(0, 13, (2, 7)), "attention_mask": torch.ones(2, 7, dtype=torch.int64)}
    program = torch.export.export(Encoder().eval(), (), given, dynamic_shapes=dict.fromkeys(given, vary), strict=False)
    both = program, program.run_decompositions()
    made = [qfunc.calibrate([given], progress=False)(qfunc.quantize(TARGET)(p)) for p in both]
    sites = [sorted((s.slot, s.format, s.scale, s.zero_point) for s in qfunc.explain(m).sites) for m in made]
    assert sites[1] == sites[0]
    longer = {"input_ids": torch.randint(0, 13, (3, 9)), "attention_mask": torch.ones(3, 9, dtype=torch.int64)}
    outputs = OnnxRuntimeRunner(optimise=False).run(qfunc.deploy(TARGET)(made[1]), list(longer.values()))
    for ran, simulated in zip(outputs, made[1](**longer).values(), strict=True):
        assert torch.cosine_similarity(torch.from_numpy(ran).flatten(), simulated.flatten(), 0) >= 0.9999  # as above


def graph_of(model: nn.Module, *inputs: Tensor, table: Any = None) -> fx.GraphModule:
    program = torch.export.export(model.eval(), inputs)
    return qfunc.capture()(program.run_decompositions() if table is None else program.run_decompositions(table))


def test_what_only_looks_alike_stays_what_it_is() -> None:
    class Alike(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.held = nn.BatchNorm2d(4), nn.Parameter(torch.randn(6))

        def forward(self, x: Tensor) -> tuple[Tensor, ...]:
            y = self.norm(x.view(1, 4, 3, 3)).view(2, 2, 3, 3)  # four channels, no norm of instances
            mean = torch.native_layer_norm(x, [3], None, None, 1e-5)
            scores = (x * 0.5) @ (x.transpose(-1, -2) * 0.25)  # two factors
            gates = x * torch.sigmoid(y), torch.where(x > 1, x, x * 0.1), F.softplus(x, 2.0, 7.0)
            above = torch.where(x > 1, x, x.expm1())  # not above 0
            attended = torch.ops.aten._safe_softmax(scores, -1) @ x
            turned = x.permute(0, 3, 1, 2).permute(0, 3, 1, 2)  # twice, not back
            return y, mean[0], mean[1], attended, turned, above, *gates

    torch.manual_seed(0)
    model, x = Alike().eval(), torch.randn(2, 2, 3, 3)
    nn.init.uniform_(model.norm.running_mean)
    captured = graph_of(model, x)
    found = kinds(captured)
    assert (found["batch_norm"], found["instance_norm"], found["sdpa"], found["matmul"]) == (1, 0, 0, 2)
    assert (found["silu"], found["prelu"], found["celu"]) == (0, 0, 0)
    for one, other in zip(captured(x), model(x), strict=True):
        torch.testing.assert_close(one, other)


def test_what_decomposing_makes_plain() -> None:
    """A product with a transposed weight and a sum are a linear layer, einsum is a product."""

    class Plain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(5, 4)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return x @ self.a.weight.t() + self.a.bias, torch.einsum("ntk,nsk->nts", x, x)

    model, x = Plain(), torch.randn(2, 3, 5)
    captured = graph_of(model, x)
    assert kinds(captured) == Counter(linear=1, matmul=1)
    for one, other in zip(captured(x), model(x), strict=True):
        torch.testing.assert_close(one, other)


def test_decomposing_less_is_the_same() -> None:
    """An empty table leaves convolutions and linear layers, and makes norms native."""
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(16, 2)), torch.randn(2, 3, 4, 4)
    captured = graph_of(model, x, table={})
    assert kinds(captured) == Counter(conv=1, batch_norm=1, linear=1)
    torch.testing.assert_close(captured(x), model(x))


def test_a_decomposed_program_of_training_is_refused() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Dropout(0.5)).train()
    program = torch.export.export(model, (torch.randn(2, 3, 4, 4),)).run_decompositions()
    for given in (program, program.module()):
        with pytest.raises(CaptureError) as e:
            qfunc.quantize(TARGET)(given)
        assert str(e.value) == (
            "node '_native_batch_norm_legit_functional': found aten._native_batch_norm_legit_functional, which "
            "run_decompositions makes of a norm or dropout in training mode, wanted a program that was not decomposed, or one "
            "of evaluation mode. Give the program before run_decompositions; or export model.eval()."
        )


def test_a_module_of_addmm_alone_was_not_decomposed() -> None:
    class Transposed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight, self.bias = nn.Parameter(torch.randn(3, 2)), nn.Parameter(torch.randn(2))

        def forward(self, x: Tensor) -> Tensor:
            return torch.addmm(self.bias, x, self.weight)

    module: Any = torch.export.export(Transposed(), (torch.randn(4, 3),)).module()
    quantized = qfunc.calibrate([torch.randn(4, 3)], progress=False)(qfunc.quantize(TARGET)(module))
    assert quantized.train().training
    assert operator.getitem not in {n.target for n in quantized.graph.nodes}

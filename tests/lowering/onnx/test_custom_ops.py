"""Ops of the user's own in the ONNX model: as a function in ONNX's text, or as the kind that they behave like."""

from __future__ import annotations

from typing import Any

import onnx
import pytest
import torch
import torch.nn.functional as F
from attrs import evolve
from torch import Tensor, fx, nn

import qfunc
from qfunc import targets
from qfunc.errors import DeployError, SpecError
from qfunc.specs import FloatKernel, Kernel, ModuleType, Op, OpKind, Refuse, Rule, Scheme, Target, edit, from_json, to_json
from qfunc.targets.runtimes import OnnxRuntimeRunner

KNEE = """<opset_import: ["": 21], domain: "mine"> Knee (x, y) => (z) {
    a = Constant<value = float {0.25}>() b = Mul(a, x) z = Min(b, y) }"""


@fx.wrap
def knee(x: Tensor, y: Tensor) -> Tensor:
    return torch.minimum(0.25 * x, y)


@fx.wrap
def leaky(x: Tensor, slope: float = 0.5) -> Tensor:
    return F.leaky_relu(x, slope)


@fx.wrap
def plain(x: Tensor) -> Tensor:
    return F.leaky_relu(x)


@fx.wrap
def pooled(x: Tensor, size: int, step: int) -> Tensor:
    return F.avg_pool2d(x, size, step)


class Net(nn.Module):
    def __init__(self, body: Any) -> None:
        super().__init__()
        self.conv, self.body = nn.Conv2d(3, 4, 3), body

    def forward(self, x: Tensor) -> Tensor:
        return self.body(self.conv(x))  # type: ignore[no-any-return]


def of(op: OpKind) -> Target:
    """A target whose only quantized ops are convolutions and the user's."""
    byte = Scheme()
    rules = (Rule(Op(("conv", op.kind)), input=byte, weight=byte, output=byte),)
    kernels = (Kernel(Op(("conv", op.kind)) & ~ModuleType("Knee"), FloatKernel()),)
    return evolve(
        targets.qdq, name="mine", rules=rules, fusions=(), ties=(), kernels=kernels, ops=(op,), legality=(), commuting=()
    )


def deployed(op: OpKind, body: Any) -> tuple[onnx.ModelProto, Tensor, Tensor, Tensor]:
    """(the model, what the runtime computes from it, the simulation, the emulation)."""
    torch.manual_seed(0)
    target, x = of(op), torch.randn(2, 3, 8, 7) * 3
    done = qfunc.calibrate([x], progress=False)(qfunc.quantize(target)(Net(body).eval()))
    model = qfunc.deploy(target)(done).files["model.onnx"]
    with torch.no_grad():
        found = torch.from_numpy(OnnxRuntimeRunner(optimise=False).session(model).run([x])[0])
        return onnx.load_from_string(model), found, done(x), qfunc.emulate(target)(done)(x)


class Knee(nn.Module):
    """One node of the graph, for the target has an op of this class."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return torch.minimum(0.25 * x, y)


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.knee = Knee()

    def forward(self, x: Tensor) -> Tensor:
        return self.knee(x, -x)  # type: ignore[no-any-return]


CASES = {
    "a module": (OpKind("knee", f"{__name__}.Knee", onnx=KNEE), Twice(), "Knee"),
    "a spelling more": (OpKind("leaky_relu", f"{__name__}.plain"), lambda x: plain(x), "LeakyRelu"),
    "two tensors, a function": (OpKind("knee", f"{__name__}.knee", onnx=KNEE), lambda x: knee(x, -x), "Knee"),
    "arguments by name": (
        OpKind("leaky", f"{__name__}.leaky", ("input", "negative_slope"), "leaky_relu"),
        lambda x: leaky(x, 0.25),
        "LeakyRelu",
    ),
    "the kind's default": (OpKind("plain", f"{__name__}.plain", behaves_like="leaky_relu"), lambda x: plain(x), "LeakyRelu"),
    "a pool": (
        OpKind("pooled", f"{__name__}.pooled", ("input", "kernel_size", "stride"), "avg_pool"),
        lambda x: pooled(x, 2, 1),
        "AveragePool",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_runtime_simulation_and_emulation_compute_the_op(case: str) -> None:
    op, body, name = CASES[case]
    model, found, simulated, emulated = deployed(op, body)
    assert name in [n.op_type for n in model.graph.node]
    # One code of the output: sums of the convolution may come in another order.
    step = max(simulated.diff().abs().unique().tolist())
    scale = simulated[simulated != 0].abs().min()
    assert step > scale
    assert (found - simulated).abs().max() <= 1.001 * scale
    assert (emulated - simulated).abs().max() <= 1.001 * scale


@pytest.mark.parametrize("known", ["leaky_relu", "mish"])
def test_a_target_that_refuses_all_other_kinds_runs_what_behaves_like_a_kind_that_it_knows(known: str) -> None:
    op = OpKind("plain", f"{__name__}.plain", behaves_like="leaky_relu")
    mine = evolve(of(op), legality=(Refuse(~Op(("conv", known)), because="the manual", do="Leave it out."),))
    if known == "leaky_relu":
        qfunc.quantize(mine)(Net(lambda x: plain(x)))
        return
    with pytest.raises(SpecError) as e:
        qfunc.quantize(mine)(Net(lambda x: plain(x)))
    assert str(e.value) == (
        "target 'mine', op 'plain': found the kind 'plain', wanted an op that it runs: the manual. Leave it out."
    )


def test_a_target_may_refuse_a_users_kind_by_its_name() -> None:
    op = OpKind("plain", f"{__name__}.plain", behaves_like="leaky_relu")
    mine = evolve(of(op), legality=(Refuse(Op("plain"), because="the manual", do="Leave it out."),))
    with pytest.raises(SpecError, match="found the kind 'plain', wanted an op that it runs: the manual"):
        qfunc.quantize(mine)(Net(lambda x: plain(x)))


def test_a_text_that_is_no_function() -> None:
    op = OpKind("knee", f"{__name__}.knee", onnx='<domain: "mine"> Knee')
    with pytest.raises(DeployError) as e:
        deployed(op, lambda x: knee(x, -x))
    assert str(e.value) == (
        "op 'knee': found an `onnx` text in its OpKind that ONNX cannot parse: Expected character ( not found., "
        'wanted <opset_import: ["": 21], domain: "mine"> Name (x) => (y) { ... }. '
        "Correct the text; check it with onnx.parser.parse_function."
    )


HEAD, BODY = '<opset_import: ["": 21], domain: "mine">', "{ z = Min(x, y) }"
BEGIN = f"Begin it with {HEAD}."
TEXTS = {
    "no header": (f"Knee (x, y) => (z) {BODY}", f"OpKind.onnx: found a function of no domain, {{domain}}. {BEGIN}"),
    "no domain": (
        f'<opset_import: ["": 21]> Knee (x, y) => (z) {BODY}',
        f"OpKind.onnx: found a function of no domain, {{domain}}. {BEGIN}",
    ),
    "empty": (
        f'<opset_import: ["": 21], domain: ""> Knee (x, y) => (z) {BODY}',
        f"OpKind.onnx: found a function of no domain, {{domain}}. {BEGIN}",
    ),
    "of ONNX": (
        f'<opset_import: ["": 21], domain: "ai.onnx"> Knee (x, y) => (z) {BODY}',
        f"OpKind.onnx: found a function of the domain 'ai.onnx', {{domain}}. {BEGIN}",
    ),
    "too few inputs": (
        f"{HEAD} Knee (x) => (z) {{ z = Neg(x) }}",
        "op 'knee': found an `onnx` text in its OpKind with the inputs x, wanted 2, one for each tensor. "
        "Write Knee (conv, neg) => (y).",
    ),
    "an operator that does not exist": (
        f"{HEAD} Knee (x, y) => (z) {{ z = Minn(x, y) }}",
        "op 'knee': found an `onnx` text in its OpKind with Minn, wanted operators of ONNX. "
        "Correct the name, or give the node the domain of the runtime that has it.",
    ),
    "a domain that is not imported": (
        f'<domain: "mine"> Knee (x, y) => (z) {BODY}',
        "op 'knee': found an `onnx` text in its OpKind that does not import '', the domain of Min, wanted the version of each "
        f"domain. Begin it with {HEAD}, and import each domain like this.",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", TEXTS)
def test_texts_that_onnx_does_not_take(case: str) -> None:
    text, message = TEXTS[case]
    with pytest.raises((SpecError, DeployError)) as e:
        deployed(OpKind("knee", f"{__name__}.knee", ("x", "y"), onnx=text), lambda x: knee(x, -x))
    assert str(e.value) == message.replace("{domain}", "wanted a domain that ONNX's operators do not have")


def test_an_argument_that_the_kind_needs() -> None:
    op = OpKind("pooled", f"{__name__}.pooled", ("input", "size", "stride"), "avg_pool")
    with pytest.raises(DeployError) as e:
        deployed(op, lambda x: pooled(x, 2, 1))
    assert str(e.value) == (
        "op 'pooled': found parameters ('input', 'size', 'stride') of 'pooled', which behaves like 'avg_pool', "
        "wanted one named 'kernel_size'. Use the parameter names of that kind in OpKind.parameters."
    )


def test_an_op_without_either() -> None:
    with pytest.raises(DeployError, match="set `onnx` or `behaves_like` of its OpKind in the target's ops"):
        deployed(OpKind("knee", f"{__name__}.knee"), lambda x: knee(x, -x))


def is_wide(op: Any) -> bool:
    """A user's own predicate."""
    return bool(op.attributes.get("groups", 1) > 4)


def test_a_predicate_prints_by_its_name() -> None:
    """No address, which another process would not know; check_target asks for that."""
    mine = edit.skip(edit.where(is_wide))(targets.tensorrt)
    assert repr(mine.rules[0]).startswith("Rule(Where(is_wide), ")
    assert from_json(to_json(mine), classes=(is_wide,)) == mine

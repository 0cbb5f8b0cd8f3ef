"""Leaf modules, concrete arguments and the user's own tracer."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from attrs import evolve
from torch import Tensor, fx, nn

import qfunc
from qfunc.errors import CaptureError, SpecError
from qfunc.frontend.capture import capture
from qfunc.graph.sites import quantizer_nodes
from qfunc.specs import Op, OpKind, Rule, edit
from tests.onnxruntime_target import ONNXRUNTIME

pytestmark = pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")
TARGET = ONNXRUNTIME
X = torch.randn(2, 4, generator=torch.Generator().manual_seed(0))


class MyBlock(nn.Module):
    """Control flow on values, which no road can open; a call of one module with weights."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x) if bool((x > -1e9).all()) else x


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.block, self.last = nn.Linear(4, 4), MyBlock(), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.block(self.first(x)))


def ops(model: fx.GraphModule) -> list[str]:
    return [f"{n.op} {n.name}" for n in model.graph.nodes if n.op.startswith("call") and "quantizers" not in n.name]


@pytest.mark.parametrize("leaves", ["MyBlock", ("MyBlock",), f"{__name__}.MyBlock", MyBlock, [MyBlock]], ids=str)
def test_a_leaf_is_one_op(leaves: Any) -> None:
    model = Net().eval()
    captured = capture(leaves=leaves)(model)
    assert ops(captured) == ["call_function first", "call_module block", "call_function last"]
    assert torch.equal(captured(X), model(X))
    with torch.no_grad():
        captured.get_submodule("block").fc.weight.zero_()  # its own
    assert model.block.fc.weight.any()


def test_a_leaf_stays_float_and_selectors_see_it() -> None:
    model = Net().eval()
    calibrated = qfunc.calibrate([X])(qfunc.quantize(TARGET, leaves="MyBlock")(model))
    assert "block.fc.weight" not in [s.module.site.name for s in quantizer_nodes(calibrated)]
    assert {s.module.site.op for s in quantizer_nodes(calibrated)} == {"first", "last"}
    unit = {u.path: u for u in _units(calibrated)}["block"]
    assert not unit.integer
    emulated = qfunc.emulate(TARGET)(calibrated)
    with torch.no_grad():  # one code of an output in [-1, 1] or so
        assert float((emulated(X) - calibrated(X)).abs().max()) <= 0.02
    with pytest.raises(SpecError, match="changes nothing: it matches 1 op that is float already: 'block'"):
        qfunc.quantize(edit.skip(edit.module("MyBlock"))(TARGET), leaves="MyBlock")(model)
    with pytest.raises(SpecError, match="ModuleType\\('MyBlok'\\), which matches nothing"):
        qfunc.quantize(edit.skip(edit.module("MyBlok"))(TARGET), leaves="MyBlock")(model)


def _units(model: fx.GraphModule) -> Any:
    from qfunc.graph.view import QuantizedModel
    from qfunc.placement.partition import Partition

    return Partition(QuantizedModel(model), TARGET).units


def test_a_leaf_that_the_target_knows_is_quantized() -> None:
    eight = TARGET.rules[0].input
    target = evolve(
        TARGET,
        ops=(OpKind("myblock", f"{__name__}.MyBlock"),),
        rules=(*TARGET.rules, Rule(Op("myblock"), input=eight, output=eight)),
    )
    for leaves in ((), "MyBlock"):
        quantized = qfunc.quantize(target, leaves=leaves)(Net())
        assert "block" in {s.module.site.op for s in quantizer_nodes(quantized)}, [
            s.module.site for s in quantizer_nodes(quantized)
        ]


def test_torch_s_own_classes_can_be_leaves() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.GRU(4, 3)).eval()
    captured = capture(leaves=nn.GRU)(model)
    assert ops(captured) == ["call_function _0", "call_module _1"]
    assert torch.equal(captured(X)[0], model(X)[0])


def test_leaves_that_match_nothing() -> None:
    for leaves, name in (("MyBlok", "'MyBlok'"), (("MyBlock", "MyBlok"), "'MyBlok'")):
        with pytest.raises(CaptureError) as caught:
            qfunc.quantize(TARGET, leaves=leaves)(Net())
        assert str(caught.value) == (
            f"capture, leaves: found {name}, which is not the class of any submodule, wanted classes of the model's "
            f"submodules. "
            "Use one of: MyBlock."
        )
    with pytest.raises(CaptureError) as caught:
        capture(leaves=nn.Conv2d)(Net())
    assert str(caught.value) == (
        "capture, leaves: found 'Conv2d', which is not the class of any submodule, wanted classes of the model's submodules. "
        "Use one of: Linear, MyBlock."
    )


@pytest.mark.parametrize(("given", "word"), [({"leaves": MyBlock}, "leaves"), ({"tracer": fx.Tracer}, "a tracer")])
def test_leaves_and_tracers_are_of_the_fx_road(given: Any, word: str) -> None:
    with pytest.raises(CaptureError) as caught:
        capture((X,), **given)
    assert str(caught.value) == (
        f"capture: found {word} together with example_inputs, wanted one of the two: torch.export inlines every module. "
        "Leave out example_inputs, or leave ops in float by edit.skip(edit.module(...))."
    )


class Modes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(
        self, x: Tensor, times: int, gains: Any = (1.0, 2.0), *, name: str = "sum", last: Tensor | None = None
    ) -> Tensor:
        for gain in gains[:times]:
            x = self.fc(x) * gain
        x = x if last is None else x + last
        return x.sum(1) if name == "sum" else x


@pytest.mark.parametrize("example", [None, (X,)], ids=["fx", "export"])
def test_concrete_arguments_are_no_inputs_any_more(example: Any) -> None:
    model = Modes()
    given = {"times": 2, "gains": [1.5, 3.0], "name": "all", "last": None}
    captured = capture(example, concrete_args=given)(model)
    assert [n.target for n in captured.graph.nodes if n.op == "placeholder"] == ["x"]
    for batch in (2, 5):
        x = torch.randn(batch, 4)
        assert torch.allclose(captured(x), model(x, **given), rtol=0, atol=0)
    quantized = qfunc.quantize(TARGET, example, concrete_args=given)(model)
    calibrated = qfunc.calibrate([X])(quantized)
    assert sorted(qfunc.deploy(TARGET)(calibrated).files) == ["model.onnx", "qfunc.json"]
    assert "forward" not in vars(model)
    assert given["gains"] == [1.5, 3.0]


def test_an_argument_after_a_concrete_one_and_a_tensor() -> None:
    model = Modes()
    last = torch.randn(2, 4)
    captured = capture((X, [2.0]), concrete_args={"times": 1, "last": last, "name": "all"})(model)
    assert torch.equal(captured(X, [2.0]), model(X, 1, [2.0], name="all", last=last))
    traced = capture(concrete_args={"times": 1, "gains": (2.0,), "last": last, "name": "all"})(model)
    assert torch.equal(traced(X), model(X, 1, (2.0,), name="all", last=last))


def test_defaults_are_bound_and_can_be_given_otherwise() -> None:
    model = Modes()
    traced = capture(concrete_args={"times": 1, "gains": (2.0,)})(model)
    assert [n.target for n in traced.graph.nodes if n.op == "placeholder"] == ["x"]
    assert torch.equal(traced(X), model(X, 1, (2.0,)))


def test_concrete_arguments_that_forward_does_not_have() -> None:
    for example in (None, (X,)):
        with pytest.raises(CaptureError) as caught:
            capture(example, concrete_args={"time": 2})(Modes())
        assert str(caught.value) == (
            "capture, concrete_args: found 'time', which is not an argument of Modes.forward, wanted names of its arguments. "
            "Use one of: x, times, gains, name, last."
        )
    with pytest.raises(CaptureError) as caught:
        capture(concrete_args={"gains": fx.PH})(Modes())
    assert str(caught.value) == (
        "capture, concrete_args: found a placeholder for 'gains', wanted a fixed value. "
        "Give example_inputs=(...,) with the structure of the inputs."
    )


class Shifted(nn.Module):
    def forward(self, x: Tensor, shift: Tensor = torch.ones(1, 3)) -> Tensor:
        return x + shift


def test_a_tensor_as_default_needs_a_value() -> None:
    with pytest.raises(CaptureError) as caught:
        qfunc.quantize(TARGET)(Shifted())
    assert str(caught.value) == (
        "capture, argument 'shift' of Shifted.forward: found a Tensor of shape [1, 3] as its default, wanted None, a number, "
        "a bool or a string: a traced graph holds no tensor as a default. "
        "Register the tensor as a buffer, or fix the argument by qfunc.capture(concrete_args={'shift': ...})."
    )
    x, shift = torch.ones(2, 3), torch.full((1, 3), 2.0)
    assert torch.equal(capture(concrete_args={"shift": shift})(Shifted())(x), x + 2)
    assert torch.equal(capture((x,))(Shifted())(x), x + 1)


class Opaque(fx.Tracer):
    """Keeps every module that is no container as it is, as torch.fx does with those of torch.nn."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return super().is_leaf_module(m, module_qualified_name) or isinstance(m, MyBlock)


class NeedsWords(fx.Tracer):
    def __init__(self, word: str) -> None:
        super().__init__()
        self.word = word


@pytest.mark.parametrize("tracer", [Opaque, Opaque()], ids=["class", "instance"])
def test_an_own_tracer_chooses_leaves_and_weights_are_still_seen(tracer: Any) -> None:
    before = dict(vars(tracer)) if isinstance(tracer, Opaque) else None
    model = Net().eval()
    captured = capture(tracer=tracer)(model)
    assert ops(captured) == ["call_function first", "call_module block", "call_function last"]
    assert torch.equal(captured(X), model(X))
    assert before is None or vars(tracer) == before
    quantized = qfunc.quantize(TARGET, tracer=tracer)(model)
    assert [s.module.site.name for s in quantizer_nodes(quantized) if s.module.site.constant] == [
        "first.weight", "first.bias", "last.weight", "last.bias"]  # fmt: skip
    assert quantized.graph.find_nodes(op="call_function", target=torch.nn.functional.linear)


def test_an_own_tracer_with_leaves_and_arguments() -> None:
    traced = capture(tracer=fx.Tracer, concrete_args={"times": 1, "gains": (2.0,)})(Modes())
    assert [n.target for n in traced.graph.nodes if n.op == "placeholder"] == ["x"]
    captured = capture(tracer=fx.Tracer(), leaves=MyBlock)(Net())
    assert ops(captured)[1] == "call_module block"
    assert capture(tracer=NeedsWords("a"), leaves=MyBlock)(Net()).graph.nodes


class SequentialLeaves(fx.Tracer):
    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return isinstance(m, nn.Sequential) or super().is_leaf_module(m, module_qualified_name)


class Blocks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 4)
        self.block = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.block(self.first(x)))


def test_a_sequential_is_a_leaf_where_an_own_tracer_says_so() -> None:
    model, through = Blocks().eval(), ["call_function first", "call_function block_0", "call_module block_1",
                                       "call_module block_2", "call_function last"]  # fmt: skip
    captured = capture(tracer=SequentialLeaves)(model)
    assert ops(captured) == ["call_function first", "call_module block", "call_function last"]
    assert torch.equal(captured(X), model(X))
    assert ops(capture(leaves=nn.Sequential)(model)) == ops(captured)
    for tracer in (None, fx.Tracer, Opaque):
        assert ops(capture(tracer=tracer)(model)) == through
    names = [s.module.site.name for s in quantizer_nodes(qfunc.quantize(TARGET, tracer=SequentialLeaves)(model))]
    assert not [n for n in names if n.startswith("block.")]


def test_wrong_tracers() -> None:
    for given, name in ((nn.Linear, "a Linear"), (3, "an int")):
        with pytest.raises(CaptureError) as caught:
            capture(tracer=given)(Net())  # type: ignore[arg-type]
        assert str(caught.value) == f"capture, tracer: found {name}, wanted a torch.fx.Tracer. Derive it from torch.fx.Tracer."
    with pytest.raises(CaptureError) as caught:
        capture(tracer=NeedsWords)(Net())
    assert str(caught.value) == (
        "capture, tracer: found NeedsWords: NeedsWords.__init__() missing 1 required positional argument: 'word', "
        "wanted a class without arguments. Pass an instance."
    )


def test_load_takes_the_same_words(tmp_path: Any) -> None:
    model = Net().eval()
    calibrated = qfunc.calibrate([X])(qfunc.quantize(TARGET, leaves="MyBlock")(model))
    qfunc.save(tmp_path / "leaf")(calibrated)
    assert torch.equal(qfunc.load(tmp_path / "leaf", leaves="MyBlock")(model)(X), calibrated(X))
    modes, given = Modes(), {"times": 1, "gains": (2.0,)}
    calibrated = qfunc.calibrate([X])(qfunc.quantize(TARGET, concrete_args=given)(modes))
    qfunc.save(tmp_path / "bound")(calibrated)
    assert torch.equal(qfunc.load(tmp_path / "bound", concrete_args=given)(modes)(X), calibrated(X))


class Two(nn.Module):
    """Two tensors, one of them in a list, of one."""

    def forward(self, x: Tensor) -> tuple[Tensor, list[Tensor]]:
        return (x * 2, [x.relu()]) if bool((x > -1e9).all()) else (x, [x])


class OfTwo(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.two, self.a, self.b = nn.Linear(4, 4), Two(), nn.Linear(4, 3), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        left, (right,) = self.two(self.first(x))[0], [self.two(self.first(x))[1][0]]
        return self.a(left) + self.b(right)


def test_a_leaf_of_several_values_is_quantized_behind_each() -> None:
    model = OfTwo().eval()
    quantized = qfunc.quantize(TARGET, leaves=Two)(model)
    assert [s.tensor for s in qfunc.explain(quantized).sites if s.slot == "input"] == ["x", "getitem", "getitem_2"]
    calibrated = qfunc.calibrate([X])(quantized)
    assert torch.allclose(calibrated(X), model(X), atol=0.1)  # some codes of 8 bits


class Writes(nn.Module):
    """What is added in place is seen by who has the tensor, and what is written into its part."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = x * 2
        z = y
        z += 1
        z[:, 0] = 0.5
        return y, z


@pytest.mark.parametrize("tracer", [None, fx.Tracer, fx.Tracer()], ids=["ours", "class", "instance"])
def test_writes_are_seen_by_every_tracer(tracer: Any) -> None:
    model = Writes().eval()
    for found, wanted in zip(capture(tracer=tracer)(model)(X), model(X), strict=True):
        assert torch.equal(found, wanted)

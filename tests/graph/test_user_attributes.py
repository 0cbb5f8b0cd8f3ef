"""What is the user's own stays on the captured, quantized, calibrated and emulated model."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from functools import cache, cached_property
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn

import qfunc
from qfunc import targets
from qfunc.errors import CaptureError
from qfunc.frontend.capture import capture
from qfunc.specs import edit
from tests.onnxruntime_target import ONNXRUNTIME

pytestmark = pytest.mark.filterwarnings("ignore")  # torch.export and pickle warn of their own deprecated names
X = torch.randn(2, 3, 6, 6, generator=torch.Generator().manual_seed(0))
TARGET = ONNXRUNTIME


class Loss(nn.Module):
    def forward(self, y: Tensor) -> Tensor:
        return y.square().sum()


class Stem(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.bn, self.act = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()
        self.width = 4

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.bn(self.conv(x)))

    def doubled(self) -> int:
        return self.width * 2


class Base(nn.Module):
    KINDS = ("cat", "dog")

    def parent(self) -> str:
        return "parent"


class Net(Base):
    def __init__(self) -> None:
        super().__init__()
        self.config = {"classes": 5, "sizes": [3, 4]}
        self.stem, self.fc, self.loss = Stem(), nn.Linear(4, 5), Loss()
        self.parts = [self.stem, {"head": self.fc}]
        self.means = torch.tensor([0.5, 0.25])
        self.shortcut = self.predict
        self.graph = "the user's graph"  # GraphModule's own name: not kept

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.stem(x).mean((2, 3)))

    @property
    def classes(self) -> int:
        return int(self.config["classes"])

    @cached_property
    def total(self) -> int:
        return sum(self.config["sizes"])

    @classmethod
    def make(cls) -> Net:
        return cls()

    @staticmethod
    def two() -> int:
        return 2

    def predict(self, x: Tensor) -> Tensor:
        return self(x).argmax(1)

    def cost(self, x: Tensor) -> Tensor:
        return self.loss(self(x))

    def norm(self) -> Tensor:
        return self.fc.weight.norm()

    def inner(self) -> int:
        return self.stem.doubled() + self.fc.in_features

    def train(self, mode: bool = True) -> Net:  # nn.Module's own name: not kept
        return super().train(mode)

    def logits(self, x: Tensor) -> Tensor:
        return self.fc(x)

    def through_another(self, x: Tensor) -> Tensor:
        return self.logits(x)

    def through_a_list(self, x: Tensor) -> Tensor:
        return self.parts[1]["head"](x)

    def activated(self, x: Tensor) -> Tensor:
        return self.stem.act(x)

    def walked(self, x: Tensor) -> Tensor:
        for part in self.stem:  # type: ignore[attr-defined]
            x = part(x)
        return x

    def by_super(self) -> str:
        return super().parent()

    @property
    def wrong(self) -> Tensor:
        return self.fc(torch.ones(1, 4))

    def mistaken(self) -> Any:
        return self.misspelt


def float_net() -> Net:
    torch.manual_seed(3)
    model = Net()
    for module in model.modules():
        module.training = False
    return model


FORMS = [
    f"{r} {f}" for r in ("fx", "export") for f in ("captured", "calibrated", "emulated", "copied", "pickled", "torch.save")
]


@cache
def forms() -> dict[str, fx.GraphModule]:
    model = float_net()
    made: dict[str, fx.GraphModule] = {}
    for road, example in (("fx", None), ("export", (X,))):
        made[f"{road} captured"] = capture(example)(model)
        quantized = qfunc.quantize(TARGET, example)(model)
        calibrated = made[f"{road} calibrated"] = qfunc.calibrate([X])(quantized)
        made[f"{road} emulated"] = qfunc.emulate(TARGET)(calibrated)
        made[f"{road} copied"] = copy.deepcopy(calibrated)
        made[f"{road} pickled"] = pickle.loads(pickle.dumps(calibrated))
        buffer = io.BytesIO()
        torch.save(made[f"{road} emulated"], buffer)
        buffer.seek(0)
        made[f"{road} torch.save"] = torch.load(buffer, weights_only=False)
    return made


@pytest.mark.parametrize("form", FORMS)
def test_attributes_methods_and_properties_are_kept(form: str) -> None:
    model: Any = forms()[form]
    assert model.config == {"classes": 5, "sizes": [3, 4]}
    assert (model.KINDS, model.classes, model.total, model.two(), model.parent()) == (("cat", "dog"), 5, 7, 2, "parent")
    assert type(model.make()) is Net
    assert model.predict.__self__ is model
    assert model.shortcut.__self__ is model
    assert model.predict.__doc__ is Net.predict.__doc__
    assert model.predict.__name__ == "predict"
    # Through the model itself: quantized where it is quantized.
    assert torch.equal(model.predict(X), model(X).argmax(1))
    assert torch.equal(model.shortcut(X), model.predict(X))
    assert torch.equal(model.cost(X), model(X).square().sum())
    assert torch.equal(model.means, torch.tensor([0.5, 0.25]))
    assert isinstance(model.graph, fx.Graph)
    assert model.train().training
    assert not model.eval().training


@pytest.mark.parametrize("form", [k for k in FORMS if "emulated" not in k and "save" not in k])
def test_what_submodules_have_is_kept(form: str) -> None:
    model: Any = forms()[form]
    assert (model.stem.width, model.stem.doubled(), model.inner(), model.fc.out_features) == (4, 8, 12, 5)
    assert model.norm() is not None
    assert torch.equal(model.norm(), model.get_parameter("fc.weight").norm())


REACHED = (
    "method {method!r}: found a use of the float module {path!r}, whose ops are part of the graph, "
    "wanted a method that uses no float submodule. Call the whole model, call this method of the float model, "
    "or keep the module as one op: leaves=({kind!r},)."
)
CALLS: dict[str, tuple[Callable[[Any], Any], str, str, str]] = {
    "a submodule": (lambda m: m.logits(X), "Net.logits", "fc", "Linear"),
    "by another method": (lambda m: m.through_another(X), "Net.logits", "fc", "Linear"),
    "in a list": (lambda m: m.through_a_list(X), "Net.through_a_list", "fc", "Linear"),
    "no tensors": (lambda m: m.activated(X), "Net.activated", "stem.act", "ReLU"),
    "a container": (lambda m: m.walked(X), "Net.walked", "stem", "Stem"),
    "in a property": (lambda m: m.wrong, "Net.wrong", "fc", "Linear"),
}


@pytest.mark.parametrize("form", ["fx calibrated", "export calibrated", "fx copied", "export pickled"])
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
def test_a_method_that_reaches_a_float_submodule_is_refused(form: str, call: Any) -> None:
    use, method, path, kind = call
    with pytest.raises(CaptureError) as caught:
        use(forms()[form])
    assert str(caught.value) == REACHED.format(method=method, path=path, kind=kind)


def test_other_errors_of_kept_methods() -> None:
    model: Any = forms()["fx calibrated"]
    with pytest.raises(CaptureError) as caught:
        model.by_super()
    assert str(caught.value) == (
        "method 'Net.by_super': found super() without arguments, which requires the original class, wanted a method that "
        "can be bound to the captured model. Name the parent's method: Parent.method(self, ...)."
    )
    with pytest.raises(CaptureError) as caught:
        model.fc(torch.ones(1, 4))
    assert str(caught.value).startswith("captured model: found a use of the float module 'fc', whose ops are part of the graph")
    with pytest.raises(AttributeError, match="has no attribute 'misspelt'"):
        model.mistaken()
    with pytest.raises(TypeError, match="missing 1 required positional argument"):
        model.predict()


def test_nothing_is_shared_with_the_caller() -> None:
    model = float_net()
    quantized: Any = qfunc.quantize(TARGET)(model)
    quantized.config["sizes"].append(1)
    quantized.means[0] = 9.0
    assert model.config == {"classes": 5, "sizes": [3, 4]}
    assert model.means[0] == 0.5
    twin: Any = copy.deepcopy(quantized)
    twin.config["classes"] = 0
    assert quantized.classes == 5
    assert twin.parts[0] is twin.stem
    assert twin.shortcut.__self__ is twin
    assert quantized.parts[0] is quantized.stem
    assert quantized.parts[1]["head"] is quantized.fc
    assert not any(isinstance(m, nn.Linear | nn.Conv2d | nn.ReLU) for m in quantized.modules())
    assert sorted(quantized.state_dict()) == sorted(twin.state_dict())


def test_an_attribute_that_a_forward_writes_is_that_of_before() -> None:
    class Remembers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc, self.seen = nn.Linear(3, 2), None

        def forward(self, x: Tensor) -> Tensor:
            self.seen = self.fc(x)
            return self.seen

    captured: Any = capture()(Remembers())
    assert captured.seen is None


def test_models_of_local_classes_and_with_lambdas_still_pickle() -> None:
    class Local(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc, self.fn, self.size = nn.Linear(3, 2), lambda x: x, 3

        def forward(self, x: Tensor) -> Tensor:
            return self.fc(x)

        def method(self) -> int:
            return self.size

    quantized: Any = qfunc.quantize(TARGET)(Local())
    assert quantized.method() == 3
    assert quantized.fn(4) == 4
    assert copy.deepcopy(quantized).fn(4) == 4
    read: Any = pickle.loads(pickle.dumps(quantized))
    assert read.size == 3
    assert not hasattr(read, "fn")
    assert not hasattr(read, "method")


def test_save_and_load_keep_them(tmp_path: Any) -> None:
    quantized = qfunc.quantize(TARGET)(float_net())
    qfunc.save(tmp_path / "net")(quantized)
    read: Any = qfunc.load(tmp_path / "net")(float_net())
    assert read.config == {"classes": 5, "sizes": [3, 4]}
    assert read.predict.__self__ is read


@pytest.mark.thorough
def test_training_and_compiling_see_the_graph_alone() -> None:
    target = edit.pipe(targets.tensorrt)
    done: Any = qfunc.calibrate([X])(qfunc.quantize(target)(float_net()))
    before = done.fc.weight.clone()
    done.train()(X).sum().backward()
    torch.optim.SGD(done.parameters(), 0.1).step()
    assert not torch.equal(done.fc.weight, before)
    done.eval()
    compiled = torch.compile(done, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(X), done(X))


def test_a_captured_model_prints_as_the_users_modules() -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 4, 1, bias=False)
            self.norm = nn.BatchNorm2d(4)

        def forward(self, x: Tensor) -> Tensor:
            return torch.relu(self.norm(self.conv(x)))

    captured = qfunc.capture()(nn.Sequential(Block()).eval())
    assert repr(captured.get_submodule("0")) == (
        "Block(\n"
        "  (conv): Conv2d(weight [4, 3, 1, 1]; computed in the graph)\n"
        "  (norm): BatchNorm2d(4, eps=1e-05, momentum=0.1, affine=True, bias=True, track_running_stats=True)\n"
        ")"
    )

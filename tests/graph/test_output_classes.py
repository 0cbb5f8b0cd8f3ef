"""What a forward returns keeps its classes, on both roads and through every step."""

from __future__ import annotations

import copy
import pickle
from collections import OrderedDict, defaultdict
from dataclasses import dataclass, fields
from typing import Any

import pytest
import torch
from torch import fx, nn

import qfunc
from qfunc import targets
from qfunc.errors import CaptureError


@dataclass
class Found(OrderedDict):  # type: ignore[type-arg]
    """As the outputs of transformers are: fields, and entries for those that are not None."""

    logits: Any = None
    boxes: Any = None
    hidden: Any = None

    def __post_init__(self) -> None:
        for field in fields(self):
            if getattr(self, field.name) is not None:
                self[field.name] = getattr(self, field.name)


class Bag(dict):  # type: ignore[type-arg]
    """Entries are attributes, too."""

    def __getattr__(self, name: str) -> Any:
        return self[name]


class Counted(dict):  # type: ignore[type-arg]
    """A mapping that cannot be made from its entries."""

    def __init__(self, first: Any, second: Any) -> None:
        super().__init__(first=first, second=second)


@dataclass
class Pair:
    """No mapping."""

    first: Any
    second: Any


SHAPES = {
    "OrderedDict": lambda a, b: OrderedDict([("b", a), ("a", [b, None])]),
    "ModelOutput": lambda a, b: Found(logits=a, hidden=(b,)),
    "Bag": lambda a, b: Bag(a=a, b=Bag(c=b)),
    "nested": lambda a, b: {"x": [OrderedDict(a=a)], "y": Found(boxes={"z": b})},
}


class Net(nn.Module):
    """Two tensors, in whatever `kind` makes of them."""

    def __init__(self, kind: Any) -> None:
        super().__init__()
        self.kind, self.stem, self.head = kind, nn.Linear(3, 4), nn.Linear(4, 5)

    def forward(self, x: torch.Tensor) -> Any:
        stem = self.stem(x).relu()
        return self.kind(stem, self.head(stem))


def shape(value: Any) -> Any:
    """The classes, keys and sizes of an output."""
    if isinstance(value, dict):
        held = [(f.name, shape(getattr(value, f.name))) for f in fields(value)] if isinstance(value, Found) else []
        return type(value), [(k, shape(v)) for k, v in value.items()], held
    if isinstance(value, list | tuple):
        return type(value), [shape(v) for v in value]
    return list(value.shape) if isinstance(value, torch.Tensor) else value


@pytest.mark.parametrize("kind", SHAPES)
def test_a_mapping_keeps_its_class(kind: str) -> None:
    net, x = Net(SHAPES[kind]).eval(), torch.randn(2, 3)
    calibrated = qfunc.calibrate([x], progress=False)(qfunc.quantize(targets.onnxruntime)(net))
    exact = qfunc.emulate(targets.onnxruntime)(calibrated)
    wanted = shape(net(x))
    assert shape(calibrated(x)) == wanted
    assert shape(copy.deepcopy(calibrated)(x)) == wanted
    assert shape(pickle.loads(pickle.dumps(calibrated))(x)) == wanted
    assert shape(exact(x)) == wanted
    artifact = qfunc.deploy(targets.onnxruntime)(calibrated)
    assert [list(t.shape) for t in targets.onnxruntime.runtime.runner.run(artifact, [x])] == [[2, 4], [2, 5]]


def test_a_tracer_of_the_users_own_keeps_it_too() -> None:
    class Own(fx.Tracer):
        pass

    captured = qfunc.capture(tracer=Own)(Net(SHAPES["OrderedDict"]).eval())
    assert type(captured(torch.randn(2, 3))) is OrderedDict


def test_a_mapping_on_the_way_is_as_good() -> None:
    class Way(Net):
        def forward(self, x: torch.Tensor) -> Any:
            return super().forward(x)["a"][0] * 2

    net, x = Way(SHAPES["OrderedDict"]).eval(), torch.randn(2, 3)
    torch.testing.assert_close(qfunc.capture()(net)(x), net(x), rtol=0, atol=0)  # the same ops


def test_what_is_made_of_more_than_entries_is_refused() -> None:
    with pytest.raises(CaptureError) as e:
        qfunc.quantize(targets.onnxruntime)(Net(Counted).eval())
    assert str(e.value).split("\n") == [
        "the Counted that a forward creates: found a subclass of dict that cannot be built from its entries alone, wanted "
        "Counted({...}) with the same keys. Return a dict, an OrderedDict or a dataclass."
    ]


def test_a_default_dict_is_returned_as_a_dict() -> None:
    net = Net(lambda a, b: defaultdict(list, a=a, b=b)).eval()
    assert type(qfunc.capture()(net)(torch.randn(2, 3))) is dict


def test_torch_export_needs_dataclasses_to_be_registered() -> None:
    with pytest.raises(CaptureError) as e:
        qfunc.quantize(targets.onnxruntime, (torch.randn(2, 3),))(Net(Pair).eval())
    assert str(e.value).split(", wanted ")[1] == (
        "a model that torch.export accepts with these inputs. Register a dataclass by "
        "torch.export.register_dataclass(MyClass), or return a dict or a named tuple."
    )

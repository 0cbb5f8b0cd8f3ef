"""A view of a quantized model is made for each call: what changes between two calls is in the second result."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn

import qfunc
from qfunc.graph.view import QuantizedModel
from qfunc.placement.partition import Partition
from qfunc.targets.runtimes import OnnxRuntimeRunner
from tests.onnxruntime_target import ONNXRUNTIME

TARGET = ONNXRUNTIME
X = torch.randn(4, 3, 6, 6, generator=torch.Generator().manual_seed(1))


class Net(nn.Module):
    """A convolution with a BatchNorm, and a linear layer behind dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.fc = nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4), nn.Linear(4, 2)
        self.dropout = nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        """[N, 3, H, W] -> [N, 2]."""
        out: Tensor = self.fc(self.dropout(self.norm(self.conv(x)).relu().mean((2, 3))))
        return out


def calibrated() -> fx.GraphModule:
    """A model whose BatchNorm trains, with statistics other than those of its start."""
    torch.manual_seed(0)
    net = Net()
    net(X)
    quantized = qfunc.quantize(TARGET, batch_norm=qfunc.TrainBatchNorm())(net.eval())
    return qfunc.calibrate([X], progress=False)(quantized)


def weight_without_grad(model: Any) -> None:
    """A parameter, in place."""
    with torch.no_grad():
        model.get_parameter("conv.weight").mul_(1.5)


def weight_by_data(model: Any) -> None:
    """A parameter, without a version."""
    model.get_parameter("conv.weight").data[0] = 0.25


def new_weight(model: Any) -> None:
    """A parameter, by assignment."""
    model.fc.weight = nn.Parameter(torch.full((2, 4), 0.125))


def running_mean(model: Any) -> None:
    """A buffer, in place."""
    model.get_submodule("norm").running_mean.add_(0.75)


def running_var_by_data(model: Any) -> None:
    """A buffer, without a version."""
    model.get_submodule("norm").running_var.data[:] = 0.5


def scale(model: Any) -> None:
    """A qparam."""
    module = model.get_submodule("quantizers.x.output")
    qparams = module.qparams()
    module.set_qparams(qparams._replace(scale=qparams.scale * 4))


CHANGES = (weight_without_grad, weight_by_data, new_weight, running_mean, running_var_by_data, scale)


def emulated(model: fx.GraphModule) -> Any:
    """The values of the emulation."""
    return qfunc.emulate(TARGET)(model)(X).tolist()


def artifact(model: fx.GraphModule) -> Any:
    """The bytes of the artifact."""
    return dict(qfunc.deploy(TARGET)(model).files)


def compared(model: fx.GraphModule) -> Any:
    """The error of each tensor."""
    return [(row.tensor, row.slot, row.sqnr) for row in qfunc.compare([X], progress=False)(model).rows]


def explained(model: fx.GraphModule) -> Any:
    """What `explain` prints."""
    return str(qfunc.explain(model))


def calibrated_again(model: fx.GraphModule) -> Any:
    """The state of the model that is calibrated anew."""
    return {k: v.tolist() for k, v in qfunc.calibrate([X], progress=False)(model).state_dict().items()}


def folded(model: fx.GraphModule) -> Any:
    """The state of the model with its BatchNorm folded."""
    return {k: v.tolist() for k, v in qfunc.fold_batch_norm()(model).state_dict().items()}


@pytest.mark.thorough
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("call", [emulated, artifact, compared, explained, calibrated_again, folded])
def test_a_change_between_two_calls_is_in_the_second_result(
    call: Callable[[fx.GraphModule], Any], change: Callable[[Any], None]
) -> None:
    model = calibrated()
    before = call(model)
    assert call(model) == before
    change(model)
    after = call(model)
    # The oracle never made the first call: the same change of a model that is built anew.
    fresh = calibrated()
    change(fresh)
    assert after == call(fresh)
    assert after != before or call in (calibrated_again, compared, explained)


@pytest.mark.parametrize("change", CHANGES)
def test_verify_sees_a_change_between_two_calls(change: Callable[[Any], None]) -> None:
    model, seen = calibrated(), list[Any]()

    def run(artifact: Any, inputs: list[Tensor]) -> Any:
        seen.append(artifact.files["model.onnx"])
        return [qfunc.emulate(TARGET)(model)(*inputs)]

    for step in (lambda _: None, change):
        step(model)
        report = qfunc.verify(TARGET, run)(model, [X])
        outputs = [row for row in report.rows if row.kind == "output"]
        assert [row.mismatches for row in outputs] == [0], step
    assert seen[0] != seen[1] == qfunc.deploy(TARGET)(model).files["model.onnx"]


@pytest.mark.parametrize("call", [emulated, artifact, explained, compared, calibrated_again])
def test_the_training_mode_changes_no_result(call: Callable[[fx.GraphModule], Any]) -> None:
    model = calibrated()
    model.eval()
    before = call(model)
    model.train()
    assert call(model) == before
    assert model.training
    assert model.get_submodule("norm").training


def test_a_view_computes_each_form_once_and_a_new_view_anew() -> None:
    model = calibrated()
    view = QuantizedModel(model)
    for name in ("evaluation_form", "quantizers", "float_network", "network_so_far"):
        assert getattr(view, name) is getattr(view, name)
    weight_without_grad(model)
    twin = copy.deepcopy(model).eval()
    assert torch.equal(QuantizedModel(model).evaluation_form(X), twin(X))
    assert not torch.equal(view.evaluation_form(X), twin(X))
    assert not any(isinstance(value, QuantizedModel) for value in vars(model).values())


def test_verify_makes_one_partition(monkeypatch: pytest.MonkeyPatch) -> None:
    model, made = calibrated(), list[Partition]()
    start = Partition.__init__

    def counted(self: Partition, *args: Any, **kwargs: Any) -> None:
        made.append(self)
        start(self, *args, **kwargs)

    monkeypatch.setattr(Partition, "__init__", counted)
    qfunc.verify(TARGET, OnnxRuntimeRunner().run)(model, [X])  # the runner itself may compare a second processor
    assert len(made) == 1


class Blend(nn.Module):
    """A user's module of three tensors."""

    def forward(self, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        """a + b * c."""
        return a + b * c


class WithBlend(nn.Module):
    """A linear layer, and a leaf that reads its value three times."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.blend = nn.Linear(3, 3), Blend()

    def forward(self, x: Tensor) -> Tensor:
        """[N, 3] -> [N, 3]."""
        y = self.fc(x)
        out: Tensor = self.blend(y, y, y)
        return out


def test_a_module_of_three_arguments_trains_beside_no_batch_norm() -> None:
    net, x = WithBlend(), torch.randn(5, 3)
    done = qfunc.calibrate([x], progress=False)(qfunc.quantize(TARGET, leaves=(Blend,))(net))
    assert torch.allclose(done(x), net(x), atol=0.1)  # some codes of 8 bits

"""What cannot be captured: whole messages, with the line of the model and the road that works."""

from __future__ import annotations

import inspect
import threading
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

from qfunc.errors import CaptureError
from qfunc.frontend.capture import capture
from tests.ops.spellings import Asserts

pytestmark = pytest.mark.filterwarnings("ignore")  # torch.export warns of its own use of deprecated names
X = torch.arange(6.0).reshape(2, 3)
EXPORT = "Give example_inputs=(...,), so that the model is captured by torch.export."


class OnValues(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        if x.sum() > 0:  # here
            return x
        return -x


class OnShapes(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        if x.shape[1] == 3:  # here
            return x * 2
        return x


class LoopOverShape(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        for i in range(int(x.shape[1])):  # here
            x = x + i
        return x


class Unpacks(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.reshape(*x.shape[:1], 3, 1)  # here


class MakesTensor(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + torch.arange(x.size(1)) + torch.tensor([1.0, 2.0, 3.0])


class TrainsOtherwise(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * 2 if self.training else x * 3  # here


def place(model: nn.Module) -> str:
    lines, first = inspect.getsourcelines(type(model))
    return f"{__file__}:{first + next(i for i, text in enumerate(lines) if '# here' in text)}"


def message(model: Any, *example: tuple[Any, ...]) -> str:
    with pytest.raises(CaptureError) as caught:
        capture(*example)(model)
    return str(caught.value)


def test_control_flow_on_values() -> None:
    cure = (
        "wanted a forward whose path does not depend on data. "
        "Use torch.where, or keep the module that branches as one op, without example_inputs: leaves=MyModule."
    )
    assert message(OnValues()).startswith(f"{place(OnValues())}: found control flow on the values of a tensor (%gt")
    assert message(OnValues()).endswith(cure)
    assert message(OnValues(), (X,)) == f"{place(OnValues())}: found control flow on the values of a tensor, {cure}"


TRACED = "wanted a forward that can be traced symbolically"
ONE_ROAD = {
    OnShapes: "TraceError: symbolically traced variables cannot be used as inputs to control flow",
    LoopOverShape: "TypeError: int() argument must be a string, a bytes-like object or a real number, not 'Proxy'",
    Unpacks: "TraceError: Proxy object cannot be iterated",
}


@pytest.mark.parametrize("kind", ONE_ROAD)
def test_the_other_road_works(kind: type[nn.Module]) -> None:
    model = kind()
    text = message(model)
    assert text == f"{place(model)}: found {ONE_ROAD[kind]}, {TRACED}. {EXPORT}"
    assert torch.equal(capture((X,))(model)(X), model(X))


@pytest.mark.parametrize(("kind", "example"), [(Unpacks, None), (OnValues, (X,))])
@pytest.mark.parametrize("both", [False, True])
def test_language_models_are_captured_by_decoder(kind: type[Any], example: Any, both: bool) -> None:
    """Those of transformers have the method `prepare_inputs_for_generation`, and may have an encoder."""
    model = kind()
    model.config, model.prepare_inputs_for_generation = SimpleNamespace(is_encoder_decoder=both), str
    do = "Write decoder = qfunc.decoder(length)(model), and quantize decoder.program."
    if both:
        do = "Write qfunc.encoder_decoder(length, features)(model), and quantize its encoder and its decoder.program."
    assert message(model, example).endswith(f". {do}")


def test_tensors_made_in_forward() -> None:
    for example in (None, (X,)):
        captured = capture(example)(MakesTensor())
        for x in (X, X[:1]):
            assert torch.equal(captured(x), MakesTensor()(x))


def test_assertions_on_shapes_are_no_control_flow() -> None:
    for example in (None, (X,)):
        assert torch.equal(capture(example)(Asserts())(X), X + 1)


def test_what_depends_on_training() -> None:
    assert message(TrainsOtherwise()) == (
        f"{place(TrainsOtherwise())}: found %mul : [num_users=1] = "
        "call_function[target=operator.mul](args = (%x, 3), kwargs = {}) "
        "in eval mode but %mul : [num_users=1] = "
        "call_function[target=operator.mul](args = (%x, 2), kwargs = {}) in train mode, "
        "wanted a graph that differs by dropout alone. "
        "Move what depends on self.training out of the model, replace it by nn.Dropout, or give example_inputs=(...,), for "
        "a model that is evaluated only."
    )


def test_what_is_no_model() -> None:
    assert message(3) == "capture: found int, wanted an nn.Module or an ExportedProgram. Pass the module itself."
    scripted = torch.jit.trace(nn.Linear(3, 2), X)
    assert message(scripted) == (
        "capture: found a TorchScript module, wanted an eager nn.Module. Pass the eager module from which it was scripted."
    )


def test_a_model_that_does_not_run_on_the_example() -> None:
    text = message(nn.Sequential(nn.Linear(4, 2)), (X,))
    assert text.startswith("torch.export of Sequential: found ")
    assert text.endswith("Check that model(*example_inputs) runs; quantize submodules where the whole cannot be captured.")


def test_a_model_that_cannot_be_copied() -> None:
    model = nn.Linear(3, 2)
    model.lock = threading.Lock()
    assert message(model) == (
        "copy.deepcopy of Linear: found TypeError: cannot pickle '_thread.lock' object, wanted a model that can be copied. "
        "Keep objects that cannot be copied (locks, files, generators) outside the model."
    )


def test_a_process_group_of_a_norm_alone() -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 2, 1), nn.SyncBatchNorm(2, process_group=threading.Lock())
    )  # no more to copy than a group
    assert message(model) == (
        "SyncBatchNorm '1': found a separate process group, which cannot be copied, wanted the group of all processes. "
        "Write nn.SyncBatchNorm.convert_sync_batchnorm(model), without process_group."
    )


def test_what_a_forward_left_behind_is_no_part_of_the_model() -> None:
    model = nn.Linear(3, 2)
    model.cache = model.weight * 2
    assert torch.equal(capture()(model)(X), model(X))


def test_parametrized_weights() -> None:
    model = weight_norm(nn.Linear(3, 2))
    names = [name for name, _ in model.named_parameters()]
    for example in (None, (X,)):
        captured = capture(example)(model)
        assert torch.equal(captured(X), model(X))
        assert "weight" in dict(captured.named_parameters())
    assert [name for name, _ in model.named_parameters()] == names


def test_a_user_s_leaf_stays_one_node() -> None:
    model = nn.Sequential(OnValues(), nn.ReLU())
    captured = capture(leaves=(f"{__name__}.OnValues",))(model)
    assert [n.op for n in captured.graph.nodes] == ["placeholder", "call_module", "call_function", "output"]
    assert torch.equal(captured(-X), model(-X))


class Packs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.GRU(4, 5, batch_first=True)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        return nn.utils.rnn.pad_packed_sequence(self.rnn(packed)[0], batch_first=True)[0]


@pytest.mark.parametrize("road", [(), ((torch.randn(2, 5, 4), torch.tensor([5, 3])),)], ids=["fx", "export"])
def test_packed_sequences(road: Any) -> None:
    where, _, told = message(Packs(), *road).partition(": ")
    assert where.startswith(__file__)
    assert told == (
        "found a packed sequence, whose length depends on values, wanted a padded tensor. Give the layer the padded tensor, "
        "and pick each sequence's last output by its length."
    )

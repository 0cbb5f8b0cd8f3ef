"""Arguments that capture fixed: given again they count for nothing, another value is refused, on both roads."""

from __future__ import annotations

from typing import Any

import onnxruntime
import pytest
import torch
from torch import Tensor, nn

import qfunc
from qfunc.errors import CalibrationError, CaptureError
from qfunc.specs import edit
from tests.onnxruntime_target import ONNXRUNTIME

TARGET = edit.weights(bits=7)(ONNXRUNTIME)
X = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))


class Options(nn.Module):
    """A flag between the inputs, one that is a tensor or None, and one by keyword only."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x: Tensor, flag: bool = True, y: Any = 0.0, mask: Any = None, *, word: str = "a") -> Tensor:
        made: Tensor = self.fc(x) + y if flag else x
        return made if mask is None else made * mask


class Caller(nn.Module):
    """Gives its part what it has by default anyhow."""

    def __init__(self) -> None:
        super().__init__()
        self.part, self.last = Options(), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.last(self.part(x, flag=True, word="a"))
        return y if y.sum() > -1e9 else -y


@pytest.mark.parametrize("road", [None, (X,)], ids=["fx", "export"])
def test_the_values_that_they_are_fixed_to(road: Any) -> None:
    model = Options().eval()
    wanted = model(X)
    done = qfunc.calibrate([{"x": X, "flag": True}], progress=False)(qfunc.quantize(TARGET, road)(model))
    for captured in (qfunc.capture(road)(model), done, qfunc.emulate(TARGET)(done)):
        for args, named in (((X,), {}), ((X, True), {}), ((X,), {"flag": True, "mask": None}), ((), {"x": X, "word": "a"})):
            assert torch.allclose(captured(*args, **named), wanted, atol=0.1)  # some codes of 7 bits
    if road is None:
        assert torch.equal(qfunc.capture()(model)(X, True, X), model(X, True, X))  # y stayed an input
        assert torch.equal(qfunc.capture()(model)(X, X), model(X, True, X))  # as the graph takes them


def test_what_examples_fix_may_be_left_out() -> None:
    """In batches and in calls, by place and by name; another value stays refused."""
    model = Options().eval()
    quantized = qfunc.quantize(TARGET, (X, True, 0.5, None))(model)
    for batch in (X, (X,), {"x": X}, {"x": X, "y": 0.5}, (X, True, 0.5, None)):
        done = qfunc.calibrate([batch], progress=False)(quantized)
        wanted = done(X, True, 0.5, None)
        for found in (done(X), done(x=X), done(X, True), done(X, y=0.5), qfunc.emulate(TARGET)(done)(X)):
            assert torch.allclose(found, wanted, atol=0.1)  # emulated, some codes of 7 bits
    with pytest.raises(CaptureError, match=r"^call of a captured model: found y=0.0, wanted y=0.5, to which capture fixed it"):
        done(X, y=0.0)
    with pytest.raises(CaptureError, match=r"^call of a captured model: found flag=a Tensor, wanted flag=True, to which"):
        qfunc.calibrate([(X, X[:, 0])], progress=False)(quantized)  # labels are no flag
    with pytest.raises(CalibrationError) as e:
        qfunc.calibrate([{}], progress=False)(quantized)
    assert str(e.value) == (
        "calibrate, batch: found a dict with keys none, wanted a tensor, tuple or dict for the inputs x, flag, y, mask "
        "(1 required). Pass batches with the arguments of the model's forward."
    )
    assert qfunc.verify(TARGET)(done, [X]).agreement.startswith("bit-exact: 0 of ")


class Two(nn.Module):
    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return a + b


def test_the_inputs_of_one_batch_are_no_batches() -> None:
    quantized = qfunc.quantize(TARGET)(Two())
    with pytest.raises(CalibrationError) as e:
        qfunc.calibrate((X, X), progress=False)(quantized)
    assert str(e.value) == (
        "calibrate, batch: found 1 input, wanted a tensor, tuple or dict for the inputs a, b (2 required). Put the inputs of "
        "each batch into a tuple, and a single batch into a list: [(a, b)]."
    )


WRONG: dict[str, tuple[Any, dict[str, Any], tuple[Any, ...], dict[str, Any], str]] = {
    "another flag": (None, {}, (X, False), {}, "flag=False, wanted flag=True, to which capture fixed it. Capture or quantize "
                     "the model with concrete_args={'flag': False}."),
    "a tensor": (None, {}, (X,), {"mask": X}, "mask=a Tensor, wanted mask=None, to which capture fixed it. Capture or quantize "
                 "the model with example_inputs=(...,) that have a Tensor for mask."),
    "of concrete_args": (None, {"word": "b"}, (X,), {"word": "a"}, "word='a', wanted word='b', to which capture fixed it. "
                         "Capture or quantize the model with concrete_args={'word': 'a'}."),
    "of the examples": ((X, True), {}, (X, False), {}, "flag=False, wanted flag=True, to which capture fixed it. Capture or "
                        "quantize the model with example_inputs=(...,) that have False for flag."),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG.values(), ids=WRONG)
def test_another_value(case: tuple[Any, dict[str, Any], tuple[Any, ...], dict[str, Any], str]) -> None:
    road, concrete, args, named, message = case
    captured = qfunc.capture(road, concrete_args=concrete)(Options().eval())
    with pytest.raises(CaptureError) as refused:
        captured(*args, **named)
    assert str(refused.value) == f"call of a captured model: found {message}"


def test_what_an_outer_module_gives_its_part() -> None:
    model = Caller().eval()
    done = qfunc.calibrate([X], progress=False)(qfunc.quantize(TARGET, submodules="part")(model))
    assert torch.allclose(done(X), model(X), atol=0.1)  # some codes of 7 bits
    other = qfunc.quantize(TARGET, submodules="part", concrete_args={"word": "b"})(model)
    with pytest.raises(CaptureError, match=r"^call of submodule 'part': found word='a', wanted word='b', to which"):
        qfunc.calibrate([X], progress=False)(other)


def test_keywords_that_a_forward_leaves_alone_are_no_inputs() -> None:
    class Open(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(4, 2)

        def forward(self, x: Tensor, *rest: Any, word: str = "a", **named: Any) -> Tensor:
            made: Tensor = self.fc(x)
            return made

    done = qfunc.calibrate([X], progress=False)(qfunc.quantize(TARGET)(Open().eval()))
    assert [n.name for n in done.graph.nodes if n.op == "placeholder"] == ["x"]
    assert qfunc.verify(TARGET)(done, [X]).agreement.startswith("bit-exact")


def test_python_says_what_is_no_argument_at_all() -> None:
    captured = qfunc.capture()(Options())
    with pytest.raises(TypeError, match="unexpected keyword argument 'gain'"):
        captured(X, gain=2)
    with pytest.raises(TypeError, match="positional arguments but 7 were given"):
        captured(X, True, 0.0, None, "a", 6)


class Rows(nn.Module):
    """A loop over the batch, as a detector has for its images."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> list[Tensor]:
        return [row.mean() for row in self.fc(x)]


@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.filterwarnings("ignore")  # torch.export warns of its own use of deprecated names
def test_a_forward_that_counts_on_its_batch(size: int) -> None:
    x, other = X[:size], torch.cat([X, X])
    done = qfunc.calibrate([x], progress=False)(qfunc.quantize(TARGET, (x,))(Rows().eval()))
    assert len(done(x)) == size
    text = (
        f"call of a captured model: found a first input of shape [6, 4], wanted {size} on its first axis, to which "
        "torch.export fixed it: the forward depends on that size. Give example_inputs of that size, or quantize the "
        "submodules that accept any batch size: quantize(target, submodules=...)."
    )
    for use in (lambda: done(other), lambda: qfunc.calibrate([other])(done), lambda: qfunc.verify(TARGET)(done, [other])):
        with pytest.raises(CaptureError) as refused:
            use()
        assert str(refused.value) == text
    (shape,) = [tuple(i.shape) for i in onnx_session(qfunc.deploy(TARGET)(done)).get_inputs()]
    assert shape == (size, 4)
    assert qfunc.verify(TARGET)(done, [x]).agreement.startswith("bit-exact")


def onnx_session(artifact: Any) -> Any:
    return onnxruntime.InferenceSession(artifact.files["model.onnx"], providers=["CPUExecutionProvider"])

"""In-place ops are made pure: the captured graph computes what eager mode does, or says where it cannot."""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qfunc.errors import CaptureError
from qfunc.frontend.capture import capture
from qfunc.ops.canonicalize import is_in_place


class Net(nn.Module):
    def __init__(self, function: Callable[[Net, Tensor, Tensor], object]) -> None:
        super().__init__()
        self.function = function
        self.relu, self.drop = nn.ReLU(inplace=True), nn.Dropout(0.5, inplace=True)
        self.scale = nn.Parameter(torch.tensor([1.5, -2.0, 0.5]))
        self.register_buffer("count", torch.zeros(3))

    def forward(self, x: Tensor, b: Tensor) -> object:
        return self.function(self, x, b)


def residual(m: Net, x: Tensor, b: Tensor) -> Tensor:
    shortcut = x * 2
    x = x * m.scale
    x += shortcut
    return m.relu(x)


def twice(m: Net, x: Tensor, b: Tensor) -> Tensor:
    a = x * 1.0
    a.add_(b)
    a.add_(b)
    return a


def on_the_input(m: Net, x: Tensor, b: Tensor) -> Tensor:
    x.relu_()
    return x + b


def two_names(m: Net, x: Tensor, b: Tensor) -> Tensor:
    y = x
    y += 1
    return x + y


def one_of_several_results(m: Net, x: Tensor, b: Tensor) -> Tensor:
    values, places = x.topk(2, dim=-1)
    values /= values.sum(-1, keepdim=True)
    return values + places


def a_result_with_two_names(m: Net, x: Tensor, b: Tensor) -> Tensor:
    found = x.topk(2, dim=-1)
    first = found[0]
    first += 1
    return found[0] * found[1]


def result_and_argument(m: Net, x: Tensor, b: Tensor) -> Tensor:
    y = x * 1.0
    z = y.mul_(3)
    z.add_(1)
    return y * 2 + z


def clone_is_kept(m: Net, x: Tensor, b: Tensor) -> Tensor:
    y = x.clone()
    y.add_(1)
    return x + y


def clone_of_a_written(m: Net, x: Tensor, b: Tensor) -> Tensor:
    y = x * 1.0
    z = y.clone()
    y.mul_(2)
    return y - z


def view_of_a_dead_base(m: Net, x: Tensor, b: Tensor) -> Tensor:
    y = (x * 1.0).view(-1)
    y.relu_()
    return y


def view_after_the_write(m: Net, x: Tensor, b: Tensor) -> Tensor:
    y = x * 1.0
    y.relu_()
    v = y.view(-1)
    return v.sum(0) + y


def in_both_branches(m: Net, x: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    y = x * 1.0
    a = m.relu(y)
    return F.relu(a, inplace=True) + y, torch.relu_(y)


def plain_use_before(m: Net, x: Tensor, b: Tensor) -> Tensor:
    before = x * 3
    x -= b
    x *= 2
    x /= 4
    return before + x


def conv_then_relu_read_twice(m: Net, x: Tensor, b: Tensor) -> Tensor:
    y = F.linear(x, torch.diag(m.scale))
    F.leaky_relu_(y, 0.1)
    return torch.cat([y, y.clamp_(max=0.5)])


def dropout_in_place(m: Net, x: Tensor, b: Tensor) -> Tensor:
    y = x * 1.0
    m.drop(y)
    return y + b


def sizes_count_up(m: Net, x: Tensor, b: Tensor) -> Tensor:
    n = x.size(1)
    n *= x.shape[0]
    return x.reshape(n)


PURE = [
    residual,
    twice,
    on_the_input,
    two_names,
    result_and_argument,
    one_of_several_results,
    a_result_with_two_names,
    clone_is_kept,
    clone_of_a_written,
    view_of_a_dead_base,
    view_after_the_write,
    in_both_branches,
    plain_use_before,
    conv_then_relu_read_twice,
    dropout_in_place,
    sizes_count_up,
]


def data() -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(3)
    return torch.randn(2, 3, generator=g), torch.randn(2, 3, generator=g)


def same(a: object, b: object) -> bool:
    pairs = zip(a, b, strict=True) if isinstance(a, tuple) and isinstance(b, tuple) else [(a, b)]
    return all(isinstance(x, Tensor) and isinstance(y, Tensor) and torch.equal(x, y) for x, y in pairs)


@pytest.mark.parametrize("road", ["fx", "export"])
@pytest.mark.parametrize("function", PURE)
@pytest.mark.filterwarnings("ignore")
def test_pure_form_equals_eager(function: Callable[..., object], road: str) -> None:
    model = Net(function).eval()
    captured = capture(data() if road == "export" else None)(model)
    inputs = data()
    assert same(captured(*inputs), model(*data()))
    assert same(inputs, data()), "the captured model writes into its inputs"
    assert not any(is_in_place(n) for n in captured.graph.nodes)


@pytest.mark.parametrize("function", [dropout_in_place, residual])
def test_training_equals_eager_with_the_same_seed(function: Callable[..., object]) -> None:
    model = Net(function).train()
    captured = capture()(model)
    torch.manual_seed(11)
    expected = model(*data())
    torch.manual_seed(11)
    assert same(captured(*data()), expected)


def base_read_later(m: Net, x: Tensor, b: Tensor) -> Tensor:
    y = x.view(3, 2)
    y.relu_()  # here
    return x.sum() + y


def view_read_later(m: Net, x: Tensor, b: Tensor) -> Tensor:
    y = x * 1.0
    row = y[0]
    y += 1  # here
    return row + y


def sibling_read_later(m: Net, x: Tensor, b: Tensor) -> Tensor:
    left, right = x.chunk(2)
    left.add_(1)  # here
    return left + right


def contiguous_read_later(m: Net, x: Tensor, b: Tensor) -> Tensor:
    y = x.contiguous()
    y.add_(1)  # here
    return x + y


def transposed_base(m: Net, x: Tensor, b: Tensor) -> Tensor:
    x.T.mul_(2)  # here
    return x


def set_item(m: Net, x: Tensor, b: Tensor) -> Tensor:
    y = x * 1.0
    y[x > 0] = 0  # here
    return y


def write_into_a_buffer(m: Net, x: Tensor, b: Tensor) -> Tensor:
    m.count.add_(1)  # here
    return x + m.count


def no_pure_form(m: Net, x: Tensor, b: Tensor) -> Tensor:
    y = x * 1.0
    y.bernoulli_(0.5)  # here
    return y


def random_part(m: Net, x: Tensor, b: Tensor) -> Tensor:
    y = x * 1.0
    y[:1].normal_()  # here
    return y


def out_argument(m: Net, x: Tensor, b: Tensor) -> Tensor:
    torch.add(x, b, out=b)  # here
    return b


SHARED = "Use an out-of-place op, or clone() the tensor that is read later."
REFUSED = {
    base_read_later: "found an in-place write to 'view', which shares storage with 'x' that is read later, "
    f"wanted a pure operation. {SHARED}",
    view_read_later: "found an in-place write to 'mul', which shares storage with 'getitem' that is read later, "
    f"wanted a pure operation. {SHARED}",
    sibling_read_later: None,
    contiguous_read_later: "found an in-place write to 'contiguous', which shares storage with 'x' that is read later, "
    f"wanted a pure operation. {SHARED}",
    transposed_base: None,
    set_item: "found x[...] = value, an in-place write into a part of a tensor, wanted a pure operation. "
    "Build the tensor with torch.cat, torch.where or F.pad, or use index_put, scatter or masked_fill.",
    write_into_a_buffer: "found an in-place write to a parameter or buffer, wanted a forward that does not change the model. "
    "Return the new value instead of storing it.",
    no_pure_form: "found bernoulli_, an in-place write that has no pure form in the op vocabulary, wanted a pure operation. "
    "Write x = x.bernoulli(...).",
    random_part: "found normal_, an in-place write that has no pure form in the op vocabulary, wanted a pure operation. "
    "Build the tensor with torch.cat, torch.where or F.pad, or use index_put, scatter or masked_fill.",
    out_argument: "found out=, a write into another tensor, wanted a pure operation. Use the returned value.",
}


@pytest.mark.parametrize("function", REFUSED)
def test_refused_with_the_line_of_the_model(function: Callable[..., object]) -> None:
    with pytest.raises(CaptureError) as caught:
        capture()(Net(function))
    lines, first = inspect.getsourcelines(function)
    line = first + next(i for i, text in enumerate(lines) if "# here" in text)
    assert caught.value.where == f"{__file__}:{line}"
    message = REFUSED[function]
    assert message is None or str(caught.value) == f"{__file__}:{line}: {message}"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("function", [base_read_later, view_read_later, sibling_read_later, transposed_base])
def test_refused_on_the_export_road_too(function: Callable[..., object]) -> None:
    with pytest.raises(CaptureError, match="which shares storage with"):
        capture(data())(Net(function).eval())


def test_operators_are_recorded_as_what_they_are() -> None:
    from qfunc.frontend.fx.tracer import Tracer

    traced = Tracer(()).trace(Net(residual))
    assert operator.iadd in [n.target for n in traced.nodes]

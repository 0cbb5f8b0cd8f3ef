"""Whole models: roads, modes, inputs and outputs of any structure, ties, wrappers, dynamic batch."""

from __future__ import annotations

import copy
import io
import math
import operator
import pickle
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from qfunc.errors import CaptureError
from qfunc.frontend.capture import capture
from qfunc.graph.record import path_of, record_of
from qfunc.ops.node import kind_of

pytestmark = pytest.mark.filterwarnings("ignore")  # torch.export warns of its own use of deprecated names


class Block(nn.Module):
    def __init__(self, channels: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(channels, channels, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.down = nn.Sequential(nn.Conv2d(channels, channels, 1, stride), nn.BatchNorm2d(channels)) if stride > 1 else None

    def forward(self, x: Tensor) -> Tensor:
        out = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        out += x if self.down is None else self.down(x)
        return self.relu(out)


class ResNet(nn.Module):
    def __init__(self, depth: int = 1, channels: int = 4) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, channels, 3, padding=1)
        self.layer1 = nn.Sequential(*(Block(channels) for _ in range(depth)))
        self.layer2 = nn.Sequential(Block(channels, 2), *(Block(channels) for _ in range(depth - 1)))
        self.pool, self.drop, self.fc = nn.AdaptiveAvgPool2d(1), nn.Dropout(0.3), nn.Linear(channels, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer2(self.layer1(F.relu(self.stem(x))))
        x = F.dropout(self.pool(x), 0.2, training=self.training)
        return self.fc(self.drop(x.view(x.size(0), -1)))


def resnet(**kwargs: int) -> ResNet:
    torch.manual_seed(0)
    model = ResNet(**kwargs)
    for m in model.modules():
        if isinstance(m, nn.BatchNorm2d):
            m.running_mean.normal_()
            m.running_var.uniform_(0.5, 2)
            m.weight.data.uniform_(0.5, 2)
    return model


IMAGE = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(1))


def kinds(model: fx.GraphModule) -> list[str]:
    return [k for n in model.graph.nodes if (k := kind_of(n)) not in ("constant", "input", "output", "size")]


def test_both_roads_give_the_same_graph_names_and_outputs() -> None:
    model = resnet().eval()
    by_fx, by_export = capture()(model), capture((IMAGE,))(model)
    assert kinds(by_fx) == kinds(by_export)
    assert kinds(by_fx)[:5] == ["conv", "relu", "conv", "batch_norm", "relu"]
    for batch in (1, 2, 3):
        x = torch.randn(batch, 3, 8, 8)
        assert torch.equal(by_fx(x), model(x))
        assert torch.equal(by_export(x), model(x))
    paths, others = ([path_of(m, n) for n in m.graph.nodes if n.op == "call_function"] for m in (by_fx, by_export))
    assert sorted(paths) == sorted(others)
    assert paths == ["stem", "relu", "layer1.0.conv1", "layer1.0.relu", "layer1.0.conv2", "layer1.0.add", "layer1.0.relu_1",
                     "layer2.0.conv1", "layer2.0.relu", "layer2.0.conv2", "layer2.0.down.0", "layer2.0.add", "layer2.0.relu_1",
                     "pool", "size", "view", "fc"]  # fmt: skip


@pytest.mark.parametrize("example", [None, (IMAGE,)], ids=["fx", "export"])
def test_training_equals_eager_with_the_same_seed(example: Any) -> None:
    model = resnet().train()
    captured = capture(example)(model)
    assert captured.training
    torch.manual_seed(4)
    expected = model(IMAGE)
    torch.manual_seed(4)
    found = captured(IMAGE)
    assert torch.equal(found, expected)
    for name, buffer in model.named_buffers():
        assert torch.equal(captured.get_buffer(name), buffer), name
    assert not torch.equal(captured.train()(IMAGE), captured.eval()(IMAGE))


@pytest.mark.parametrize("example", [None, (IMAGE,)], ids=["fx", "export"])
def test_a_captured_model_owns_its_tensors_and_leaves_the_input_alone(example: Any) -> None:
    model = resnet().train()
    model.layer1.eval()
    model.fc.register_forward_hook(lambda m, a, out: None)
    before = copy.deepcopy(model.state_dict())
    attributes = {name: sorted(vars(m)) for name, m in model.named_modules()}
    modes = {name: m.training for name, m in model.named_modules()}
    captured = capture(example)(model)
    assert {n: captured.get_submodule(n).training for n in ("layer1.0.bn1", "layer2.0.bn1", "drop")} == {
        "layer1.0.bn1": False, "layer2.0.bn1": True, "drop": True}  # fmt: skip
    optimizer = torch.optim.SGD(captured.parameters(), 0.1)
    captured(IMAGE).square().sum().backward()
    optimizer.step()
    after = model.state_dict()
    assert all(torch.equal(before[k], after[k]) for k in before)
    assert all(p.grad is None for p in model.parameters())
    assert modes == {name: m.training for name, m in model.named_modules()}
    assert attributes == {name: sorted(vars(m)) for name, m in model.named_modules()}
    assert len(model.fc._forward_hooks) == 1


@pytest.mark.parametrize("example", [None, (IMAGE,)], ids=["fx", "export"])
def test_float_checkpoints_load(example: Any) -> None:
    other = resnet()
    nn.init.normal_(other.fc.weight)
    captured = capture(example)(resnet()).eval()
    assert sorted(captured.state_dict()) == sorted(other.state_dict())
    captured.load_state_dict(other.state_dict())
    assert torch.equal(captured(IMAGE), other.eval()(IMAGE))


class Writes(nn.Module):
    """A forward that leaves traces in the module, and fails when asked to."""

    def __init__(self, fails: bool) -> None:
        super().__init__()
        self.fails, self.fc, self.calls = fails, nn.Linear(3, 3), 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.last = x
        self.constant = torch.ones(3)
        if self.fails and x.sum() > 0:
            return x
        return self.fc(x) + torch.tensor([1.0, 2.0, 3.0])


@pytest.mark.parametrize("example", [None, (torch.ones(2, 3),)], ids=["fx", "export"])
@pytest.mark.parametrize("fails", [False, True])
def test_what_forward_writes_stays_out_of_the_model(fails: bool, example: Any) -> None:
    model = Writes(fails).train()
    before = sorted(vars(model))
    if fails:
        with pytest.raises(CaptureError):
            capture(example)(model)
    else:
        x = torch.randn(2, 3)
        captured = capture(example)(model)
        assert model.calls == 0
        assert list(captured.state_dict()) == ["fc.weight", "fc.bias"]
        assert torch.equal(captured(x), model(x))
        return
    assert sorted(vars(model)) == before
    assert model.training
    assert model.calls == 0


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(7, 4), nn.Linear(4, 7, bias=False)
        self.head.weight = self.embed.weight
        self.twice = nn.Linear(4, 4)
        self.again = self.twice
        self.register_buffer("shift", torch.ones(4))
        self.register_buffer("hidden", torch.full((4,), 2.0), persistent=False)
        self.unused = nn.Linear(2, 2)
        self.plain = torch.tensor([0.5])

    def forward(self, ids: Tensor) -> Tensor:
        x = self.again(self.twice(self.twice(self.embed(ids)))) + self.shift * self.hidden
        return self.head(x * self.plain)


IDS = torch.tensor([[1, 2, 3], [4, 5, 6]])


@pytest.mark.parametrize("example", [None, (IDS,)], ids=["fx", "export"])
def test_ties_stay_ties_and_the_state_dict_keeps_its_keys(example: Any) -> None:
    model = Tied()
    captured = capture(example)(model)
    for result in (captured, copy.deepcopy(captured), pickle.loads(pickle.dumps(captured))):
        assert sorted(result.state_dict()) == sorted(model.state_dict())
        assert result.get_parameter("head.weight") is result.get_parameter("embed.weight")
        assert result.get_parameter("again.weight") is result.get_parameter("twice.weight")
        assert len(list(result.parameters())) == len(list(model.parameters()))
        assert torch.equal(result(IDS), model(IDS))
        assert [n.name for n in result.graph.nodes] == [n.name for n in captured.graph.nodes]
        assert record_of(result) == record_of(captured)
    assert captured.get_parameter("embed.weight") is not model.embed.weight
    assert kinds(captured).count("linear") == 4


def test_save_and_load_of_a_whole_captured_model() -> None:
    captured = capture()(resnet()).eval()
    file = io.BytesIO()
    torch.save(captured, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    assert isinstance(loaded, fx.GraphModule)
    assert not loaded.training
    assert [(n.op, n.name, n.target, str(n.args)) for n in loaded.graph.nodes] == [
        (n.op, n.name, n.target, str(n.args)) for n in captured.graph.nodes
    ]
    assert record_of(loaded) == record_of(captured)
    assert loaded.state_dict().keys() == captured.state_dict().keys()
    assert torch.equal(loaded(IMAGE), captured(IMAGE))
    assert torch.equal(copy.deepcopy(loaded)(IMAGE), captured(IMAGE))


def test_the_same_module_called_twice_has_two_names() -> None:
    conv = nn.Conv2d(3, 3, 1)
    captured = capture()(nn.Sequential(conv, nn.ReLU(), conv))
    assert [n.name for n in captured.graph.nodes if n.op == "call_function"] == ["_0", "_1", "_0_1"]
    assert len([n for n in captured.graph.nodes if n.op == "get_attr" and n.target == "0.weight"]) == 1


def test_a_conv_that_pads_by_reflection_keeps_its_name() -> None:
    captured = capture()(nn.Sequential(nn.Conv2d(3, 3, 3, padding=1, padding_mode="reflect")))
    assert [(path_of(captured, n), kind_of(n)) for n in captured.graph.nodes if n.op == "call_function"] == [
        ("0.pad", "pad"), ("0", "conv")]  # fmt: skip


class Two(NamedTuple):
    a: Tensor
    b: Tensor


class Structures(nn.Module):
    def forward(
        self, x: Tensor, other: dict[str, Tensor], *, mask: Tensor | None = None, scale: float = 2.0, deep: bool = False
    ) -> Any:
        y = x * scale + other["one"]
        if mask is not None:
            y = y * mask
        if deep:
            y = y * 100
        b, c = x.shape
        return {"y": y, "list": [y + 1, (other["two"], x.reshape(c, b))], "number": 3, "none": None}


def test_structured_inputs_and_outputs_and_defaults() -> None:
    model, x = Structures(), torch.randn(2, 3)
    other = {"one": torch.randn(2, 3), "two": torch.randn(3)}
    for captured in (capture()(model), capture((x, other))(model)):
        expected, found = model(x, other), captured(x, other)
        assert found.keys() == expected.keys()
        assert torch.equal(found["y"], expected["y"])
        assert torch.equal(found["list"][0], expected["list"][0])
        assert torch.equal(found["list"][1][1], expected["list"][1][1])
        assert (found["number"], found["none"]) == (3, None)
    by_fx = capture()(model)
    assert torch.equal(by_fx(x, other, scale=5.0)["y"], model(x, other, scale=5.0)["y"])
    assert torch.equal(pickle.loads(pickle.dumps(by_fx))(x, other=other)["y"], model(x, other)["y"])


class ReturnsNamed(nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> Two:
        left, right = x.chunk(2, dim=1)
        return Two(left @ y, right)


def test_several_inputs_and_a_named_tuple() -> None:
    x, y = torch.randn(2, 4), torch.randn(2, 3)
    for captured in (capture()(ReturnsNamed()), capture((x, y))(ReturnsNamed())):
        found = captured(x, y)
        assert type(found) is Two
        assert torch.equal(found.a, ReturnsNamed()(x, y).a)


class Sequence(nn.Module):
    def __init__(self, inner: nn.Module, last: bool = True) -> None:
        super().__init__()
        self.inner, self.fc = inner, nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        y = self.inner(x, x, x) if isinstance(self.inner, nn.MultiheadAttention) else self.inner(x)
        return self.fc(y[0] if isinstance(y, tuple) else y)


RECURRENT = {
    "lstm": lambda: nn.LSTM(4, 4, num_layers=2, batch_first=True),
    "gru": lambda: nn.GRU(4, 4, batch_first=True),
    "multihead_attention": lambda: nn.MultiheadAttention(4, 2, batch_first=True),
    "transformer": lambda: nn.TransformerEncoderLayer(4, 2, 8, batch_first=True),
}


@pytest.mark.parametrize("name", RECURRENT)
@pytest.mark.parametrize("example", [None, (torch.randn(2, 5, 4),)], ids=["fx", "export"])
def test_recurrent_and_attention_layers_have_visible_weights(name: str, example: Any) -> None:
    torch.manual_seed(2)
    model = Sequence(RECURRENT[name]()).eval()
    captured = capture(example)(model)
    for batch in (2, 1, 3):
        x = torch.randn(batch, 5, 4)
        # The fast path of eager attention sums in another order: four products of at most 4 terms, some ulp each.
        assert torch.allclose(captured(x), model(x), rtol=0, atol=64 * torch.finfo(torch.float32).eps)
    if name in ("lstm", "gru"):
        assert kinds(captured).count(name) == (2 if name == "lstm" else 1)  # one op a level
    assert kinds(captured).count("linear") >= 1
    assert torch.equal(pickle.loads(pickle.dumps(captured))(x), captured(x))


@pytest.mark.parametrize("road", [None, (torch.ones(2, 3),)], ids=["fx", "export"])
def test_wrappers_inside_a_model_are_looked_through(road: Any) -> None:
    """Names and keys are those without them; the model keeps its wrappers."""
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(3, 4), nn.Sequential(nn.ReLU(), nn.Linear(4, 2))).eval()
    wrapped = nn.Sequential(torch.compile(plain[0]), nn.DataParallel(torch.compile(plain[1]))).eval()
    one, other = (capture(road)(m) for m in (plain, wrapped))
    assert [n.name for n in other.graph.nodes] == [n.name for n in one.graph.nodes]
    assert other.state_dict().keys() == one.state_dict().keys()
    assert torch.equal(other(torch.ones(2, 3)), plain(torch.ones(2, 3)))
    assert [type(m).__name__ for m in wrapped] == ["OptimizedModule", "DataParallel"]


def test_wrappers_are_taken_off() -> None:
    model = resnet().eval()
    expected = [n.name for n in capture()(model).graph.nodes]
    for wrapped in (torch.compile(model), nn.DataParallel(model), torch.compile(nn.DataParallel(model))):
        captured = capture()(wrapped)
        assert [n.name for n in captured.graph.nodes] == expected
        assert torch.equal(captured(IMAGE), model(IMAGE))


def test_an_exported_program_is_taken_and_left_alone() -> None:
    model = resnet().eval()
    program = torch.export.export(model, (IMAGE,))
    before = copy.deepcopy(dict(program.state_dict))
    captured = capture()(program)
    assert torch.equal(captured(IMAGE), model(IMAGE))
    assert not captured.training
    with torch.no_grad():
        for parameter in captured.parameters():
            parameter.add_(1)
    assert all(torch.equal(v, program.state_dict[k]) for k, v in before.items())
    assert sorted(captured.state_dict()) == sorted(model.state_dict())


def test_a_captured_model_is_copied() -> None:
    captured = capture()(resnet())
    again = capture()(captured)
    assert again is not captured
    assert torch.equal(again.eval()(IMAGE), captured.eval()(IMAGE))
    assert again.get_parameter("fc.weight") is not captured.get_parameter("fc.weight")


def test_several_threads_at_once() -> None:
    models = [resnet(depth=d) for d in (1, 2, 3, 2)]
    alone = [capture()(m) for m in models]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda m: capture()(m), models))
    for a, b in zip(alone, together, strict=True):
        assert [(n.name, str(n.args)) for n in a.graph.nodes] == [(n.name, str(n.args)) for n in b.graph.nodes]
        assert torch.equal(a.eval()(IMAGE), b.eval()(IMAGE))


def test_a_resnet_50_is_captured_in_little_more_time_than_it_is_traced() -> None:
    """The ratio is 11 on a processor with nothing else to do; both times are Python's own work on the same modules."""
    model, taken = ResNet(depth=13, channels=8), {}  # 53 convs
    for run in (capture(), torch.fx.symbolic_trace) * 3:
        start = time.process_time()
        captured = run(model)
        taken[run] = min(taken.get(run, math.inf), time.process_time() - start)
    assert taken[capture()] < 60 * taken[torch.fx.symbolic_trace]
    captured = capture()(model)
    names = [n.name for n in captured.graph.nodes]
    assert len(set(names)) == len(names)
    assert names == [n.name for n in capture()(model).graph.nodes]


def test_source_lines() -> None:
    captured = capture()(resnet())
    record = record_of(captured)
    assert record is not None
    lines = {name: fact.source for name, fact in record.facts.items() if fact.path.endswith("add")}
    assert len(set(lines.values())) == 1
    assert next(iter(lines.values())).startswith(f"{__file__}:")
    assert record.facts["layer1_0_conv1"].modules[-2:] == (f"{__name__}.Block", "torch.nn.modules.conv.Conv2d")


def test_sizes_are_no_tensors() -> None:
    class Sizes(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            n, c = x.size()[0], x.shape[-1] // 2
            return x.view(n, 2, c).transpose(1, 2).reshape(n * 2, -1) * c

    x = torch.randn(4, 6)
    captured = capture()(Sizes())
    assert torch.equal(captured(x), Sizes()(x))
    assert kinds(captured).count("slice") == 0
    assert operator.floordiv in [n.target for n in captured.graph.nodes]

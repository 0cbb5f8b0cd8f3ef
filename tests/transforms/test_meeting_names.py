"""Layers, inputs, buffers and outputs that have each other's names: the network is the one with names of its own.

The oracle is the same network with neutral names, and the real runtime: names change neither what is emulated nor what is
compared.
"""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn

import qfunc
from qfunc import specs, targets
from qfunc.emulation.builder import codes_names
from qfunc.errors import CaptureError
from qfunc.graph.tensor_names import BESIDE, tensor_names
from qfunc.targets.runtimes import LiteRtRunner

WORDS = (
    "query", "key", "add", "add_1", "add_codes", "conv", "conv_acc", "conv_codes", "conv_codes_1", "x", "x_codes", "x_real",
    "codes", "real", "scale", "inner", "rows", "value", "weight", "nhwc", "output", "model", "batch", "quantizers", "integers",
    "input", "query_1", "query_codes", "relu", "mul", "mul_1", "cat", "len_1",
)  # fmt: skip
NEUTRAL = ("xa", "xb", "la", "lb", "ba", "bb", "sa", "sb", "oa", "ob")


def network(names: tuple[str, ...]) -> nn.Module:
    """A network whose inputs, layers, buffers, submodule, its layer and outputs have these names."""
    a, b, first, second, buffer, inner_buffer, block, inner, out, other = names
    inner_buffer = inner_buffer if inner_buffer != inner else f"{inner}_"
    source = f"""
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.{inner} = nn.Conv2d(4, 4, 1)
        self.register_buffer("{inner_buffer}", torch.linspace(0.5, 1.5, 4).reshape(1, 4, 1, 1))

    def forward(self, {a}):
        return torch.relu(self.{inner}({a})) * self.{inner_buffer}

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.{first}, self.{second}, self.{block} = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3), Block()
        self.register_buffer("{buffer}", torch.linspace(-1, 1, 4).reshape(1, 4, 1, 1))

    def forward(self, {a}, {b}):
        y = torch.relu(self.{first}({a}) + self.{first}({b}))
        z = torch.cat([self.{block}(y) + self.{buffer}, y], 1)[:, :4]
        return {{"{out}": self.{second}(z), "{other}": y}}
"""
    space: dict[str, Any] = {"nn": nn, "torch": torch, "__name__": "drawn"}
    exec(source, space)
    torch.manual_seed(0)
    made: nn.Module = space["Net"]()
    return made.eval()


def drawn(seed: int) -> tuple[str, ...]:
    draw = random.Random(seed)
    while True:
        pool = draw.sample(WORDS, draw.randint(4, 7))
        names = tuple(draw.choice(pool) for _ in range(10))
        a, b, *of_model = names[0], names[1], names[2], names[3], names[4], names[6]
        if a != b and len(set(of_model)) == 4 and names[4] != "quantizers" and names[8] != names[9]:
            return names


def outcome(names: tuple[str, ...], target: specs.Target) -> tuple[list[Tensor], list[tuple[int, int]], set[tuple[str, str]]]:
    batch = tuple(torch.randn(2, 3, 5, 5, generator=torch.Generator().manual_seed(i)) for i in (1, 2))
    done = qfunc.calibrate([batch], progress=False)(qfunc.quantize(target)(network(names)))
    report = qfunc.verify(target)(done, [batch])
    assert "mismatch" not in report.verdict
    emulated = qfunc.emulate(target)(done)(*batch)
    rows = [(row.elements, row.mismatches) for row in report.rows]
    return [*emulated.values()], rows, {(row.kind, row.name) for row in report.rows}


@pytest.fixture(scope="module")
def plain() -> tuple[list[Tensor], list[tuple[int, int]], set[tuple[str, str]]]:
    return outcome(NEUTRAL, targets.onnxruntime)


@pytest.mark.parametrize("seed", range(4))
def test_names_that_meet_change_nothing(plain: Any, seed: int) -> None:
    values, rows, named = outcome(drawn(seed), targets.onnxruntime)
    assert all(torch.equal(one, other) for one, other in zip(values, plain[0], strict=True))
    assert rows == plain[1]
    assert len(named) == len(rows)


@pytest.mark.parametrize("seed", range(12))
def test_both_ways_to_capture_take_names_that_meet(seed: int) -> None:
    batch = tuple(torch.randn(2, 3, 5, 5, generator=torch.Generator().manual_seed(i)) for i in (1, 2))
    model = network(drawn(seed))
    for captured in (qfunc.capture()(model), qfunc.capture(batch)(model)):
        values, expected = captured(*batch), model(*batch)
        assert all(torch.equal(values[name], value) for name, value in expected.items())


@pytest.mark.skipif(bool(LiteRtRunner().missing()), reason="ai-edge-litert is not installed")
def test_names_that_meet_change_nothing_in_a_file_of_another_format() -> None:
    (values, rows, _), (expected, wanted, _) = (outcome(n, targets.litert) for n in (drawn(1), NEUTRAL))
    assert all(torch.equal(one, other) for one, other in zip(values, expected, strict=True))
    assert rows == wanted


def test_names_of_tensors_are_apart() -> None:
    for seed in range(200):
        draw, graph = random.Random(seed), fx.Graph()
        nodes = [graph.create_node(draw.choice(("placeholder", "get_attr", "call_module")), "x") for _ in range(8)]
        paths = {n: ".".join(draw.choices(("x", "value", "x_value", *sorted(BESIDE)), k=draw.randint(1, 3))) for n in nodes}
        names = tensor_names(paths)
        keys = [(path, node.op == "get_attr" or node) for node, path in paths.items()]
        by_tensor = {key: names[node] for key, node in zip(keys, paths, strict=True)}
        assert len(set(names.values())) == len(by_tensor)  # the nodes that read one attribute share its name
        written = set(names.values())
        assert not any(".".join((name, *rest)) in written for name in written for rest in _beside(written, name))


def _beside(written: set[str], name: str) -> list[list[str]]:
    rests = [other.removeprefix(f"{name}.").split(".") for other in written if other.startswith(f"{name}.")]
    return [rest for rest in rests if rest[0] in BESIDE]


def test_nodes_of_codes_are_no_nodes_of_the_network() -> None:
    names = ["x", "x_codes", "x_codes_1", "x_codes_codes", "x_1"]
    graph = fx.Graph()
    for name in names:
        graph.placeholder(name)
    found = codes_names(graph)
    assert len(set(found.values()) | set(names)) == 2 * len(names)


def test_a_tensor_that_is_named_quantizers_is_refused() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.quantizers = nn.Parameter(torch.ones(3))

        def forward(self, x: Tensor) -> Tensor:
            return x * self.quantizers

    with pytest.raises(CaptureError) as raised:
        qfunc.quantize(targets.onnxruntime)(Net().eval())
    wanted = "no such tensor, because the model's quantizers have this name"
    text = f"model, attribute 'quantizers': found a tensor named 'quantizers', wanted {wanted}. Rename the attribute."
    assert str(raised.value) == text


def test_a_module_that_is_named_quantizers_keeps_its_layers() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.quantizers = nn.Linear(3, 3), nn.ModuleDict({"conv": nn.Linear(3, 3)})

        def forward(self, x: Tensor) -> Tensor:
            return self.quantizers["conv"](self.conv(x))  # type: ignore[no-any-return]

    x = torch.randn(2, 3)
    done = qfunc.calibrate([x], progress=False)(qfunc.quantize(targets.onnxruntime)(Net().eval()))
    assert qfunc.verify(targets.onnxruntime)(done, [x]).verdict.startswith("bit-exact: 0 of ")

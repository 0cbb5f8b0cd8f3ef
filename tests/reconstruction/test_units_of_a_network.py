"""Units by structure: dominators and regions by brute force over paths, and the units of known architectures."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor, fx, nn

import qfunc
from qfunc import targets
from qfunc.errors import SpecError
from qfunc.frontend.capture import capture
from qfunc.reconstruction import Blocks, Layers, units
from qfunc.reconstruction.data_flow import DataFlow, dominators, regions
from tests.reconstruction.small_nets import Attention, Chain, Inverted, Pair, Resnet


def random_network(seed: int) -> fx.GraphModule:
    """Up to ten ops, each of one or two values before it; all that nobody reads is returned."""
    generator = torch.Generator().manual_seed(seed)
    graph = fx.Graph()
    values = [graph.placeholder(f"x{i}") for i in range(1 + seed % 2)]
    for _ in range(4 + seed % 7):
        picked = [values[i] for i in torch.randint(len(values), (2,), generator=generator).tolist()]
        one = torch.rand((), generator=generator) < 0.5
        values.append(graph.call_function(torch.tanh, (picked[0],)) if one else graph.call_function(torch.add, tuple(picked)))
    graph.output(tuple(v for v in values if not v.users) if seed % 3 else values[-1])
    return capture()(fx.GraphModule(nn.Module(), graph))


def paths_avoid(flow: DataFlow, node: fx.Node, without: fx.Node) -> bool:
    """Whether some path from an input reaches a node without passing another one; by walking all that is reached."""
    reached = {n for n in flow.nodes if n.op == "placeholder" and n is not without}
    for n in flow.nodes:
        if n is not without and any(p in reached for p in flow.inputs[n]):
            reached.add(n)
    return node in reached


@pytest.mark.parametrize("seed", range(12))
def test_dominators_and_regions_are_those_of_all_paths(seed: int) -> None:
    flow = DataFlow(random_network(seed))
    found = dominators(flow)
    order = flow.order
    for node in flow.nodes:
        above = [d for d in flow.nodes if d is not node and order[d] < order[node] and not paths_avoid(flow, node, d)]
        assert found[node] is (above[-1] if above else None)
    # A region by its definition: of all sets of ops, those that hold a join and everything between it and its dominator,
    # that nothing enters but from the entry and that nothing leaves but from the join.
    wanted = []
    for join in flow.nodes:
        if len(flow.inputs[join]) > 1:
            inside = {n for n in flow.nodes if _reaches(flow, n, join, found[join])}
            rest = inside - {join}
            if not any(u not in inside for n in rest for u in flow.readers[n]) and not rest & flow.returned:
                wanted.append((found[join], join, {n for n in inside if n.op != "placeholder"}))
    assert [(r.entry, r.exit, set(r.nodes)) for r in regions(flow)] == wanted
    for region, node in itertools.product(regions(flow), flow.nodes):
        if node in region.nodes and region.entry is not None:
            assert all(p in region.nodes or p is region.entry for p in flow.inputs[node])


def _reaches(flow: DataFlow, start: fx.Node, end: fx.Node, without: fx.Node | None) -> bool:
    reached = {start} - {without}
    for n in flow.nodes:
        if n is not without and any(p in reached for p in flow.inputs[n]):
            reached.add(n)
    return end in reached and start is not without


def found(model: nn.Module, how: Layers | Blocks) -> list[tuple[str, tuple[str, ...]]]:
    """Names and ops of the units."""
    return [(unit.name, unit.ops) for unit in units(how)(qfunc.quantize(targets.academic(4, 4))(model))]


def test_blocks_of_a_residual_network() -> None:
    assert found(Resnet(), Blocks()) == [
        ("stem", ("stem",)),
        ("first", ("first.one", "first.two")),
        ("second", ("second.short", "second.one", "second.two")),
        ("head", ("head",)),
    ]


def test_inverted_bottlenecks_with_and_without_a_residual_add() -> None:
    assert found(Inverted(), Blocks()) == [
        ("stem", ("stem",)),
        ("wide.0 to thin.0", ("wide.0", "deep.0", "thin.0")),
        ("wide.1 to thin.1", ("wide.1", "deep.1", "thin.1")),
    ]


class Excited(nn.Module):
    """Inverted bottlenecks with squeeze and excitation, the second with a residual add; a conv with a gate."""

    def __init__(self) -> None:
        super().__init__()
        self.start = nn.Conv2d(3, 3, 1)
        self.stem = nn.Conv2d(3, 4, 3, padding=1)
        self.wide = nn.ModuleList([nn.Conv2d(c, 8, 1) for c in (4, 5)])
        self.deep = nn.ModuleList([nn.Conv2d(8, 8, 3, padding=1, groups=8) for _ in range(2)])
        self.down = nn.ModuleList([nn.Conv2d(c, 2, 1) for c in (8, 8, 4)])
        self.up = nn.ModuleList([nn.Conv2d(2, c, 1) for c in (8, 8, 4)])
        self.thin = nn.ModuleList([nn.Conv2d(8, 5, 1) for _ in range(2)])

    def gate(self, i: int, x: Tensor) -> Tensor:
        """x, each channel by what all of its positions say."""
        return x * nn.functional.hardsigmoid(self.up[i](torch.relu(self.down[i](x.mean((2, 3), keepdim=True)))))

    def forward(self, x: Tensor) -> Tensor:
        x = x * torch.sigmoid(self.start(x))
        x = self.gate(2, torch.relu(self.stem(x)))
        for i in range(2):
            y = self.thin[i](self.gate(i, torch.relu(self.deep[i](torch.relu(self.wide[i](x))))))
            x = y if i == 0 else x + y
        return x


def test_squeeze_and_excitation_belongs_to_the_block_around_it() -> None:
    assert found(Excited(), Blocks()) == [
        ("start", ("start",)),
        ("stem to up.2", ("stem", "down.2", "up.2")),
        ("wide.0 to thin.0", ("wide.0", "deep.0", "down.0", "up.0", "thin.0")),
        ("wide.1 to thin.1", ("wide.1", "deep.1", "down.1", "up.1", "thin.1")),
    ]
    assert found(Excited(), Blocks(most=2))[1:3] == [("stem", ("stem",)), ("down.2 to up.2", ("down.2", "up.2"))]
    assert len(found(Excited(), Layers())) == 14


def test_a_module_that_is_called_twice() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one = nn.Linear(3, 3)

        def forward(self, x: Tensor) -> Tensor:
            return x + self.one(torch.relu(self.one(x)))

    assert found(Twice(), Blocks()) == [("one to one_1", ("one", "one_1"))]


def test_a_layer_of_a_transformer_of_torch() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 12, batch_first=True).eval()
    assert [len(ops) for _, ops in found(layer, Blocks())] == [2, 2]
    assert found(layer, Blocks(modules=("self_attn",)))[0][0] == "self_attn"


def test_attention_with_a_mask_and_a_perceptron() -> None:
    assert found(Attention(), Blocks()) == [("qkv to out", ("qkv", "out")), ("up to down", ("up", "down"))]


class Token(nn.Module):
    """Two layers, and a token of constants that is joined between them for each example."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(5, 6), nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        x = self.one(x)
        return self.two(torch.cat([torch.zeros((x.shape[0], 1, 6)) + 0.5, x], 1))


def test_sizes_and_tensors_of_constants_are_not_data() -> None:
    assert [n.name for n in DataFlow(capture()(Token())).nodes] == ["x", "one", "cat", "two"]


def test_two_inputs_and_a_weight_that_is_read_twice() -> None:
    assert found(Pair(), Blocks()) == [("left", ("left",)), ("right", ("right",)), ("both", ("both",)), ("both_1", ("both_1",))]


class Biased(nn.Module):
    """Two layers of attention whose scores get a bias that is an input, and a gain that is one."""

    def __init__(self) -> None:
        super().__init__()
        self.start = nn.Linear(5, 6)
        self.qkv, self.out = (nn.ModuleList(nn.Linear(6, n) for _ in range(2)) for n in (18, 6))

    def forward(self, x: Tensor, bias: Tensor, gain: Tensor) -> Tensor:
        x, bias = self.start(x), bias[:, None] * 2.0
        for qkv, out in zip(self.qkv, self.out, strict=True):
            q, k, v = qkv(x).chunk(3, -1)
            x = x + out((q @ k.transpose(-2, -1) + bias).softmax(-1) @ v)
        return x * gain


def test_inputs_that_only_join_others_part_no_blocks() -> None:
    wanted = [("start", ("start",)), ("qkv.0 to out.0", ("qkv.0", "out.0")), ("qkv.1 to out.1", ("qkv.1", "out.1"))]
    assert found(Biased(), Blocks()) == wanted
    torch.manual_seed(0)
    real, batches = Biased(), [(torch.randn(6, 7, 5), torch.randn(6, 7), torch.rand(6, 1, 1)) for _ in range(3)]
    model = qfunc.calibrate(batches, progress=False)(qfunc.quantize(targets.academic(3, 8))(real))
    result = qfunc.reconstruct(qfunc.brecq(iterations=100, rounding_lr=0.1), batches, progress=False)(model)
    before, after = (sum(float((m(*b) - real(*b)).detach().square().sum()) for b in batches) for m in (model, result))
    assert after < 0.8 * before


def test_layers_take_the_activations_behind_them_also_written_out() -> None:
    nodes = {unit.name: unit.nodes for unit in units(Layers())(qfunc.quantize(targets.academic(4, 4))(Inverted()))}
    assert nodes["stem"] == ("stem", "relu")
    assert nodes["wide.0"] == ("wide_0", "mul")  # which is a silu
    assert nodes["thin.1"] == ("thin_1",)


def test_a_limit_leaves_blocks_as_layers() -> None:
    assert [name for name, _ in found(Resnet(), Blocks(most=2))] == [
        "stem",
        "first",
        "second.short",
        "second.one",
        "second.two",
        "head",
    ]


def test_declared_blocks() -> None:
    assert found(Resnet(), Blocks(modules=("first", "sec*")))[1:3] == found(Resnet(), Blocks())[1:3]
    assert found(Chain(), Blocks(modules=("body",))) == [("body", ("body.0", "body.1")), ("head", ("head",))]
    with pytest.raises(SpecError) as e:
        found(Resnet(), Blocks(modules=("third",)))
    assert str(e.value) == (
        "Blocks.modules: found 'third', which matches no module with ops, wanted paths of modules. "
        "Modules with weights in them: first, second."
    )
    with pytest.raises(SpecError, match="nested modules"):
        found(Resnet(), Blocks(modules=("first", "first.one")))


def test_a_block_around_what_it_does_not_hold_is_refused() -> None:
    class Around(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.pair, self.between = nn.ModuleDict({"a": nn.Linear(3, 3), "b": nn.Linear(3, 3)}), nn.Linear(3, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.pair["b"](torch.relu(self.between(self.pair["a"](x))))

    x = torch.randn(8, 3)
    model = qfunc.calibrate([x])(qfunc.quantize(targets.academic(4, 4))(Around()))
    with pytest.raises(SpecError) as e:
        qfunc.reconstruct(qfunc.brecq(unit=Blocks(modules=("pair",)), iterations=1), [x])(model)
    assert str(e.value) == (
        "reconstruct, block 'pair': found ops outside of it that must run between its ops, wanted a block whose ops can run "
        "together. Name the module around it, or remove it from Blocks(modules=...)."
    )

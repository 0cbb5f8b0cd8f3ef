"""The axis of the examples, by a law: a change of one example changes no other one, unless the op mixes them."""

import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import fx, nn

from qfunc.frontend.capture import capture
from qfunc.graph.examples import axes_of_examples, mixes_examples, selects_examples

STEPS = {
    "relu": lambda x: x.relu(),
    "last": lambda x: x.mean(-1, keepdim=True) + x,
    "swap": lambda x: x.transpose(0, 1),
    "swap later": lambda x: x.transpose(1, 2),
    "order": lambda x: x.permute(2, 0, 1),
    "negative order": lambda x: x.permute(0, -1, 1),
    "insert": lambda x: x.unsqueeze(0).squeeze(0),
    "select": lambda x: torch.stack([x[:, 0], x[:, 1]], 1),
    "row": lambda x: torch.stack([x[0], x[1]], 0),
    "part": lambda x: x[..., :2],
    "none": lambda x: x[None].sum(0) + x[:, None].amax(1),
    "mean": lambda x: x.mean(1, keepdim=True) - x,
    "first": lambda x: x - x.mean(0, keepdim=True),
    "all": lambda x: x - x.sum(),
    "reduced": lambda x: x + x.sum(1).unsqueeze(1),
    "norm": lambda x: x / (1 + x.norm(dim=0, keepdim=True)),
    "softmax": lambda x: x.softmax(0),
    "softmax later": lambda x: x.softmax(2),
    "parts": lambda x: (lambda a: torch.cat([a[0], a[1]], 1))(x.chunk(2, 1)),
    "parts of the batch": lambda x: x.chunk(2, 0)[0],
    "example": lambda x: x[:1],
    "reverse": lambda x: x.flip(0),
    "product": lambda x: x @ x.transpose(1, 2),
    "cumulative": lambda x: x.cumsum(1),
    "cumulative first": lambda x: x.cumsum(0),
    "squares": lambda x: x / (1 + x.std(0, keepdim=True, correction=0)),
    "extreme": lambda x: x - x.max(1, keepdim=True)[0],
    "joined": lambda x: torch.cat([x, x], 0),
}


class Chain(nn.Module):
    def __init__(self, steps):
        super().__init__()
        self.steps = steps

    def forward(self, x):
        for step in self.steps:
            x = STEPS[step](x)
        return x


class Values(fx.Interpreter):
    """Keep the value of each node."""

    def run_node(self, n):
        self.values = getattr(self, "values", {})
        self.values[n] = super().run_node(n)
        return self.values[n]


def values(model, x):
    run = Values(model)
    run.run(x)
    return run.values


@settings(max_examples=60)
@given(st.lists(st.sampled_from(sorted(STEPS)), min_size=1, max_size=5))
@example(["swap", "mean"])
@example(["swap", "product"])
@example(["order", "joined", "first"])
@example(["swap", "row"])
def test_an_example_depends_on_itself_alone_unless_an_op_mixes(steps):
    model = capture()(Chain(steps))
    axes = axes_of_examples(model)
    torch.manual_seed(0)
    x = torch.randn(4, 4, 4)
    other = x.clone()
    other[1] = torch.randn(4, 4)
    try:
        before, after = values(model, x), values(model, other)
    except (IndexError, RuntimeError):  # a step reads an entry that an earlier step has cut off
        return
    mixed = set()  # and what depends on it
    for node in model.graph.nodes:
        a, b = before[node], after[node]
        if not isinstance(a, torch.Tensor) or mixed.intersection(node.all_input_nodes):
            mixed |= {node} if mixed.intersection(node.all_input_nodes) else set()
            continue
        if mixes_examples(node, axes) or selects_examples(node, axes):
            mixed.add(node)
            (source, *_) = (n for n in node.all_input_nodes if n in axes)
            apart = a.shape == before[source].shape and all(
                torch.equal(a.select(axes[source], i), b.select(axes[source], i)) for i in (0, 2, 3)
            )
            assert not apart
        elif node in axes:
            assert a.shape[axes[node]] == 4
            for index in (0, 2, 3):  # each example but the one that has changed
                assert torch.equal(a.select(axes[node], index), b.select(axes[node], index))


def test_a_program_of_one_example_mixes_nothing():
    class Net(nn.Module):
        def forward(self, x):
            return x - x.mean()

    program = torch.export.export(Net(), (torch.randn(1, 3),))
    assert axes_of_examples(capture()(program)) == {}

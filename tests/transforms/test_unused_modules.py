"""Modules that a quantized network does not use are deleted, as torch deletes them, in linear time."""

from random import Random

import torch
from torch import fx, nn

from qfunc.transforms.insert_quantizers import _delete_unused_modules


def drawn(random: Random) -> fx.GraphModule:
    """A tree of modules, some of them shared or None, and a graph that reads a few modules and buffers."""
    made: list[nn.Module] = []

    def module(depth: int) -> nn.Module:
        tree = nn.Module()
        for i in range(random.randint(0, 3)):
            child = module(depth - 1) if depth else nn.Linear(1, 1)
            tree.add_module(f"m{i}", random.choice(made) if made and random.random() < 0.2 else child)
            made.append(child)
        if random.random() < 0.5:
            tree.register_buffer("b", torch.zeros(1))
        if random.random() < 0.1:
            tree.add_module("none", None)
        return tree

    root, graph = module(3), fx.Graph()
    modules = [name for name, _ in root.named_modules(remove_duplicate=False) if name]
    buffers = [name for name, _ in root.named_buffers(remove_duplicate=False)]
    called, read = (random.sample(names, min(len(names), random.randint(0, 3))) for names in (modules, buffers))
    graph.output((*(graph.call_module(n, ()) for n in called), *(graph.get_attr(n) for n in read)))
    network = fx.GraphModule(root, graph)  # with the modules that the graph reads
    for name, child in root.named_children():
        network.add_module(name, child)
    return network


def test_the_same_modules_stay_as_with_torch():
    deleted = 0
    for seed in range(500):
        mine, theirs = drawn(Random(seed)), drawn(Random(seed))  # torch drops modules from copies
        before = len(list(mine.modules()))
        _delete_unused_modules(mine)
        theirs.delete_all_unused_submodules()
        names, wanted = ({n for n, _ in m.named_modules(remove_duplicate=False)} for m in (mine, theirs))
        assert names == wanted, seed
        deleted += before - len(list(mine.modules()))
    assert deleted > 500

"""Inline the regions of an exported graph that change no value: `torch.no_grad` and disabled autocast."""

from __future__ import annotations

from typing import Any

from torch import fx

_ARGUMENTS_BEFORE = {"wrap_with_set_grad_enabled": 1, "wrap_with_autocast": 4}
"""Map each higher-order op to the position of its graph among the arguments."""


def inline_regions(module: fx.GraphModule) -> None:
    """Inline `torch.no_grad` and disabled autocast into the graph of the module, in place.

    Enabled autocast changes dtypes, so it stays.

    >>> import torch
    >>> class Net(torch.nn.Module):
    ...     def forward(self, x):
    ...         with torch.no_grad():
    ...             y = x * 2
    ...         return x + y
    >>> module = torch.export.export(Net(), (torch.ones(3),), strict=False).module()
    >>> inline_regions(module)
    >>> module(torch.ones(3))
    tensor([3., 3., 3.])
    """
    for node in list(module.graph.nodes):
        before = _ARGUMENTS_BEFORE.get(getattr(node.target, "__name__", str(node.target)))
        if node.op != "call_function" or before is None or (before == 4 and node.args[2]):
            continue
        region = module.get_submodule(str(node.args[before].target))
        assert isinstance(region, fx.GraphModule)
        inline_regions(region)
        _inline(module, node, region, node.args[before + 1 :])
    module.graph.eliminate_dead_code()
    module.recompile()


def _inline(module: fx.GraphModule, node: fx.Node, region: fx.GraphModule, given: tuple[Any, ...]) -> None:
    inputs = [n for n in region.graph.nodes if n.op == "placeholder"]
    env: dict[fx.Node, Any] = dict(zip(inputs, given, strict=True))
    results: Any = ()
    with module.graph.inserting_before(node):
        for step in region.graph.nodes:
            if step.op == "output":
                results = fx.map_arg(step.args[0], env.__getitem__)
            elif step.op != "placeholder":
                env[step] = module.graph.node_copy(step, env.__getitem__)
    for user in list(node.users):  # the region's result is a tuple
        user.replace_all_uses_with(results[user.args[1]])
        module.graph.erase_node(user)
    module.graph.erase_node(node)

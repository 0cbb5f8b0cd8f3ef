"""MQBench's placement: which tensors it quantized, under names that say which values they hold."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import torch
from torch import fx, nn

GOLDEN = json.loads((Path(__file__).parent.parent / "golden" / "mqbench_placement.json").read_text())
SAME_VALUES = (nn.BatchNorm2d, nn.Dropout)  # in evaluation: folded into the convolution, and nothing at all
LOG = "log of 7 bits"

Held = dict[tuple[str, str], str]
"""(role, tensor) -> its codes, such as "-127..127" or, twice in series, "0..255 0..255"."""


def mqbench(backend: str, network: str, model: nn.Module) -> Held:
    """What MQBench quantized; activations under the names of `names`, weights under their modules' paths."""
    groups = [(key, GOLDEN["names"][index].split()) for key, index in GOLDEN["backends"][backend][network].items()]
    fused = {module for key, modules in groups for module in modules if key.startswith("ConvReLU2d ")}
    name = names(model, fused)
    found = defaultdict(list)
    for key, tensors in groups:
        kind, codes = key.split(" ", 1)
        for tensor in tensors:
            role = ("activation", name(tensor)) if kind == "activation" else ("weight", tensor)
            # NNIE's quantizer ignores its range, which only feeds the observer.
            found[role].append(LOG if backend == "NNIE" else codes)
    return {role: " ".join(sorted(codes)) for role, codes in found.items()}


def names(model: nn.Module, fused: set[str]) -> Callable[[str], str]:
    """From a node of torch.fx's trace to the one whose values it holds.

    A flatten, and a BatchNorm or Dropout in evaluation, hold the values of their input; a convolution that
    MQBench has fused with its ReLU holds the ReLU's.
    """
    traced = fx.symbolic_trace(model)
    nodes = {n.name: n for n in traced.graph.nodes}

    def same(node: fx.Node) -> fx.Node:
        module = traced.get_submodule(str(node.target)) if node.op == "call_module" else None
        if isinstance(module, SAME_VALUES) or node.target is torch.flatten:
            return same(node.all_input_nodes[0])
        return node

    def name(text: str) -> str:
        node = nodes[text]
        while node.op == "call_module" and node.target in fused:
            (user,) = node.users
            while isinstance(traced.get_submodule(str(user.target)), SAME_VALUES):
                (user,) = user.users
            node = user
        return same(node).name

    return name

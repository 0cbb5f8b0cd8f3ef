"""Emulate a decoder that an engine builds itself: its own norms, rotations and attention around the network's products."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from qfunc.errors import EmulationError
from qfunc.graph.arguments import flatten
from qfunc.placement.partition import Partition
from qfunc.placement.units import Unit
from qfunc.specs import DecoderConfig
from qfunc.targets.ggml.attention import attend, attend_with_cache
from qfunc.targets.ggml.layers import gated, rms_norm

Product = Callable[[Unit, fx.Node], fx.Node]
"""Writes a product or an embedding that reads a value, and returns the node of its result."""


class DecoderNetwork:
    """The parts of a network that a decoder of llama.cpp has: its products, embedding and norms, by the names of their tensors.

    Raises:
        EmulationError: more than token ids as inputs, other outputs than logits, or a part that is missing.
    """

    def __init__(self, partition: Partition, decoder: DecoderConfig) -> None:
        self.partition, self.decoder = partition, decoder
        self.units: dict[str, Unit] = {}
        self.constants: dict[str, fx.Node] = {}
        for unit in partition.units:
            for node in unit.group.root.all_input_nodes:
                if node.op == "get_attr" and (name := decoder.tensor(str(node.target))) is not None:
                    role = decoder.role(name, looked_up=unit.kind == "embedding")
                    self.constants[role], self.units[role] = node, unit
        nodes = list(partition.network.graph.nodes)
        self.inputs = [n for n in nodes if n.op == "placeholder"]
        self.output = next(n for n in nodes if n.op == "output")
        self._require()

    def _require(self) -> None:
        where = f"emulate, {self.decoder.architecture}"
        tensors = 2 * self.decoder.blocks
        if len(self.inputs) not in (1, 2 + tensors):
            found = f"{len(self.inputs)} inputs"
            do = "Export the model with input_ids only and use_cache=False, or pass qfunc.decoder(length)(model).program."
            wanted = f"token ids, alone or with positions and {tensors} tensors of a cache"
            raise EmulationError(where=where, found=found, wanted=wanted, do=do)
        results = [n for n in flatten(self.output.args[0]) if isinstance(n, fx.Node)]
        head, cached = self.units.get("output.weight"), tensors if len(self.inputs) > 1 else 0
        if head is not None and (results[:1] != [head.group.output] or len(results) != 1 + cached):
            found = f"the outputs {', '.join(n.name for n in results)}"
            wanted = f"{head.group.output.name}, the logits" + (f", and {cached} tensors of the cache" if cached else "")
            do = "Return the logits of all tokens and the cache." if cached else "Return the logits of all tokens only."
            raise EmulationError(where=where, found=found, wanted=wanted, do=do)
        missing = [name for name in (*self.decoder.needed(), "output.weight") if name not in self.units]
        if missing:
            do = "Describe the network by targets.runtimes.decoder_config(config), and return its logits only."
            raise EmulationError(where=where, found=f"no {missing[0]!r}", wanted="the tensors of the decoder", do=do)

    def write(
        self, product: Product, read: Callable[[fx.Node], fx.Node], call: Callable[..., fx.Node]
    ) -> dict[fx.Node, fx.Node]:
        """Write the network, and return its outputs, the logits and the cache, by those of the float network.

        Args:
            product: As above.
            read: Returns the node of a constant.
            call: Adds a node that calls a function.
        """
        d = self.decoder

        def norm(x: fx.Node, name: str) -> fx.Node:
            return call(rms_norm, x, read(self.constants[f"{name}.weight"]), d.epsilon, name=name)

        def linear(x: fx.Node, name: str) -> fx.Node:
            return product(self.units[f"{name}.weight"], x)

        positions, cache, found = [read(n) for n in self.inputs[1:2]], [read(n) for n in self.inputs[2:]], list[fx.Node]()
        x = product(self.units["token_embd.weight"], read(self.inputs[0]))
        for i in range(d.blocks):
            b = f"blk.{i}"
            n = norm(x, f"{b}.attn_norm")
            q, k, v = (linear(n, f"{b}.attn_{part}") for part in "qkv")
            norms: Any = None
            if d.norms_heads:
                norms = tuple(read(self.constants[f"{b}.attn_{part}_norm.weight"]) for part in "qk")
            heads = (d.head_size, d.rope_base, d.epsilon, d.adjacent_pairs)
            if cache:
                three = call(attend_with_cache, q, k, v, norms, *heads, *positions, *cache[2 * i : 2 * i + 2], name=f"{b}.attn")
                seen, *of_block = (
                    call(operator.getitem, three, n, name=f"{b}.attn_{part}")
                    for n, part in enumerate(("out", "keys", "values"))
                )
                found += of_block
            else:
                seen = call(attend, q, k, v, norms, *heads, name=f"{b}.attn")
            x = call(torch.add, linear(seen, f"{b}.attn_output"), x, name=f"{b}.ffn_inp")
            n = norm(x, f"{b}.ffn_norm")
            inner = call(gated, linear(n, f"{b}.ffn_gate"), linear(n, f"{b}.ffn_up"), name=f"{b}.ffn_swiglu")
            x = call(torch.add, linear(inner, f"{b}.ffn_down"), x, name=f"{b}.l_out")
        results = [n for n in flatten(self.output.args[0]) if isinstance(n, fx.Node)]
        return dict(zip(results, [linear(norm(x, "output_norm"), "output"), *found], strict=True))

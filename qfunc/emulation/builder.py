"""A builder of emulation graphs: nodes, constants, and the two forms of a tensor."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import torch
from attrs import frozen
from torch import Tensor, fx, nn

from qfunc.arithmetic.conversions import Plain
from qfunc.graph.constants import UniqueNames
from qfunc.numerics.kernels.integer import dequantize_wide
from qfunc.numerics.logarithmic import log_codes, log_values
from qfunc.placement.encoding import Encoding
from qfunc.specs import Log, Target
from qfunc.specs.protocols import Dequantization, Quantization


@frozen(eq=False)
class Real:
    """A tensor in real units."""

    node: fx.Node


@frozen(eq=False)
class Codes:
    """A tensor of codes and its encoding."""

    node: fx.Node
    encoding: Encoding


Value = Real | Codes


def codes_names(network: fx.Graph) -> dict[str, str]:
    """Return for each node of a float network the name of the node with the codes of its real value: "conv_codes" for "conv".

    Such a name is that of no node of the network.

    >>> codes_names(fx.symbolic_trace(lambda x, x_codes: x + x_codes).graph)["x"]
    'x_codes_1'
    """
    names = [node.name for node in network.nodes]
    taken = UniqueNames(set(names))
    return {name: taken.fresh(f"{name}_codes") for name in names}


class EmulationBuilder:
    """A graph under construction and the module that holds its constants.

    The target's kernels choose how tensors are quantized and dequantized.  `results` are names reserved for the results of
    units and for their codes; the other nodes get other names.  `holder` is the module with the constants.
    `channels_last` are the outputs of integer units that ONNX Runtime stores as its convolutions write them.
    """

    def __init__(
        self, root: nn.Module, target: Target, results: frozenset[str] = frozenset(), holder: str = "integers"
    ) -> None:
        self.root, self.graph, self.results, self.holder = root, fx.Graph(), results, holder
        self.used: set[str] = set()
        arithmetics = [k.arithmetic for k in (*target.kernels, *(target.host.kernels if target.host is not None else ()))]
        self.quantization: Quantization = next((a for a in arithmetics if isinstance(a, Quantization)), Plain())
        self.dequantization: Dequantization = next((a for a in arithmetics if isinstance(a, Dequantization)), Plain())
        self.by_channel: dict[str, list[fx.Node]] = {}
        self.channels_last: set[str] = set()

    def call(self, function: Callable[..., Any], *args: Any, name: str, result: bool = False) -> fx.Node:
        """Return a new call_function node."""
        return self.graph.create_node("call_function", function, args, {}, self._name(name, result))

    def copy_op(self, op: fx.Node, inputs: Callable[[fx.Node], fx.Node], name: str, result: bool = False) -> fx.Node:
        """Return a new node of the same op, be it a function, a method or a module, that reads other inputs."""
        args, kwargs = fx.map_arg(op.args, inputs), fx.map_arg(op.kwargs, inputs)
        return self.graph.create_node(op.op, op.target, args, kwargs, self._name(name, result))

    def _name(self, name: str, result: bool = False) -> str:
        name = re.sub(r"\W|^(?=\d)", "_", name, flags=re.ASCII)
        # torch.fx changes names that are used or of Python's own, and might give away one of `results`.
        while not result and (name in self.results or name in self.used or not _is_kept(name)):
            name += "_"
        self.used.add(name)
        return name

    def constant(self, value: Tensor, path: str) -> fx.Node:
        """Store a tensor as a buffer of the emulated model, and return the node that reads it."""
        owner, _, name = f"{self.holder}.{path}".rpartition(".")
        module = self.root
        for part in owner.split("."):
            if not isinstance(getattr(module, part, None), nn.Module):
                module.add_module(part, nn.Module())
            module = getattr(module, part)
        while name in module._buffers or hasattr(module, name):
            name += "_"
        module.register_buffer(name, value.detach())  # a copy of the emulation needs leaves
        return self.graph.create_node("get_attr", f"{owner}.{name}", name=self._name(path))

    def real(self, value: Value, name: str) -> fx.Node:
        """Return the node of a value in real units."""
        if isinstance(value, Real):
            return value.node
        encoding, fmt = value.encoding, value.encoding.quantizer.module.site.scheme.format
        if isinstance(fmt, Log):
            return self.call(
                log_values, value.node, encoding.scale, fmt.magnitude_bits, fmt.steps_per_octave, name=f"{name}_real"
            )
        found = self.dequantization.reals(value.node, *self._qparams(encoding))
        return self.call(found.function, *found.arguments, name=f"{name}_real")

    def wide(self, value: Value, name: str) -> fx.Node:
        """Return the node of a value in real units in float64, in which those of linear codes are exact."""
        if isinstance(value, Codes) and not isinstance(value.encoding.quantizer.module.site.scheme.format, Log):
            return self.call(dequantize_wide, value.node, *self._qparams(value.encoding), name=f"{name}_wide")
        return self.call(torch.Tensor.to, self.real(value, name), torch.float64, name=f"{name}_wide")

    def codes(self, value: Value, encoding: Encoding, name: str, constant: bool = False) -> fx.Node:
        """Return the node of a value's codes in an encoding; `constant`: of a value that the file has."""
        if isinstance(value, Codes) and value.encoding.same(encoding):
            return value.node
        first = name not in self.used  # readers that need different codes of one tensor have separate nodes
        real, scheme = self.real(value, name), encoding.quantizer.module.site.scheme
        if isinstance(scheme.format, Log):
            bits, steps = scheme.format.magnitude_bits, scheme.format.steps_per_octave
            return self.call(log_codes, real, encoding.scale, bits, steps, name=name, result=first)
        scale, zero_point = self._qparams(encoding)
        found = self.quantization.codes(real, scale, zero_point, scheme, constant)
        return self.call(found.function, *found.arguments, name=name, result=first)

    def _qparams(self, encoding: Encoding) -> Sequence[Any]:
        if encoding.qparams.scale.ndim == 0:
            return encoding.scale, encoding.zero_point
        path = encoding.quantizer.path
        if path not in self.by_channel:
            pairs = (("scale", encoding.qparams.scale), ("zero_point", encoding.qparams.zero_point))
            self.by_channel[path] = [self.constant(t.detach(), f"{path}.{name}") for name, t in pairs]
        return self.by_channel[path]


def _is_kept(name: str) -> bool:
    # True if torch.fx gives a node this name, and no other.
    return fx.Graph().create_node("placeholder", name, name=name).name == name

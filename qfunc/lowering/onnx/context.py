"""The context in which one op is written to an ONNX graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from attrs import frozen
from torch import Tensor, fx, nn

from qfunc.errors import DeployError
from qfunc.graph.selectors import arguments
from qfunc.lowering.onnx.builder import GraphBuilder
from qfunc.lowering.onnx.shape_inference import Shape
from qfunc.ops.definition import EMPTY, Op, Trait
from qfunc.ops.node import attribute
from qfunc.ops.opset import BY_TARGET, OPS
from qfunc.ops.sizes import is_number
from qfunc.specs import OpKind

QuantizeInner = Callable[[str, str], str]
"""(tensor, "before" or "after") -> the quantized tensor."""


@frozen(eq=False)
class OpContext:
    """One op: its node, the names of its inputs, the shapes of all values, and the name of its output.

    `quantize_inner(tensor, place)` quantizes a tensor inside the op by the quantizer of its input ("before") or of its
    unit ("after"), so that the nodes before or after the op move codes.  `constant_value(node)` is the value of a
    constant.  `permuted_constant(node, rows)` is the name of a constant with permuted rows and a new first axis.
    """

    graph: GraphBuilder
    node: fx.Node
    read: Callable[[fx.Node], str]
    shapes: dict[str, Any]
    name: str
    quantize_inner: QuantizeInner
    constant_value: Callable[[fx.Node], Tensor]
    permuted_constant: Callable[[fx.Node, Tensor], str]
    module: nn.Module | None = None
    own: OpKind | None = None

    def __getitem__(self, parameter: str) -> Any:
        if self.own is None:
            return self._known(attribute(self.node, parameter))
        # A user's op: its arguments have the names of its parameters; what it lacks has the default of its kind.
        given = dict(arguments(self.own, self.node))
        if parameter in given:
            return given[parameter]
        default = self._op.signature.parameters[parameter].default if self.takes(parameter) else EMPTY
        if default is EMPTY:
            raise DeployError(
                where=f"op {self.name!r}",
                found=f"parameters {self.own.parameters} of {self.own.kind!r}, which behaves like {self._op.kind!r}",
                wanted=f"one named {parameter!r}",
                do="Use the parameter names of that kind in OpKind.parameters.",
            )
        return default

    def _known(self, value: Any) -> Any:
        # The value without nodes of sizes, and of numbers computed from them, that are the same in every call.
        if isinstance(value, list | tuple):
            return type(value)(map(self._known, value))
        found = self.shapes.get(value.name) if isinstance(value, fx.Node) else None
        return found if _is_plain(found) else value

    def default(self, parameter: str) -> Any:
        """Return the default of a parameter of the op."""
        return self._op.signature.parameters[parameter].default

    def takes(self, parameter: str) -> bool:
        """Return True if the op has a parameter."""
        return parameter in self._op.parameters

    def kept(self) -> str | None:
        """Return the parameter whose tensor the op returns, as x of x + 0 and of x / 1; None if it computes something."""
        first, second = self._op.parameters[:2]
        for x, y in ((first, second), (second, first)) if Trait.COMMUTATIVE in self._op.traits else ((first, second),):
            if isinstance(self[x], fx.Node) and isinstance(self[y], int | float) and self[y] == self._op.neutral:
                return x
        return None

    def slides(self) -> int:
        """Return the number of axes along which a pool slides.

        Raises:
            DeployError: the input is no batch of images, as torch allows for pools.
        """
        spatial, rank = self._op.spatial if self.own is None else self.own.spatial, self.shape().rank
        if spatial is not None and rank != spatial + 2:
            found, wanted = f"a tensor of rank {rank}", f"a batch of images, of rank {spatial + 2}"
            raise DeployError(where=f"op {self.name!r}", found=found, wanted=wanted, do="Use x.unsqueeze(1) before it.")
        return rank - 2

    @property
    def _op(self) -> Op:
        if self.own is None:
            return BY_TARGET[self.node.target]
        return next(op for op in OPS if op.kind == (self.own.behaves_like or self.own.kind))

    def input(self, parameter: str = "input") -> str:
        """Return the name of a tensor argument; a Python number becomes a constant of the other operand's type."""
        value = self[parameter]
        if isinstance(value, fx.Node):
            return self.read(known(self, value) if is_number(value) else value)
        shape = self.shapes[self.node.name]
        dtype = np.float32 if shape.dtype.is_floating_point else np.int64
        return self.graph.constant(np.array(value, dtype=dtype), f"{self.name}.{parameter}")

    def shape(self, parameter: str = "input") -> Shape:
        """Return the shape of a tensor argument."""
        found: Shape = self.shapes[self[parameter].name]
        return found

    @property
    def result(self) -> Shape:
        """The shape of the op's value."""
        found: Shape = self.shapes[self.node.name]
        return found

    def write(self, op: str, *inputs: str, **attributes: Any) -> str:
        """Write the op's last node, and return the name of its output."""
        return self.graph.node(op, inputs, self.name, **attributes)


def _is_plain(value: Any) -> bool:
    return isinstance(value, int | float) or (isinstance(value, tuple) and bool(value) and all(map(_is_plain, value)))


def known(c: OpContext, dim: Any) -> Any:
    """Return a size or a number computed from sizes, which must be the same in every call.

    Raises:
        DeployError: the size varies.
    """
    if dim is None or isinstance(dim, fx.Node):
        found, do = "a size that varies from call to call", "Export with that axis fixed, or reshape before this op."
        raise DeployError(where=f"op {c.name!r}", found=found, wanted="a fixed size", do=do)
    return dim


def normalized(c: OpContext) -> int:
    """Return the number of last axes of a norm; `normalized_shape` may be a number, a tuple or a part of a size."""
    given = c["normalized_shape"]
    given = c.shapes[given.name] if isinstance(given, fx.Node) else given
    return 1 if isinstance(given, int) else len(given)


def per_axis(value: Any, rank: int = 2) -> list[int]:
    """Return one number for each of `rank` axes. A single number applies to all axes.

    >>> per_axis(3), per_axis((1,)), per_axis((1, 2))
    ([3, 3], [1, 1], [1, 2])
    """
    return [int(value)] * rank if isinstance(value, int) else [int(v) for v in (list(value) * rank)[:rank]]

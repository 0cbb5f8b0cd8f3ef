"""Errors for tensors and ops that a vendor's format cannot represent."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
from attrs import define, field

from qfunc.errors import DeployError
from qfunc.lowering.quantized_tensor import QuantizedTensor
from qfunc.specs import AnyInput, Attr, Int, Op

if TYPE_CHECKING:
    import onnx

    from qfunc.lowering.qdq.reader import QdqModel


ONE_EXAMPLE = "the file computes one example of a batch"
MIXED = Attr("mixes", True)
"""Ops that mix the examples of a batch, such as a mean of all entries."""
SELECTED = Attr("selects", True)
"""Slices that take some examples of a batch."""
OF_THE_BATCH = "Select examples outside of the deployed model."
OF_PLACES = AnyInput(Op(("argmax", "argmin")))
"""Readers of the places of extrema, which are integers."""
AS_OUTPUTS = "qfunc writes the places of extrema as outputs of the model"
ALONE = Op("batch_norm")
"""A BatchNorm that no layer absorbs; of images it is a depthwise convolution."""
BESIDE = "Put it beside a convolution or a linear layer, which absorbs it, or use nn.BatchNorm2d on four axes."

_INT8, _INT32 = Int(8), Int(32)
_BECAUSE = "because the file computes one example"
_ALONG = {"Softmax": -1, "LogSoftmax": -1, "Hardmax": -1, "CumSum": None, "Concat": None}
"""Ops whose results along an axis depend on all entries of it, and the axis by default."""
_OVER_CHANNELS = ("GroupNormalization", "LRN", "DepthToSpace", "SpaceToDepth")
_OWN = ("Slice", "Tile")
"""Ops whose writers refuse them with a cure of their own."""
_WINDOWS = ("MaxPool", "AveragePool", "Resize", "GlobalAveragePool", "GlobalMaxPool", "LpPool")


def require(site: QuantizedTensor, fits: bool, found: str, wanted: str, do: str) -> None:
    """Raise unless a tensor fits the artifact.

    Raises:
        DeployError: names the tensor.

    >>> from qfunc.lowering.quantized_tensor import Place
    >>> from qfunc.specs import Attr, Int
    >>> t = QuantizedTensor("x", "activation", "x", (), Int(4), (1.0,), (0,), "half_even", (Place("x", "x.real"),))
    >>> require(t, True, "Int(4)", "Int(8)", "Use 8 bits.")
    """
    if not fits:
        raise DeployError(where=f"tensor {site.name!r}", found=found, wanted=wanted, do=do)


def require_one_scale(site: QuantizedTensor, artifact: str) -> None:
    """Raise if a tensor has several scales, even equal ones.

    Raises:
        DeployError: names the tensor.
    """
    wanted, do = f"one scale, as {artifact} has it", "Use granularity=PerTensor()."
    require(site, len(site.scale) == 1, f"{len(site.scale)} scales", wanted, do)


def require_int8(site: QuantizedTensor, target: str, artifact: str, activation: Int = _INT8, bias: Int = _INT32) -> None:
    """Raise unless activation and bias have these formats, a weight int8 or narrower: TFLite's operators have no others.

    Raises:
        DeployError: names the tensor.
    """
    fmt = site.format
    if site.role == "bias":
        fits = fmt == bias
    elif site.role == "activation":
        fits = fmt == activation
    else:
        fits = isinstance(fmt, Int) and fmt.bits <= 8 and fmt.signed
    do = f"Use the schemes of targets.{target}, or edit.deploy(QdqLowering())."
    require(site, fits, repr(fmt), f"{activation!r}, for weights Int(8) or narrower, for biases {bias!r}", do)
    if site.role == "activation":
        require_one_scale(site, artifact)


def require_input(name: str, dtype: Any, varies: int | None, *, indices: bool = False) -> None:
    """Raise if an input is not float32 or its batch is not the first axis; `dtype` and `varies` are None for other tensors.

    `indices`: an input may also have int64 or int32.

    Raises:
        DeployError: names the input.
    """
    taken = ("float32", "int64", "int32") if indices else ("float32",)
    if dtype is not None and np.dtype(dtype).name not in taken:
        wanted = "float32, or integers as indices" if indices else "float32"
        do = "Move the ops that read it out of the deployed model."
        raise DeployError(where=f"input {name!r}", found=f"{np.dtype(dtype)} values", wanted=wanted, do=do)
    if varies:
        do = "Make the batch the first axis."
        raise DeployError(where=f"input {name!r}", found=f"examples along axis {varies}", wanted="axis 0", do=do)


def require_real(source: QdqModel, name: str) -> None:
    """Raise if the model computes a tensor of indices or booleans: such tensors are not written.

    Raises:
        DeployError: names the tensor.
    """
    if name in source.producers and not source.is_real(name):
        found, do = f"{source.element_type(name)} values", "Return or compute it outside of the deployed model."
        raise DeployError(where=f"tensor {name!r}", found=found, wanted="float32", do=do)


def require_batch(source: QdqModel, name: str) -> None:
    """Raise if the network takes one batch size only, and that is not 1.

    Raises:
        DeployError: names the input.
    """
    shape = source.shape(name, name)
    if source.varies(name) is None and shape[:1] != (1,):
        do = "Reshape by sizes of the input, such as x.shape[0], or calibrate with one example."
        found = f"a first axis of {shape[0]} that the network does not let vary" if shape else "a number"
        raise DeployError(where=f"input {name!r}", found=found, wanted=f"a batch of any size, {_BECAUSE}", do=do)


@define
class SeparateExamples:
    """Where the examples of a batch are in each tensor: along one axis, or in parts of an axis between which they alternate.

    [L, B, E] as [L B, E] has L parts.
    """

    source: QdqModel
    _parts: dict[str, int] = field(factory=dict, init=False)

    def parts_of(self, name: str) -> int:
        """Return the number of parts of a tensor whose op was followed."""
        while (node := self.source.producers.get(name)) is not None and node.op_type in ("QuantizeLinear", "DequantizeLinear"):
            name = node.input[0]
        return self._parts.get(name, 1)

    def follow(self, node: onnx.NodeProto) -> None:
        """Find the parts of an op's results; the ops come in their order.

        Raises:
            DeployError: an example of the results depends on others; names the op.
        """
        source = self.source
        read = {name: axes for name in node.input if name and (axes := source.varying(name))}
        results = {name: source.varying(name) for name in node.output if name}
        real = source.is_real(node.output[0]) and node.op_type not in _OWN
        if not read or not real or None in (*read.values(), *results.values()):
            return
        apart = all(axes is not None and len(axes) == 1 for axes in results.values())
        apart = apart and len({self.parts_of(name) for name in read}) == 1
        if not apart or any(self._mixes(node, name, axes[0]) for name, axes in read.items() if axes):
            do = "Compute it outside of the deployed model, or deploy Q/DQ ONNX by edit.deploy(QdqLowering())."
            found, wanted = f"{node.op_type} that mixes the examples of a batch", f"each by itself, {_BECAUSE}"
            raise DeployError(where=f"op {node.name!r}", found=found, wanted=wanted, do=do)
        name = next(iter(read))
        self._parts |= dict.fromkeys(results, self._split(node, name)[0] if _reshapes(node) else self.parts_of(name))

    def require_together(self, name: str, where: str) -> None:
        """Raise if the examples of a tensor alternate along their axis.

        Raises:
            DeployError: they do.
        """
        if self.parts_of(name) > 1:
            do = "Make the batch the first axis."
            raise DeployError(where=where, found="examples that alternate", wanted="axis 0", do=do)

    def _mixes(self, node: onnx.NodeProto, name: str, axis: int) -> bool:
        source, shape = self.source, self.source.shape(name, node.name)
        if node.op_type in _ALONG:
            over = source.attribute(node, "axis", _ALONG[node.op_type])
            along = int(source.constant(node, 1)) if node.op_type == "CumSum" else int(over)
            return along % len(shape) == axis
        if _reshapes(node):
            parts, left = self._split(node, name)
            return left != 0 or self._size(node, node.output[0]) % parts != 0
        if node.op_type == "Pad":
            pads, given = source.constant(node, 1), source.constant(node, 3)
            axes = list(range(len(shape))) if given is None else [int(a) % len(shape) for a in given]
            return any(pads[i] or pads[i + len(axes)] for i, a in enumerate(axes) if a == axis)
        return (node.op_type in _OVER_CHANNELS and axis == 1) or (node.op_type in _WINDOWS and axis > 1)

    def _split(self, node: onnx.NodeProto, name: str) -> tuple[int, int]:
        # The number of parts after a reshape, and what is left over: 0 if the examples stay apart.
        before, after = (self._preceding(node, each) for each in (name, node.output[0]))
        return divmod(before * self.parts_of(name), after)

    def _preceding(self, node: onnx.NodeProto, name: str) -> int:
        (axis,) = self.source.varying(name) or (0,)
        return math.prod(self.source.shape(name, node.name)[:axis])

    def _size(self, node: onnx.NodeProto, name: str) -> int:
        # The entries of one example along the axis of the examples.
        (axis,) = self.source.varying(name) or (0,)
        return self.source.shape(name, node.name)[axis]


def _reshapes(node: onnx.NodeProto) -> bool:
    return node.op_type in ("Reshape", "Flatten", "Squeeze", "Unsqueeze")


def format_error(site: QuantizedTensor, tensor: str, found: str, wanted: str, do: str) -> DeployError:
    """Return the error of a format that cannot represent a site."""
    return DeployError(where=f"{site.role} {tensor!r}", found=found, wanted=wanted, do=do)


def require_integers(site: QuantizedTensor, tensor: str, artifact: str) -> Int:
    """Return the integer format of a site.

    Raises:
        DeployError: another format.
    """
    if isinstance(site.format, Int):
        return site.format
    raise format_error(
        site, tensor, repr(site.format), f"integers: {artifact} has no other formats", "Edit the scheme: format=Int(8)."
    )


def require_symmetric(site: QuantizedTensor, tensor: str, artifact: str) -> None:
    """Raise if a tensor has zero points.

    Raises:
        DeployError: a zero point that is not 0.
    """
    if any(site.zero_point):
        found, wanted = f"zero point {next(z for z in site.zero_point if z)}", f"0: {artifact} has no zero points"
        raise format_error(site, tensor, found, wanted, "Edit the scheme: zero_point=None.")


def require_per_tensor(site: QuantizedTensor, tensor: str, artifact: str) -> None:
    """Raise if the scales of a tensor differ: a file of qparams has one number for each tensor.

    Raises:
        DeployError: scales that differ.
    """
    if len(set(zip(site.scale, site.zero_point, strict=True))) > 1:
        wanted = f"one: {artifact} has one number per tensor"
        raise format_error(site, tensor, f"{len(site.scale)} scales", wanted, "Edit the scheme: Scale(PerTensor()).")

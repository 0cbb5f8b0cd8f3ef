"""The forms in which `save` stores weights: as their codes, or as floats."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from attrs import frozen
from torch import Tensor, fx

from qfunc.errors import SpecError
from qfunc.files.bit_planes import pack, unpack
from qfunc.files.json_text import damage_error
from qfunc.graph.record import record_of
from qfunc.numerics.affine import dequantize
from qfunc.quantizers.fake_quantize import FakeQuantize
from qfunc.specs import Int

_MOST_BITS = 8


@frozen
class CodedWeights:
    """A calibrated model in evaluation mode has its weights of at most 8 bits stored as their codes (the default).

    A code takes its bits alone: a 4-bit weight an eighth of float32.  A weight is stored so if its quantizers alone read it,
    and give the values of the codes, (q - z) s, the same codes and values again.  Then the loaded model simulates, emulates
    and deploys as the saved one, byte for byte.  What the codes do not hold is lost: to the loaded model the float weights
    are these values, for `calibrate`, `compare`, `reconstruct` and training, too.  All other tensors stay floats.

    >>> import qfunc
    >>> from pathlib import Path
    >>> from tempfile import mkdtemp
    >>> target = qfunc.targets.onnxruntime_nbits(4)
    >>> net = torch.nn.Linear(64, 64).eval()
    >>> model = qfunc.calibrate([torch.ones(1, 64)])(qfunc.quantize(target)(net))
    >>> forms = CodedWeights(), FloatWeights()
    >>> [Path(qfunc.save(mkdtemp(), form)(model), "model.safetensors").stat().st_size // 1024 for form in forms]
    [3, 17]
    """

    def codes(self, model: fx.GraphModule, tensors: Mapping[str, Tensor]) -> dict[str, FakeQuantize]:
        """Return the quantizer of each tensor of a model that is stored as codes, by the tensor's name."""
        record = record_of(model)
        if record is None or record.stage != "calibrated" or model.training:
            return {}
        found = readers(model, tensors)
        return {name: each[0] for name, each in found.items() if all(_restores(q, tensors[name]) for q in each)}


@frozen
class FloatWeights:
    """All weights are stored as floats, to train, correct or calibrate them later.

    >>> FloatWeights()
    FloatWeights()
    """

    def codes(self, model: fx.GraphModule, tensors: Mapping[str, Tensor]) -> dict[str, FakeQuantize]:
        """Return the tensors that are stored as codes: none."""
        return {}


def require_form(value: Any) -> None:
    """Raise if a value is neither CodedWeights nor FloatWeights.

    Raises:
        SpecError: it is neither.
    """
    if not isinstance(value, CodedWeights | FloatWeights):
        found = value.__name__ if isinstance(value, type) else repr(value)
        wanted, do = "qfunc.CodedWeights() or qfunc.FloatWeights()", "Write weights=qfunc.FloatWeights()."
        raise SpecError(where="save, weights", found=found, wanted=wanted, do=do)


def readers(model: fx.GraphModule, tensors: Mapping[str, Tensor]) -> dict[str, list[FakeQuantize]]:
    """Return the quantizers of each tensor that these alone read, all with the same integer format of at most 8 bits.

    Tensors that share their memory are one tensor.
    """
    places: dict[int, list[str]] = {}
    for name, tensor in tensors.items():
        if tensor.numel():
            places.setdefault(tensor.untyped_storage().data_ptr(), []).append(name)
    users: dict[str, list[fx.Node]] = {}
    for node in model.graph.nodes:
        if node.op == "get_attr":
            users.setdefault(str(node.target), []).extend(node.users)
    found = {}
    for names in places.values():
        nodes = [user for name in names for user in users.get(name, ())]
        quantizers = [_quantizer(model, node) for node in nodes]
        kept = [q for q in quantizers if q is not None]
        shapes = {(tensors[name].shape, tensors[name].dtype, tensors[name].stride()) for name in names}
        if kept and len(kept) == len(nodes) and len(shapes) == 1 and len({q.scheme.format for q in kept}) == 1:
            found.update(dict.fromkeys(names, kept))
    return found


def code_planes(quantizer: FakeQuantize, value: Tensor) -> Tensor:
    """Return the planes of the codes of a weight, from its lowest code up."""
    codes = quantizer.export(value)[0] - format_of(quantizer).qmin
    return torch.from_numpy(pack(codes.to(torch.uint8).cpu().numpy(), format_of(quantizer).bits))


def weight_of_planes(quantizer: FakeQuantize, planes: Tensor, like: Tensor, where: str, file: str) -> Tensor:
    """Return the value of a weight from its planes, of the shape and dtype of `like`.

    Raises:
        FileError: a code above the highest.
    """
    fmt = format_of(quantizer)
    codes = torch.from_numpy(unpack(planes.numpy(), like.numel()))
    highest = int(codes.max())
    if highest > fmt.qmax - fmt.qmin:
        raise damage_error(file, f"[{where!r}]", f"the code {highest + fmt.qmin}", f"at most {fmt.qmax}")
    return _value(quantizer, (codes.to(torch.float32) + fmt.qmin).reshape(like.shape).to(like.device), like.dtype)


def _quantizer(model: fx.GraphModule, node: fx.Node) -> FakeQuantize | None:
    # The quantizer that reads a constant itself: one before a BatchNorm that trains has further arguments.
    module = model.get_submodule(str(node.target)) if node.op == "call_module" and len(node.args) == 1 else None
    if not isinstance(module, FakeQuantize) or module.dynamic:
        return None
    fmt = module.scheme.format
    return module if isinstance(fmt, Int) and fmt.bits <= _MOST_BITS else None


def _restores(quantizer: FakeQuantize, weight: Tensor) -> bool:
    # Learned roundings and functions that stretch x give other codes for the values of their codes.
    function, params = quantizer.site.function, quantizer.params()
    with torch.no_grad():
        codes = quantizer.export(weight)[0]
        value = _value(quantizer, codes, weight.dtype)
        same = torch.equal(quantizer.export(value)[0], codes)
        return same and torch.equal(
            function.apply(params, value, quantizer.scheme), function.apply(params, weight, quantizer.scheme)
        )


def _value(quantizer: FakeQuantize, codes: Tensor, dtype: torch.dtype) -> Tensor:
    with torch.no_grad():
        return dequantize(codes, quantizer.qparams(), quantizer.scheme).to(dtype)


def format_of(quantizer: FakeQuantize) -> Int:
    """Return the integer format of a quantizer that `readers` found."""
    fmt = quantizer.scheme.format
    assert isinstance(fmt, Int)  # `readers` requires it
    return fmt

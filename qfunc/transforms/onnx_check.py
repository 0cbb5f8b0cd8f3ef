"""Is an ONNX model the simulation?  Tensor by tensor, each computed from what the ONNX model itself held before it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, fx

from qfunc.execution.batches import tensors_of
from qfunc.lowering.quantized_tensor import QuantizedTensor
from qfunc.quantizers.fake_quantize import FakeQuantize


def first_difference(proto: Any, tensors: Sequence[QuantizedTensor], simulation: fx.Interpreter, given: list[Tensor]) -> str:
    """The first tensor that an ONNX model, run as written, computes otherwise than a simulation; "" if there is none.

    Where many layers follow each other, one code that rounds otherwise can change all codes at the end.  So each
    quantizer's value is compared, and then replaced by the ONNX model's own.

    Args:
        proto: An ONNX model.
        tensors: Its quantized tensors.
        simulation: Runs the simulation in evaluation mode, activations rounded half to even.
        given: One batch.
    """
    import onnx

    from qfunc.lowering.onnxruntime.session import Session

    shown = onnx.ModelProto()
    shown.CopyFrom(proto)
    activations = [t for t in tensors if t.role == "activation"]
    have = {o.name for o in proto.graph.output}
    reals = list(dict.fromkeys(p.real for t in activations for p in t.places if p.real not in have))
    shown.graph.output.extend(onnx.helper.make_tensor_value_info(r, onnx.TensorProto.FLOAT, None) for r in reals)
    session = Session(shown.SerializeToString(), optimise=False)
    values = dict(zip(session.outputs, map(torch.from_numpy, session.run(given)), strict=True))
    places: dict[str, list[Tensor]] = {}
    for tensor in activations:
        places.setdefault(tensor.name, []).extend(values[p.real] for p in tensor.places)
    led = _TeacherForced(simulation, places)
    with torch.inference_mode():
        found = tensors_of(led.run(*given, enable_io_processing=False))
    for name, a in zip(session.outputs, found, strict=False):
        if not led.difference and not allclose(values[name], a):
            return f"output {name!r}"
    return led.difference


def allclose(a: Tensor, b: Tensor) -> bool:
    """Whether the energy of the difference is at most 1/100 of b's: orders of summation differ, and with them single codes."""
    if a.shape != b.shape:
        return False
    a, b = a.double(), b.double()
    same = (a == b) | (a.isnan() & b.isnan())  # also where neither is a number, as the logarithm of what is below 0
    apart = (a - b).masked_fill(same, 0.0)
    return float(apart.square().sum()) <= 0.01 * float(b[b.isfinite()].square().sum()) + 1e-12


def _tied(x: Tensor, module: FakeQuantize) -> Tensor:
    # Entries that lie in the middle of two codes but for the rounding of a sum: either code is right.
    scale = torch.as_tensor(module.scale)
    if scale.numel() > 1:
        return torch.zeros_like(x, dtype=torch.bool)
    steps = x.double() / scale.double()
    return (steps - steps.floor() - 0.5).abs() < 1e-5 * steps.abs().clamp(min=1)


class _TeacherForced(fx.Interpreter):
    """Runs a simulation on another model's values: each quantizer's is compared with it, and replaced by it."""

    def __init__(self, simulation: fx.Interpreter, places: dict[str, list[Tensor]]) -> None:
        super().__init__(simulation.module)
        self.simulation, self.places, self.difference = simulation, places, ""

    def call_module(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The other model's value of a quantized activation; what the simulation computes for all else."""
        value, module = self.simulation.call_module(target, args, kwargs), self.fetch_attr(target)
        if not isinstance(module, FakeQuantize) or module.site.constant:
            return value
        # Ops that only move codes have the qparams of the tensor before them: the place that fits is meant.
        held = [p for p in self.places.get(module.site.name, []) if p.shape == value.shape]
        if not held:
            return value
        nearest = min(held, key=lambda p: float((p.double() - value.double()).square().sum()))
        if not self.difference and not allclose(torch.where(_tied(args[0], module), value, nearest), value):
            self.difference = f"tensor {module.site.name!r}"
        return nearest.to(value.dtype)


__all__ = ["allclose", "first_difference"]

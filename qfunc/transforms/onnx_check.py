"""Check that an ONNX model computes what the simulation does, on one random batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, fx

from qfunc.emulation.approximation import Approximation
from qfunc.emulation.error_bounds import approximate
from qfunc.emulation.norm_bounds import approximate_module
from qfunc.errors import DeployError
from qfunc.execution.batches import tensors_of
from qfunc.execution.evaluate import RoundHalfEven, run_in_evaluation_mode
from qfunc.graph.record import TensorInfo
from qfunc.lowering.quantized_tensor import QuantizedTensor
from qfunc.ops.definition import Trait
from qfunc.ops.node import has
from qfunc.quantizers.fake_quantize import FakeQuantize


def first_difference(
    proto: Any,
    tensors: Sequence[QuantizedTensor],
    simulation: fx.Interpreter,
    given: list[Tensor],
    names: Mapping[str, str] = MappingProxyType({}),
) -> str:
    """Return the first tensor that differs between an ONNX model, run as written, and a simulation; "" if none does.

    In a deep network, one code that rounds differently can change all codes at the end.  So each quantizer's value is
    compared and then replaced by the ONNX model's value.  So are real values that an op decides by, as argmax and
    comparisons do: where two values are equal but for the order of a sum, either decision is right.  A norm of entries that
    are all alike returns the rounding of their mean, so its value is replaced, too, if it is within the bound of its error.

    Args:
        proto: An ONNX model.
        tensors: Its quantized tensors.
        simulation: Runs the simulation in evaluation mode, activations rounded half to even.
        given: One batch.
        names: The tensor in the ONNX model of each node of the simulation.
    """
    from qfunc.lowering.onnxruntime.parts import PartwiseModel

    activations = [t for t in tensors if t.role == "activation"]
    model = PartwiseModel(proto)
    at_run_time = {n.input[0]: n.output[0] for n in proto.graph.node if n.op_type.startswith("DynamicQuantize")}
    written = {o for n in proto.graph.node for o in n.output}
    decisive = {node: names[node] for node in _decisive(simulation, given) if names.get(node) in written}
    wanted = [*(p.real for t in activations for p in t.places), *at_run_time.values(), *decisive.values()]
    found_there = model.run(given, wanted)
    values = {name: torch.from_numpy(value) for name, value in found_there.items()}
    places: dict[str, list[Tensor]] = {}
    for tensor in activations:
        places.setdefault(tensor.name, []).extend(values[p.real] for p in tensor.places)
    for name, real in at_run_time.items():
        places.setdefault(name, []).append(values[real])
    interpreter = _TeacherForced(simulation, places, {node: values[name] for node, name in decisive.items()})
    with torch.inference_mode():
        found = tensors_of(interpreter.run(*given, enable_io_processing=False))
    for name, a in zip(model.outputs, found, strict=True):
        if not interpreter.difference and not allclose(values[name], a):
            return f"output {name!r}"
    return interpreter.difference


def allclose(a: Tensor, b: Tensor) -> bool:
    """Return True if the energy of the difference is at most 1/100 of b's.

    The orders of summation differ, so single codes may differ, too.
    """
    if a.shape != b.shape:
        return False
    a, b = a.double(), b.double()
    same = (a == b) | (a.isnan() & b.isnan())  # both may be NaN, as the logarithm of a negative number is
    difference = (a - b).masked_fill(same, 0.0)
    return float(difference.square().sum()) <= 0.01 * float(b[b.isfinite()].square().sum()) + 1e-12


def _is_tie(x: Tensor, module: FakeQuantize) -> Tensor:
    # Return a mask of entries halfway between two codes, up to the rounding of a sum: either code is right.
    if module.dynamic or (scale := torch.as_tensor(module.scale)).numel() > 1:
        return torch.zeros_like(x, dtype=torch.bool)
    steps = x.double() / scale.double()
    return (steps - steps.floor() - 0.5).abs() < 1e-5 * steps.abs().clamp(min=1)


def _decides(node: fx.Node, value: Any) -> bool:
    # True for a value with integers or booleans, as argmax, sort and comparisons return.
    tensors = [v for v in (value if isinstance(value, tuple) else (value,)) if isinstance(v, Tensor)]
    return node.op == "call_function" and any(not v.is_floating_point() for v in tensors)


def _bound_of_noise(network: fx.Interpreter, node: fx.Node, value: Any) -> Tensor | None:
    # The bound of the error of a norm that is mostly rounding; None for other ops and for norms of unlike entries.
    if not has(node, Trait.NORM) or not _is_real(value):
        return None
    exact: Any = lambda n: Approximation.exact(network.env[n])  # noqa: E731
    arguments: Any = fx.map_arg(node.args, exact)
    if node.op == "call_module":
        found = approximate_module(network.fetch_attr(str(node.target)), arguments)
    else:
        found = approximate(node, arguments)
    return None if found is None or allclose(found.value + found.error, found.value) else found.error


def _decisive(simulation: fx.Interpreter, given: list[Tensor]) -> set[str]:
    """Return the names of the nodes with real values that ops decide by, and of norms that are mostly rounding."""
    found: set[str] = set()

    class Search(fx.Interpreter):
        def call_module(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            return simulation.call_module(target, args, kwargs)

        def run_node(self, n: fx.Node) -> Any:
            value = super().run_node(n)
            if _decides(n, value):
                found.update(s.name for s in n.all_input_nodes if _is_real(self.env.get(s)))
            if _bound_of_noise(self, n, value) is not None:
                found.add(n.name)
            return value

    with torch.inference_mode():
        Search(simulation.module).run(*given, enable_io_processing=False)
    return found


def _is_real(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()


class _TeacherForced(fx.Interpreter):
    """Run a simulation on another model's values: compare the value of each quantizer, then replace it."""

    def __init__(self, simulation: fx.Interpreter, places: dict[str, list[Tensor]], reals: dict[str, Tensor]) -> None:
        super().__init__(simulation.module)
        self.simulation, self.places, self.reals, self.difference = simulation, places, reals, ""

    def run_node(self, n: fx.Node) -> Any:
        """Return the node's value; an op that decides reads the other model's values, where they are close to its own."""
        value = super().run_node(n)
        if (bound := _bound_of_noise(self, n, value)) is not None and (real := self.reals.get(n.name)) is not None:
            return torch.where((real - value).abs() <= bound, real.to(value.dtype), value)
        if not _decides(n, value) or not self.reals.keys() & {source.name for source in n.all_input_nodes}:
            return value
        own = dict(self.env)
        for source in n.all_input_nodes:
            real = self.reals.get(source.name)
            if real is not None and allclose(real, self.env[source]):
                self.env[source] = real
        value, self.env = super().run_node(n), own
        return value

    def call_module(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return the other model's value for a quantized activation, and the simulation's value for all other modules."""
        value, module = self.simulation.call_module(target, args, kwargs), self.fetch_attr(target)
        if not isinstance(module, FakeQuantize) or module.site.constant:
            return value
        # Ops that only move codes have the qparams of their input: take the place with this shape.
        candidates = [p for p in self.places.get(module.site.name, []) if p.shape == value.shape]
        if not candidates:
            return value
        nearest = min(candidates, key=lambda p: float((p.double() - value.double()).square().nansum()))
        # NaN, as 0 / 0 is of values that became 0 as codes, has no code in the simulation, and any code in a runtime.
        undecided = _is_tie(args[0], module) | args[0].isnan()
        if not self.difference and not allclose(torch.where(undecided, value, nearest), value):
            self.difference = f"tensor {module.site.name!r}"
        return nearest.to(value.dtype)


def require_same_function(
    proto: Any,
    tensors: Sequence[QuantizedTensor],
    model: fx.GraphModule,
    inputs: tuple[TensorInfo, ...],
    names: Mapping[str, str],
) -> None:
    """Run the ONNX checker, and compare one run without optimisation with the simulation, each a part at a time.

    Both compute the same formulas in float32 with other orders of summation, so single codes may differ, and later
    codes with them.  If the outputs differ, the tensors are therefore compared one by one.  The simulation rounds half
    to even here, as QuantizeLinear does, because ties that other hardware rounds differently may be many.

    Args:
        names: The tensor in the ONNX model of each node of the simulation.
    Raises:
        DeployError: the ONNX model computes something else, or has other inputs.
    """
    from qfunc.lowering.onnxruntime.parts import PartwiseModel

    written = PartwiseModel(proto)
    if len(written.inputs) != len(inputs):
        do = "Return what the unused inputs compute, or drop them."
        raise DeployError(where="deploy", found=f"{len(written.inputs)} inputs", wanted=f"{len(inputs)}", do=do)
    given, simulated = _sample_run(model, inputs, [_is_batched(v) for v in proto.graph.input])
    values = written.run(given)
    got = [torch.from_numpy(values[name]) for name in written.outputs]
    if all(allclose(a, b) for a, b in zip(got, simulated, strict=True)):
        return
    different = first_difference(proto, tensors, RoundHalfEven(model), given, names)
    if different:
        raise DeployError(
            where=f"deploy, {different}",
            found="an ONNX model that computes something else than the simulation",
            wanted="the same function",
            do="Report this model: its ops are captured or written wrongly.",
        )


def _sample_run(
    model: fx.GraphModule, inputs: tuple[TensorInfo, ...], batched: list[bool]
) -> tuple[list[Tensor], list[Tensor]]:
    # Return random inputs and the simulation's outputs.  Attention may get no position from a mask of all True, or from
    # one of all False, so use the mask that gives finite outputs.
    for mask in (True, False):
        generator = torch.Generator().manual_seed(0)
        given = [_sample(i, generator, b, mask) for i, b in zip(inputs, batched, strict=True)]
        simulated = run_in_evaluation_mode(model, given, as_written=True)
        if all(bool(v.isfinite().all()) for v in simulated):
            break
    return given, simulated


def _is_batched(info: Any) -> bool:
    # Return True if the first axis of a graph's input is the batch.
    dims = info.type.tensor_type.shape.dim
    return bool(dims) and dims[0].dim_param == "batch"


def _sample(info: TensorInfo, generator: torch.Generator, batched: bool, mask: bool) -> Tensor:
    # Return random values, at most two examples of a batch.
    dtype = getattr(torch, info.dtype.removeprefix("torch."))
    shape = (min(info.shape[0], 2), *info.shape[1:]) if batched else info.shape
    if dtype.is_floating_point:
        return torch.randn(shape, generator=generator, dtype=torch.float32).to(dtype)
    return torch.full(shape, mask if dtype == torch.bool else 1, dtype=dtype)

"""emulate: the integer arithmetic of the runtime, bit for bit, from the graph and the target."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from torch import fx, nn

from qfunc._collection import paused_collection
from qfunc._transform import Transform
from qfunc.emulation.writer import build_emulation
from qfunc.graph.copying import device_of, on_cpu, sharing_parameters
from qfunc.graph.submodules import require_submodules, with_submodules
from qfunc.graph.user_attributes import copy_user_attributes
from qfunc.graph.view import QuantizedModel
from qfunc.placement.partition import Partition
from qfunc.specs import Target
from qfunc.transforms.validate import require_public, require_target, require_target_value

Model = TypeVar("Model", bound=nn.Module)


def emulate(target: Target) -> Callable[[Model], Model]:
    """Return a transform from a calibrated model to one that computes what the runtime computes.

    Inputs and outputs are float, as in the model. Between units, tensors are integer codes. A unit runs in the
    arithmetic of the target's kernel if the target has a kernel for it and all its tensors have qparams. Its sums are
    exact where weights and ranges prove that they fit the kernel's accumulator; elsewhere they wrap or saturate as the
    accumulator does. Any other unit runs in float, between dequantize and quantize. Neither onnx nor a runtime is imported.

    Args:
        target: The hardware that the model was quantized for.
    Raises:
        EmulationError: the vendor's arithmetic is not public (the error names the nearest target with public
            arithmetic), or the hardware of the target is not the model's hardware (the error shows the difference).
        CalibrationError: the model is not calibrated.

    >>> import qfunc, torch
    >>> from qfunc import targets
    >>> calibrated = qfunc.calibrate([torch.ones(1, 3)])(qfunc.quantize(targets.onnxruntime)(nn.Linear(3, 2)))
    >>> [n.name for n in emulate(targets.onnxruntime)(calibrated).graph.nodes if n.op == "call_function"]
    ['input_1_codes', 'linear_acc', 'linear', 'linear_real']
    """

    require_target_value(target, "emulate")

    @paused_collection()
    def transform(model: Model) -> Model:
        each = require_submodules(model, "calibrated", "emulate")
        for part in each.values():
            require_target(part, target, "emulate")
        require_public(target)
        made: Any = with_submodules(model, {path: _emulation(part, target) for path, part in each.items()}).eval()
        return made  # type: ignore[no-any-return]

    return Transform(emulate, {"target": target}, transform)


def _emulation(part: fx.GraphModule, target: Target) -> fx.GraphModule:
    # It is built on the CPU, because a kernel's constants are small, and runs where the model is.  Only the parameters that the
    # emulation reads are copied: codes take the place of the others.
    partition = Partition(QuantizedModel(sharing_parameters(on_cpu(part))), target)
    return _owning(copy_user_attributes(build_emulation(partition), part)).to(device_of(part))


def _owning(emulation: fx.GraphModule) -> fx.GraphModule:
    # Replace the parameters that the emulation reads by copies, and remove those that only the model reads, in place.
    read = {str(n.target) for n in emulation.graph.nodes if n.op == "get_attr"}
    called = tuple(f"{n.target}." for n in emulation.graph.nodes if n.op == "call_module")
    copies: dict[int, nn.Parameter] = {}
    for path, parameter in list(emulation.named_parameters(remove_duplicate=False)):
        owner, _, name = path.rpartition(".")
        parameters = emulation.get_submodule(owner)._parameters
        if path not in read and not path.startswith(called):
            del parameters[name]
            continue
        copied = copies.setdefault(id(parameter), nn.Parameter(parameter.detach().clone(), parameter.requires_grad))
        parameters[name] = copied
    return emulation

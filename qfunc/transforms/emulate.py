"""emulate: the integer arithmetic of the runtime, bit for bit, from the graph and the target."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, TypeVar

from torch import nn

from qfunc._collection import paused_collection
from qfunc._transform import Transform
from qfunc.emulation.writer import build_emulation
from qfunc.graph.submodules import require_submodules, with_submodules
from qfunc.graph.user_attributes import copy_user_attributes
from qfunc.graph.view import QuantizedModel
from qfunc.placement.partition import Partition
from qfunc.specs import Target
from qfunc.transforms.validate import require_public, require_target, require_target_value

__all__ = ["emulate"]


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
            arithmetic), or the hardware of the target is not that of the model (the error shows the difference).
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
        # The emulation holds the tensors of the network that it is built from: those of a copy.
        partitions = {path: Partition(QuantizedModel(copy.deepcopy(part)), target) for path, part in each.items()}
        exact = {path: copy_user_attributes(build_emulation(partitions[path]), part) for path, part in each.items()}
        made: Any = with_submodules(model, exact).eval()
        return made  # type: ignore[no-any-return]

    return Transform(emulate, {"target": target}, transform)

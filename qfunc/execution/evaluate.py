"""Run a model in evaluation mode without changing its own mode."""

from __future__ import annotations

from typing import Any

import torch
from attrs import evolve
from torch import Tensor, fx

from qfunc.errors import QfuncError
from qfunc.execution.batches import tensors_of
from qfunc.graph.arguments import with_fixed_arguments
from qfunc.graph.interpreter import run_error
from qfunc.graph.module import in_evaluation_mode
from qfunc.quantizers.cached_value import CachedValue
from qfunc.quantizers.fake_quantize import FakeQuantize
from qfunc.specs.protocols import OnnxFunction


def run_in_evaluation_mode(model: fx.GraphModule, leaves: list[Tensor], as_written: bool = False) -> list[Tensor]:
    """Return the output leaves of a model in evaluation mode; its own mode does not change.

    Args:
        as_written: Round activations half to even, as ONNX's quantizers do.
    """
    return tensors_of(_value((RoundHalfEven if as_written else _Evaluated)(model), leaves))


def evaluated_value(model: fx.GraphModule, leaves: list[Tensor], where: str) -> Any:
    """Return the outputs as `run_in_evaluation_mode` does, before `model.graph.process_outputs` restores their structure.

    Raises:
        CalibrationError: an op does not accept the inputs.
    """
    interpreter = _Evaluated(model)
    interpreter.extra_traceback = False
    try:
        return _value(interpreter, leaves)
    except QfuncError:
        raise
    except Exception as e:
        raise run_error(model, interpreter.current, where, e) from e


def _value(interpreter: fx.Interpreter, leaves: list[Tensor]) -> Any:
    module: Any = interpreter.module
    arguments = with_fixed_arguments(module, leaves)
    with torch.inference_mode():
        return interpreter.run(*arguments, enable_io_processing=False)


class _Evaluated(fx.Interpreter):
    """Run every submodule in evaluation mode, as a copy that shares its tensors."""

    current: fx.Node | None = None

    def run_node(self, n: fx.Node) -> Any:
        self.current = n
        return super().run_node(n)

    def call_module(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return self.evaluated(target)(*args, **kwargs)

    def evaluated(self, target: Any) -> Any:
        return in_evaluation_mode(self.fetch_attr(target))


class RoundHalfEven(_Evaluated):
    """Run once as `_Evaluated` does, but round activations half to even; constants keep their rounded codes, as in the file.

    No quantized weight stays in memory after its last reader.
    """

    def call_module(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        module = self.evaluated(target)
        value = module(*args, **kwargs)
        if isinstance(module, FakeQuantize):
            module.cache.clear()  # now: while a graph is built, no garbage is collected
        return value

    def evaluated(self, target: Any) -> Any:
        module = super().evaluated(target)
        if isinstance(module, FakeQuantize):
            module.cache = CachedValue()  # not the model's own
        if isinstance(module, FakeQuantize) and not module.site.constant and not isinstance(module.site.function, OnnxFunction):
            module.scheme = evolve(module.scheme, rounding="half_even")
        return module

"""The network that calibration runs: the float network, or the network with the quantizers calibrated so far."""

from __future__ import annotations

from typing import Any

from attrs import frozen
from torch import fx

from qfunc.errors import CalibrationError, SpecError
from qfunc.graph.float_network import same_network
from qfunc.graph.view import QuantizedModel

Models = tuple[QuantizedModel, ...]
Pass = tuple[fx.GraphModule, tuple[int, ...]]
"""A network to run, and the indices of the models that it calibrates."""


@frozen
class FloatPass:
    """The float network, the default of `calibrate`: statistics do not depend on quantizers calibrated earlier.

    >>> import qfunc
    >>> qfunc.calibrate([], through=qfunc.FloatPass()).through
    FloatPass()
    """

    def passes(self, models: Models) -> tuple[Pass, ...]:
        """Return one pass for all models.

        Raises:
            CalibrationError: the models are of different networks.
        """
        networks = [model.float_network for model in models]
        if not all(same_network(networks[0], n) for n in networks[1:]):
            raise different_networks_error()
        return ((networks[0], tuple(range(len(models)))),)


@frozen
class QuantizedPass:
    """The network with the quantizers that have qparams; the other quantizers return their inputs unchanged.

    In a model that is only quantized, the weights have qparams; in a calibrated one, all sites have them.  The statistics
    of a site are those of its input.

    >>> import qfunc, torch
    >>> from qfunc import targets
    >>> batches = [torch.randn(8, 3)]
    >>> quantized = qfunc.quantize(targets.onnxruntime)(torch.nn.Linear(3, 2))
    >>> one, other = (qfunc.calibrate(batches, through=t())(quantized) for t in (qfunc.FloatPass, qfunc.QuantizedPass))
    >>> path = "quantizers.linear.output"
    >>> bool(one.get_submodule(path).scale == other.get_submodule(path).scale)
    False
    """

    def passes(self, models: Models) -> tuple[Pass, ...]:
        """Return a pass for each model, all over the same batches."""
        return tuple((model.network_so_far, (index,)) for index, model in enumerate(models))


def different_networks_error() -> CalibrationError:
    """Return the error for models that no single pass can calibrate."""
    found, do = "quantized models of different networks", "Calibrate them one by one."
    return CalibrationError(where="calibrate", found=found, wanted="one network", do=do)


def require_through(value: Any) -> None:
    """Raise if a value is neither a FloatPass nor a QuantizedPass.

    Raises:
        SpecError: it is neither.
    """
    if not isinstance(value, FloatPass | QuantizedPass):
        found = value.__name__ if isinstance(value, type) else repr(value)
        do = "Write through=qfunc.QuantizedPass()."
        raise SpecError(where="calibrate, through", found=found, wanted="qfunc.FloatPass() or qfunc.QuantizedPass()", do=do)

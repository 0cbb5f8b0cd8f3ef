"""Protocols: the methods of algorithms and runtimes, which packages of higher levels implement.

A protocol of required methods (`Estimator`, `Function`, `Lowering`, `Runner`) types a field of a spec.  The others
declare what is optional.  Whoever uses an optional method checks it by `isinstance`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable


@runtime_checkable
class Estimator(Protocol):
    """Statistics of a tensor, as an explicit state, and the qparams that follow from them."""

    def init(self, scheme: Any, like: Any) -> Any:
        """Return the state before any data; only the shape and device of `like` are read."""

    def update(self, state: Any, x: Any, scheme: Any) -> Any:
        """Return the state after x; the old one is unchanged."""

    def finalize(self, state: Any, scheme: Any) -> Any:
        """Return the qparams."""


@runtime_checkable
class MergeableEstimator(Protocol):
    """An estimator that joins the states of processes in distributed calibration."""

    def merge(self, a: Any, b: Any) -> Any:
        """Return the state after the data of both."""


@runtime_checkable
class Function(Protocol):
    """A quantize function: the value that the hardware will hold, with the method's own gradient."""

    def init(self, qparams: Any, x: Any, scheme: Any) -> Any:
        """Return parameters, from estimated qparams."""

    def apply(self, params: Any, x: Any, scheme: Any) -> Any:
        """Return x as the hardware holds it."""

    def export(self, params: Any, x: Any, scheme: Any) -> Any:
        """Return (codes, qparams) with dequantize(codes, qparams) == apply(params, x, scheme)."""


@runtime_checkable
class LearnedFunction(Protocol):
    """A quantize function with parameters that train; without this method none do."""

    def learned(self, scheme: Any) -> Sequence[str]:
        """Return the names of the fields that train."""
        ...


@runtime_checkable
class RelaxedFunction(Protocol):
    """A quantize function whose training value is another than `apply`."""

    def relax(self, params: Any, x: Any, scheme: Any, noise: Any) -> Any:
        """Return the value that training uses; `noise` is uniform in [0, 1) and has the shape of x."""


@runtime_checkable
class NoiselessFunction(Protocol):
    """A quantize function that declares by `noisy = False` that its `relax` ignores the noise, so that none is drawn."""

    noisy: bool


@runtime_checkable
class ScalableFunction(Protocol):
    """A quantize function that knows its parameters for multiples of x."""

    def scaled(self, params: Any, factor: Any) -> Any:
        """Return the parameters for which factor * x gets factor times the values of x, or None where there are none.

        The factors are positive and have the shape of the parameters.
        """


@runtime_checkable
class OnnxFunction(Protocol):
    """A quantize function that writes its own ONNX nodes in place of QuantizeLinear and DequantizeLinear."""

    def onnx(self, graph: Any, tensor: str, qparams: Any, scheme: Any, name: str) -> str:
        """Add nodes that compute `apply` of `tensor`; return the name of the last one's output, which is `name`."""
        ...


@runtime_checkable
class Lowering(Protocol):
    """The step from standard Q/DQ ONNX to what a vendor's toolchain loads."""

    def lower(self, model: Any, sites: Any) -> Mapping[str, bytes]:
        """Return the content of each file, bytes, by its name.

        `model` is an `onnx.ModelProto` with Q/DQ nodes, to be left as it is; `sites` are its `QuantizedTensor` values.
        """
        ...


@runtime_checkable
class VersionedLowering(Protocol):
    """A lowering that chooses the ONNX opset of the model that it receives."""

    @property
    def opset(self) -> int:
        """The version of the opset."""
        ...


@runtime_checkable
class LimitedLowering(Protocol):
    """A lowering whose files cannot express some ops, so that `quantize` refuses them."""

    @property
    def legality(self) -> tuple[Any, ...]:
        """The `Refuse` values of these ops."""
        ...


@runtime_checkable
class RefusingLowering(Protocol):
    """A lowering that refuses some schemes."""

    def refuses(self, scheme: Any, constant: bool) -> str:
        """Return what it wants in place of a tensor's scheme; empty if it accepts the scheme."""
        ...


@runtime_checkable
class Runner(Protocol):
    """A runtime that executes artifacts on this machine."""

    def run(self, artifact: Any, inputs: Any) -> Any:
        """Return the outputs of one batch, real values, as a list of arrays in the model's order.

        `artifact.files` maps file names to bytes; `inputs` is a list of tensors, one for each input, of real values.
        """


@runtime_checkable
class OptionalRunner(Protocol):
    """A runner of software that may be absent."""

    def missing(self) -> str:
        """Return "" where it can run, else what is not installed."""
        ...


@runtime_checkable
class InspectableRunner(Protocol):
    """A runner that shows the tensors of codes inside an artifact."""

    def inside(self, artifact: Any) -> Any:
        """Return a view of the artifact.

        `tensors` are the names of its code tensors, "conv.codes" for the tensor "conv"; `run(inputs)` returns the outputs
        and a dict of these codes, NumPy arrays.  `units` maps a code tensor to "integer", "float" or "gone", as the runtime
        computes it; None if the files leave the runtime no choice.  `difference` says how the view differs from the
        artifact, "" if it does not.
        """


@runtime_checkable
class ConditionalRunner(Protocol):
    """A runner that computes an artifact exactly on some processors only."""

    def comparable(self, artifact: Any) -> str:
        """Return "" where it computes the artifact exactly, else the reason why it may not."""
        ...


@runtime_checkable
class ReorderingRunner(Protocol):
    """A runner that computes some kinds of ops in float in another order than `emulate`."""

    def unlike(self) -> tuple[str, ...]:
        """Return these kinds."""
        ...


@runtime_checkable
class FlippingRunner(Protocol):
    """A runner that rounds a few codes the other way, for it adds floats in an order of its own."""

    @property
    def flips(self) -> float:
        """The share of these codes."""
        ...


OPTIONAL: dict[type, tuple[type, ...]] = {
    Estimator: (MergeableEstimator,),
    Function: (LearnedFunction, RelaxedFunction, NoiselessFunction, ScalableFunction, OnnxFunction),
    Lowering: (VersionedLowering, LimitedLowering, RefusingLowering),
    Runner: (OptionalRunner, InspectableRunner, ConditionalRunner, ReorderingRunner, FlippingRunner),
}
"""By a protocol of required methods, the protocols of the optional ones."""


__all__ = [
    "OPTIONAL", "ConditionalRunner", "Estimator", "FlippingRunner", "Function", "InspectableRunner", "LearnedFunction",
    "LimitedLowering", "Lowering", "MergeableEstimator", "NoiselessFunction", "OnnxFunction", "OptionalRunner",
    "RefusingLowering", "RelaxedFunction", "ReorderingRunner", "Runner", "ScalableFunction", "VersionedLowering",
]  # fmt: skip

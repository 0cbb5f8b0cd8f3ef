"""Protocols: the methods of algorithms and runtimes, which packages of higher layers implement.

The protocols of required methods (`Estimator`, `Function`, `Lowering`, `Runner`) are types of fields of specs.  The
others declare optional methods.  Callers check for an optional method by `isinstance`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable


@runtime_checkable
class Estimator(Protocol):
    """An estimator: statistics of a tensor, as an explicit state, and the qparams that follow from them.

    >>> from qfunc.estimators import MinMax
    >>> isinstance(MinMax(), Estimator), isinstance(MinMax(), MergeableEstimator)
    (True, True)
    """

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
    """A quantize function: the values that the hardware has, with the gradient of the method.

    >>> from qfunc.functions import Fixed, Lsq
    >>> isinstance(Fixed(), Function), isinstance(Fixed(), LearnedFunction), isinstance(Lsq(), LearnedFunction)
    (True, False, True)
    """

    def init(self, qparams: Any, x: Any, scheme: Any) -> Any:
        """Return parameters, from estimated qparams."""

    def apply(self, params: Any, x: Any, scheme: Any) -> Any:
        """Return the value that the hardware has in place of x."""

    def export(self, params: Any, x: Any, scheme: Any) -> Any:
        """Return (codes, qparams) with dequantize(codes, qparams) == apply(params, x, scheme)."""


@runtime_checkable
class LearnedFunction(Protocol):
    """A quantize function with parameters that train; without this method no parameter trains."""

    def learned(self, scheme: Any) -> Sequence[str]:
        """Return the names of the fields that train."""
        ...


@runtime_checkable
class RelaxedFunction(Protocol):
    """A quantize function whose value in training differs from `apply`."""

    def relax(self, params: Any, x: Any, scheme: Any, noise: Any) -> Any:
        """Return the value that training uses; `noise` is uniform in [0, 1) and has the shape of x."""


@runtime_checkable
class NoiselessFunction(Protocol):
    """A quantize function that declares by `noisy = False` that its `relax` ignores the noise, so that none is drawn."""

    noisy: bool


@runtime_checkable
class SearchingFunction(Protocol):
    """A quantize function that declares by `searches = True` that it finds minimums and integers of scales for a tensor."""

    searches: bool


@runtime_checkable
class ScalableFunction(Protocol):
    """A quantize function that computes its parameters for multiples of x."""

    def scaled(self, params: Any, factor: Any) -> Any:
        """Return the parameters for which factor * x gets factor times the values of x, or None if there are none.

        The factors are positive and have the shape of the parameters.
        """


@runtime_checkable
class OnnxFunction(Protocol):
    """A quantize function that writes its own ONNX nodes instead of QuantizeLinear and DequantizeLinear."""

    def onnx(self, graph: Any, tensor: str, qparams: Any, scheme: Any, name: str) -> str:
        """Add nodes that compute `apply` of `tensor`; return the name of the last one's output, which is `name`."""
        ...


@runtime_checkable
class Lowering(Protocol):
    """A lowering: writes the files of a vendor's toolchain from standard Q/DQ ONNX.

    >>> from qfunc.lowering import QdqLowering
    >>> isinstance(QdqLowering(), Lowering)
    True
    """

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
        """The version of the opset; for one before 13 the lowering receives a model of opset 21."""
        ...


@runtime_checkable
class NamingLowering(Protocol):
    """A lowering whose files without an ONNX model have names for inputs and outputs."""

    def with_names(self, files: Any, inputs: tuple[str, ...], outputs: tuple[str, ...]) -> Mapping[str, bytes]:
        """Return the files of `lower` with these names of inputs and outputs; an output with the name "" keeps its own."""
        ...


@runtime_checkable
class LimitedLowering(Protocol):
    """A lowering whose files cannot express some ops, so that `quantize` refuses them."""

    @property
    def legality(self) -> tuple[Any, ...]:
        """The `Refuse` values of these ops."""
        ...


@runtime_checkable
class FixedSizeLowering(Protocol):
    """A lowering that may fix all sizes of the inputs but the batch."""

    @property
    def one_size(self) -> str:
        """What fixes the sizes, for messages, such as "a .pte"; "" if they may vary."""
        ...


@runtime_checkable
class RefusingLowering(Protocol):
    """A lowering that refuses some schemes."""

    def refuses(self, scheme: Any, constant: bool) -> str:
        """Return a description of the schemes that it accepts, or "" if it accepts this one."""
        ...


@runtime_checkable
class StoringLowering(Protocol):
    """A lowering whose files hold codes that ONNX's integers with one static scale per tensor or channel are not."""

    def stores(self, scheme: Any, constant: bool) -> bool:
        """Return True if they hold the codes of a constant in this scheme, or say how an activation is quantized."""
        ...


@runtime_checkable
class ParameterLowering(Protocol):
    """A lowering that writes the parameters of the model under their names."""

    @property
    def parameters(self) -> bool:
        """True if the ONNX model shall have their names in its metadata, a JSON list under "parameters"."""
        ...


@runtime_checkable
class WideLowering(Protocol):
    """A lowering whose files hold biases of more than 32 bits."""

    @property
    def bias_bits(self) -> int:
        """The number of bits of a bias."""
        ...


@runtime_checkable
class BlockLowering(Protocol):
    """A lowering whose files hold weights with scales of blocks, and inputs that are quantized at run time."""

    @property
    def blocks(self) -> bool:
        """True if they do."""
        ...


@runtime_checkable
class DecoderLowering(Protocol):
    """A lowering for an engine that builds the network itself and reads its weights only.

    The emulation is then that of the engine's network, with the weights of the file.
    """

    @property
    def decoder(self) -> Any:
        """The `DecoderConfig`."""
        ...


@runtime_checkable
class PartwiseLowering(Protocol):
    """A lowering whose files are put together from parts of the network, as `qfunc.stream` does.

    `lower(model, sites)` returns the files of `join([part(model, sites)])`.
    """

    def part(self, model: Any, sites: Any) -> Any:
        """Return what the files have of a part of the network, a `files.part.Part`; the arguments are those of `lower`."""
        ...

    def join(self, parts: Any) -> Mapping[str, Any]:
        """Return the files of all parts: name -> an iterable of bytes."""
        ...


@runtime_checkable
class Runner(Protocol):
    """A runner: executes artifacts by a runtime on this machine.

    >>> from qfunc.lowering import OnnxRuntimeRunner
    >>> isinstance(OnnxRuntimeRunner(), Runner), isinstance(OnnxRuntimeRunner(), InspectableRunner)
    (True, True)
    """

    def run(self, artifact: Any, inputs: Any) -> Any:
        """Return the outputs of one batch, real values, as a list of arrays in the model's order.

        `artifact.files` maps file names to bytes; `inputs` is a list of tensors, one for each input, of real values.
        """


@runtime_checkable
class OptionalRunner(Protocol):
    """A runner of software that may be absent."""

    def missing(self) -> str:
        """Return the name of the software that is not installed, or "" if it can run."""
        ...


@runtime_checkable
class LoadingRunner(Protocol):
    """A runner that loads an artifact once for many batches."""

    def loaded(self, artifact: Any) -> Callable[[Any], Any]:
        """Return a function from the inputs of one batch to its outputs, as `run` returns them."""
        ...


@runtime_checkable
class InspectableRunner(Protocol):
    """A runner that shows the tensors of codes inside an artifact.

    >>> from qfunc.lowering import LiteRtRunner, QnnHtpRunner
    >>> isinstance(LiteRtRunner(), InspectableRunner), isinstance(QnnHtpRunner(), InspectableRunner)
    (True, False)
    """

    def inside(self, artifact: Any) -> Any:
        """Return a view of the artifact.

        `tensors` are the names of its code tensors, "conv.codes" for the tensor "conv"; `run(inputs)` returns the outputs
        and a dict of these codes, NumPy arrays.  `units` maps a code tensor to "integer", "float" or "gone", as the runtime
        computes it; None if it shows no units, or those of an `ExecutedView`.  `difference` says how the view differs from the
        artifact, "" if it does not.
        """


@runtime_checkable
class RealView(Protocol):
    """A view, as `InspectableRunner.inside` returns it, that also shows real tensors: its `run` returns them with the codes.

    The examples of a batch are joined along the first axis of each, as of the outputs.
    """

    @property
    def reals(self) -> frozenset[str]:
        """The names of these tensors."""
        ...


@runtime_checkable
class ExecutedView(Protocol):
    """A view, as `InspectableRunner.inside` returns it, that shows how the ops before some tensors of codes are computed."""

    @property
    def executed(self) -> Mapping[str, str] | None:
        """Map the name of such a tensor, "conv.codes", to "integer" or "float"; None if the runtime does not show it."""
        ...


@runtime_checkable
class ConditionalRunner(Protocol):
    """A runner that computes an artifact exactly on some processors only."""

    def comparable(self, artifact: Any) -> str:
        """Return the reason why it may not compute the artifact exactly, or "" if it does."""
        ...


@runtime_checkable
class LocatedRunner(Protocol):
    """A runner that knows the processor on which it runs."""

    @property
    def cpu(self) -> Any:
        """The processor, a `specs.Cpu`."""
        ...


@runtime_checkable
class ReorderingRunner(Protocol):
    """A runner that computes some kinds of ops in float in an order that differs from that of `emulate`."""

    def unlike(self) -> tuple[str, ...]:
        """Return these kinds."""
        ...


@runtime_checkable
class FlippingRunner(Protocol):
    """A runner that rounds a few codes the other way, because it adds floats in another order than `emulate`."""

    @property
    def flips(self) -> float:
        """The share of these codes."""
        ...


@runtime_checkable
class RoundingArithmetic(Protocol):
    """An arithmetic of `specs.arithmetic` that rounds once.

    Without `Kernel.bounds`, the bounds of a fused activation are rounded in the same way.
    """

    @property
    def rounding(self) -> str:
        """The name of the rounding."""
        ...


OPTIONAL: dict[type, tuple[type, ...]] = {
    Estimator: (MergeableEstimator,),
    Function: (LearnedFunction, RelaxedFunction, NoiselessFunction, ScalableFunction, OnnxFunction),
    Lowering: (
        VersionedLowering,
        NamingLowering,
        LimitedLowering,
        RefusingLowering,
        StoringLowering,
        WideLowering,
        DecoderLowering,
        PartwiseLowering,
    ),
    Runner: (
        OptionalRunner,
        LoadingRunner,
        InspectableRunner,
        ConditionalRunner,
        LocatedRunner,
        ReorderingRunner,
        FlippingRunner,
    ),
}
"""Maps a protocol of required methods to the protocols of its optional methods."""


__all__ = [
    "OPTIONAL", "ConditionalRunner", "DecoderLowering", "Estimator", "ExecutedView", "FixedSizeLowering", "FlippingRunner",
    "Function", "InspectableRunner", "LearnedFunction", "LimitedLowering", "LoadingRunner", "LocatedRunner", "Lowering",
    "MergeableEstimator", "NamingLowering", "NoiselessFunction", "OnnxFunction", "OptionalRunner", "ParameterLowering",
    "PartwiseLowering", "RealView", "RefusingLowering", "RelaxedFunction", "ReorderingRunner", "RoundingArithmetic", "Runner",
    "ScalableFunction", "SearchingFunction", "StoringLowering", "VersionedLowering", "WideLowering",
]  # fmt: skip

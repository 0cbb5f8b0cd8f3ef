"""The methods of runners, which execute artifacts, and of their views of an artifact."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol, runtime_checkable


@runtime_checkable
class Runner(Protocol):
    """A runner: executes artifacts by a runtime on this machine.

    >>> from qfunc.targets.runtimes import OnnxRuntimeRunner
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
class ThreadedRunner(Protocol):
    """A runner with a number of threads."""

    @property
    def threads(self) -> int:
        """The number; 0 if the runtime chooses it."""
        ...


@runtime_checkable
class ProfilingRunner(Protocol):
    """A runner whose runtime says how long each operation takes."""

    def profiled(self, artifact: Any, inputs: Any) -> Mapping[str, float]:
        """Return the seconds of each operation for one batch, the least of several runs, by the name of its unit's tensor.

        A name is a tensor of the file, such as "conv" or "conv.codes"; several operations of one name are summed.
        """
        ...


@runtime_checkable
class InspectableRunner(Protocol):
    """A runner that shows the tensors of codes inside an artifact.

    >>> from qfunc.targets.runtimes import LiteRtRunner, QnnHtpRunner
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

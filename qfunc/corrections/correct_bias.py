"""correct_bias: compensate in the biases the mean shift caused by rounding the weights."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor, fx, nn

from qfunc._transform import Transform
from qfunc.corrections.corrected_biases import CorrectedBiases
from qfunc.execution.batches import require_batches, require_finite_input
from qfunc.execution.distributed import gather_counts, propagate_errors, ranks, require_group
from qfunc.execution.feed import feed_all
from qfunc.graph.constants import read_attr
from qfunc.graph.interpreter import ObservingInterpreter
from qfunc.graph.record import path_of
from qfunc.graph.submodules import require_submodules, with_submodules
from qfunc.graph.view import QuantizedModel
from qfunc.ops.definition import Trait
from qfunc.ops.node import attribute, has, kind_of, slots
from qfunc.transforms.batch_norm import fold_batch_norm

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

Model = TypeVar("Model", bound=nn.Module)


def correct_bias(
    batches: Iterable[Any], progress: bool = True, *, group: ProcessGroup | None = None
) -> Callable[[Model], Model]:
    """Return a transform of a calibrated model that corrects biases for the mean shift caused by rounding the weights.

    b'_o = b_o - sum_{i,k} (w_hat - w)_{o,i,k} * m_i, with w_hat the quantized weight and m_i the mean of input
    channel i over the batches, in the float network; padding counts as data.  Convolutions and linear layers
    with a bias that no other op reads are corrected (folding a BatchNorm creates one).  One float pass; memory does
    not grow with the number of batches.  The model itself is not changed.  If biases were corrected before, b is their
    original value: another correction replaces the last one.  Scales of biases that have their own are estimated again.

    Args:
        batches: As for `calibrate`.
        progress: Show a progress bar on a terminal, else a line every 30 seconds.
        group: As for `calibrate`: the means cover the batches of all its processes.
    Raises:
        CalibrationError: no batches, NaN or infinite inputs of a layer, or a model that is not calibrated.
    Source: Nagel et al., arXiv:1906.04721, section 4.2, with empirical means (appendix D).

    >>> import qfunc
    >>> from qfunc import targets
    >>> batches = [torch.rand(8, 3)]
    >>> calibrated = qfunc.calibrate(batches)(qfunc.quantize(targets.onnxruntime)(torch.nn.Linear(3, 2)))
    >>> bool((correct_bias(batches)(calibrated).bias == calibrated.bias).all())
    False
    """

    require_batches(batches, "correct_bias", progress)
    require_group(group, "correct_bias")

    def transform(calibrated: Model) -> Model:
        submodules = require_submodules(calibrated, "calibrated", "correct_bias")
        results = {path: fold_batch_norm()(part) for path, part in submodules.items()}
        with torch.no_grad():
            parts, processes = {path: _Part(result) for path, result in results.items()}, ranks(group)
            with propagate_errors(processes):
                count = feed_all(calibrated, {path: p.observe for path, p in parts.items()}, batches, "correct_bias", progress)
            sites = [name for part in parts.values() for name in part.sites]
            states, _ = gather_counts({path: p.sums for path, p in parts.items()}, count, sites, processes, "correct_bias")
            for path, part in parts.items():
                part.correct([state[path] for state in states])
        corrected: Any = with_submodules(calibrated, results, "correct_bias")
        return corrected  # type: ignore[no-any-return]

    return Transform(correct_bias, {"batches": batches, "progress": progress, "group": group}, transform)


class _Part:
    """A quantized graph, with the sum and count per channel of the input of each op that can be corrected."""

    def __init__(self, result: fx.GraphModule) -> None:
        view, self.biases = QuantizedModel(result), CorrectedBiases(result)  # the result does not share its tensors
        self.network, self.sites = view.float_network, [s.module.site.name for s in view.quantizers]
        self.quantized = {s.tensor: s.module for s in view.quantizers if s.module.site.slot == "weight"}
        self.ops = [n for n in self.network.graph.nodes if correctable(n, self.quantized.keys())]
        # The channel axis: axis 1 of a convolution's input, the last axis of a linear layer's.
        self.axes = {slots(op)[0][1].name: 1 if kind_of(op) == "conv" else -1 for op in self.ops}
        self.sums: dict[str, tuple[Tensor, int]] = {}
        self.interpreter = ObservingInterpreter(self.network, self._add, set(self.axes))

    def observe(self, arguments: tuple[Any, ...], number: int) -> Any:
        """Process one batch and return the output of the float network."""
        return self.interpreter.run_batch(arguments, f"correct_bias, batch {number}")

    def _add(self, name: str, value: Any) -> None:
        rest = [i for i in range(value.ndim) if i != self.axes[name] % value.ndim]
        total, count = self.sums.get(name, (0, 0))
        batch_sum = value.sum(rest, dtype=torch.float64)
        self.sums[name] = total + batch_sum, count + value.numel() // value.shape[self.axes[name]]

    def correct(self, states: list[dict[str, tuple[Tensor, int]]]) -> None:
        """Correct the biases by the means over all processes."""
        for op in self.ops:
            x, weight_node, bias = (n for _, n in slots(op))
            sums = [state[x.name] for state in states if x.name in state]
            count = sum(n for _, n in sums)
            if not count:
                continue
            mean = torch.stack([total for total, _ in sums]).sum(0) / count
            require_finite_input(mean, "correct_bias", path_of(self.network, op))
            weight = read_attr(self.network, weight_node)
            shift = shift_of(op, self.quantized[weight_node.name](weight) - weight, mean)
            self.biases.subtract(bias, shift)
        self.biases.record()


def correctable(node: fx.Node, quantized: Any) -> bool:
    """Return True for a conv or linear with a quantized weight, named in `quantized`, and a bias that nothing else reads."""
    if not has(node, Trait.WEIGHTED) or kind_of(node) == "conv_transpose":  # `shift_of` has no formula for its windows
        return False
    weight, bias = attribute(node, "weight"), attribute(node, "bias")
    has_bias = isinstance(bias, fx.Node) and bias.op == "get_attr" and len(bias.users) == 1
    return has_bias and isinstance(weight, fx.Node) and weight.name in quantized


def shift_of(op: fx.Node, error: Tensor, mean: Tensor) -> Tensor:
    """Return the shift of each output's mean caused by an error of the weight; `mean` is the mean of each input channel."""
    mean = mean.to(error)
    if kind_of(op) == "linear":
        return error @ mean
    # One window with every pixel equal to its channel's mean.
    window = mean.reshape(1, -1, *[1] * (error.ndim - 2)).expand(1, -1, *error.shape[2:])
    conv: Any = op.target
    shift: Tensor = conv(window, error, None, 1, 0, 1, attribute(op, "groups"))
    return shift.flatten()

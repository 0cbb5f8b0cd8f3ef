"""correct_bias: what rounding the weights shifts on average, the biases take back."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, fx
from tqdm import tqdm

from qfunc.errors import CalibrationError
from qfunc.graph.fold import read_attr
from qfunc.graph.network import Walk, float_network, require, seats
from qfunc.graph.vocabulary import attribute, kind_of, slots
from qfunc.transforms.batches import Binder


def correct_bias(batches: Iterable[Any], progress: bool = True) -> Callable[[fx.GraphModule], fx.GraphModule]:
    """A transform of a calibrated model: rounding of the weights no longer shifts the mean of any channel.

    b'_o = b_o - sum_{i,k} (w_hat - w)_{o,i,k} * m_i, with w_hat the quantized weight and m_i the mean of input
    channel i over the batches, in the float network; padding counts as data.  Convolutions and linear
    layers with a bias of their own (every folded BatchNorm gives one) are corrected.  One float pass;
    memory does not grow with the number of batches.  The given model is unchanged.

    Args:
        batches: As for `calibrate`.
        progress: A progress bar, if standard error is a terminal.
    Raises:
        CalibrationError: no batches, or a model that is not calibrated.
    Source: Nagel et al., arXiv:1906.04721, section 4.2, with empirical means (appendix D).

    >>> import qfunc
    >>> from qfunc import targets
    >>> batches = [torch.rand(8, 3)]
    >>> calibrated = qfunc.calibrate(batches)(qfunc.quantize(targets.onnxruntime)(torch.nn.Linear(3, 2)))
    >>> bool((correct_bias(batches)(calibrated).bias == calibrated.bias).all())
    False
    """

    def transform(calibrated: fx.GraphModule) -> fx.GraphModule:
        require(calibrated, "calibrated", "correct_bias")
        result = copy.deepcopy(calibrated)
        network = float_network(result)
        quantized = {s.tensor: s.module for s in seats(result) if s.module.site.slot == "weight"}
        ops = [n for n in network.graph.nodes if _correctable(n, quantized.keys())]
        means = _means(network, ops, batches, progress)
        with torch.no_grad():
            for op in ops:
                weight = read_attr(network, op.args[1])
                shift = _shift(op, quantized[op.args[1].name](weight) - weight, means[op.args[0].name])
                read_attr(network, op.args[2]).sub_(shift)  # the tensors are the result's own
        return result

    return transform


def _correctable(node: fx.Node, quantized: Any) -> bool:
    if kind_of(node) not in ("conv", "linear"):
        return False
    weight, bias = attribute(node, "weight"), attribute(node, "bias")
    own = isinstance(bias, fx.Node) and bias.op == "get_attr" and len(bias.users) == 1
    return own and isinstance(weight, fx.Node) and weight.name in quantized


def _means(network: fx.GraphModule, ops: list[fx.Node], batches: Iterable[Any], progress: bool) -> dict[str, Tensor]:
    """The mean of each input channel: axis 1 of a convolution's input, the last of a linear layer's."""
    axes: dict[str, int] = {slots(op)[0][1].name: 1 if kind_of(op) == "conv" else -1 for op in ops}
    sums: dict[str, Tensor] = {}
    counts: dict[str, int] = {}

    def see(name: str, value: Any) -> None:
        rest = [i for i in range(value.ndim) if i != axes[name] % value.ndim]
        sums[name] = sums.get(name, 0) + value.sum(rest, dtype=torch.float64)
        counts[name] = counts.get(name, 0) + value.numel() // value.shape[axes[name]]

    bind, walk, count = Binder(network), Walk(network, see, set(axes)), 0
    for count, batch in enumerate(
        tqdm(batches, "correct_bias", disable=not progress or not sys.stderr.isatty(), unit="batch"), 1
    ):
        walk.guarded(bind(batch, "correct_bias"), f"correct_bias, batch {count}")
    if count == 0:
        do = "Pass a non-empty iterable, not one already used up."
        raise CalibrationError(where="correct_bias", found="no batches", wanted="at least one", do=do)
    return {name: sums[name] / counts[name] for name in sums}


def _shift(op: fx.Node, error: Tensor, mean: Tensor) -> Tensor:
    mean = mean.to(error.dtype).clone()
    if kind_of(op) == "linear":
        return error @ mean
    # One window in which every pixel of a channel is the channel's mean.
    window = mean.reshape(1, -1, *[1] * (error.ndim - 2)).expand(1, -1, *error.shape[2:])
    conv: Any = op.target
    found: Tensor = conv(window, error, None, 1, 0, 1, attribute(op, "groups"))
    return found.flatten()

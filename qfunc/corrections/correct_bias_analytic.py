"""correct_bias_analytic: correct biases as correct_bias does, with means from BatchNorms instead of data."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, fx, nn

from qfunc._transform import Transform
from qfunc.corrections.correct_bias import correctable, shift_of
from qfunc.corrections.corrected_biases import CorrectedBiases
from qfunc.corrections.equalization_graph import capture_for_equalization
from qfunc.corrections.expected_means import expected_means
from qfunc.errors import CalibrationError, SpecError
from qfunc.graph.constants import read_attr
from qfunc.graph.linear_op import LinearOp
from qfunc.graph.stages import require_stage
from qfunc.graph.view import QuantizedModel
from qfunc.ops.node import attribute, kind_of, slots
from qfunc.passes.fold_batch_norm import fold_batch_norms
from qfunc.passes.pipeline import prepare
from qfunc.transforms.batch_norm import fold_batch_norm


def correct_bias_analytic(model: nn.Module) -> Callable[[fx.GraphModule], fx.GraphModule]:
    """Return a transform of a quantized model that corrects biases for rounding of the weights, without data.

    b'_o = b_o - sum_{i,k} (w_hat - w)_{o,i,k} E[x_i], with w_hat the quantized weight and E[x_i] the mean of input channel
    i.  It follows from gamma and beta of the BatchNorm before it: after a ReLU, with phi and Phi the normal density and
    distribution function, and y normal with mean beta and deviation |gamma|,

        E[max(0, y)] = |gamma| phi(-beta / |gamma|) + beta (1 - Phi(-beta / |gamma|)),

    and likewise after ReLU6, leaky ReLUs, or no activation; the means pass through average pools, additions and
    concatenations.  The correction is exact if values are normal and the running statistics are those of the data; padding
    counts as data.  Ops without a BatchNorm before them (the first op, or after a maximum) keep their biases;
    `correct_bias` corrects those, too.  As there, another correction replaces the last one.

    Args:
        model: The float model that was quantized, with its BatchNorms, for example the result of `equalize`.
    Raises:
        SpecError: there is no op to correct.
        CalibrationError: a model that is not quantized, or that comes from another float model.
    Source: Nagel et al., arXiv:1906.04721, section 4.2.1, and appendix C.

    >>> import qfunc
    >>> from qfunc import targets
    >>> block = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 3)).eval()
    >>> quantized = qfunc.quantize(targets.onnxruntime)(block)
    >>> corrected = correct_bias_analytic(block)(quantized)
    >>> [k for k, v in corrected.named_parameters() if not torch.equal(v, quantized.get_parameter(k))]
    ['3.bias']
    """

    def transform(quantized: fx.GraphModule) -> fx.GraphModule:
        step = "correct_bias_analytic"
        target = require_stage(quantized, "quantized", step).target
        assert target is not None
        with torch.inference_mode(False), torch.no_grad():
            before = prepare(capture_for_equalization(model, step), target).network
            folded, result = fold_batch_norms(before, target), fold_batch_norm()(quantized)
            view, biases = QuantizedModel(result), CorrectedBiases(result)  # the result does not share its tensors
            network = view.float_network
            modules = {s.tensor: s.module for s in view.quantizers if s.module.site.slot == "weight"}
            ops = [n for n in network.graph.nodes if correctable(n, modules.keys())]
            _require_same(folded, network, ops)
            nodes, corrected = {n.name: n for n in before.graph.nodes}, 0
            for op in ops:
                mean = _mean(before, nodes[op.name])
                if mean is None:
                    continue
                weight = attribute(op, "weight")
                values = read_attr(network, weight)
                shift = shift_of(op, modules[weight.name](values) - values, mean)
                biases.subtract(attribute(op, "bias"), shift)
                corrected += 1
            biases.record()
        if not corrected:
            found = "no conv or linear with a bias after a BatchNorm"
            do = "Use qfunc.correct_bias(batches)."
            raise SpecError(where=step, found=found, wanted="at least one", do=do)
        return result

    return Transform(correct_bias_analytic, {"model": model}, transform)


def _mean(model: fx.GraphModule, node: fx.Node) -> Tensor | None:
    # The mean of each input channel, or of each column of a linear layer.
    expected, op = expected_means(model, slots(node)[0][1]), LinearOp(model, node)
    if expected is None or expected.layout.back != (1 if kind_of(node) == "linear" else op.spatial + 1):
        return None
    repeat, rest = divmod(op.inputs, expected.mean.numel())
    return None if rest or (repeat > 1 and not expected.layout.merged) else expected.mean.repeat_interleave(repeat)


def _require_same(folded: fx.GraphModule, network: fx.GraphModule, ops: list[fx.Node]) -> None:
    by_name = {n.name: n for n in folded.graph.nodes}
    for op in ops:
        weights = [(m, attribute(n, "weight")) for m, n in ((folded, by_name.get(op.name)), (network, op)) if n is not None]
        values = [read_attr(m, w) for m, w in weights if isinstance(w, fx.Node) and w.op == "get_attr"]
        if len(values) < 2 or values[0].shape != values[1].shape or not torch.equal(*values):
            raise CalibrationError(
                where="correct_bias_analytic",
                found=f"op {op.name!r}, whose weight differs from the given float model's",
                wanted="the float model that was quantized",
                do="Pass the model that qfunc.quantize was given; after training use qfunc.correct_bias.",
            )

"""The BatchNorm modes of `quantize`; freezing and folding of BatchNorms that train."""

from __future__ import annotations

import copy
from collections.abc import Callable, Set
from typing import Any

import torch
from attrs import frozen
from torch import fx, nn
from torch.optim import Optimizer

from qfunc._transform import Transform
from qfunc.errors import CalibrationError, SpecError
from qfunc.execution.batches import warn_caller
from qfunc.graph.constants import computable, read_attr
from qfunc.graph.evaluation_form import evaluation_form, trained_norms
from qfunc.graph.module import require_both_modes
from qfunc.graph.selectors import Context, matches
from qfunc.graph.sites import find_quantizers
from qfunc.graph.stages import require_stage, unwrap
from qfunc.graph.user_attributes import copy_user_attributes
from qfunc.ops.node import kind_of
from qfunc.passes.unfold_batch_norm import TrainedBatchNorm, trained_batch_norms
from qfunc.quantizers.frozen_batch_norm import freeze
from qfunc.specs import Target

_NORMS = nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm


@frozen
class FoldBatchNorm:
    """BatchNorms are folded into the weights before these are quantized, and no longer train (the default).

    >>> import qfunc
    >>> net = nn.Sequential(nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4))
    >>> quantized = qfunc.quantize(qfunc.targets.onnxruntime, batch_norm=FoldBatchNorm())(net)
    >>> [name for name, _ in quantized.named_parameters()]
    ['0.weight', '0.bias']
    """

    def training(self, network: fx.GraphModule) -> Set[str]:
        """Return the paths of the BatchNorms that may train: none."""
        return frozenset()

    def trained(self, folded: fx.GraphModule, before: fx.GraphModule) -> tuple[TrainedBatchNorm, ...]:
        """Return the BatchNorms that stay: none."""
        return ()


@frozen
class TrainBatchNorm:
    """BatchNorms train: quantizers see the folded weights, and training normalises by the batch.

    With f = gamma / sqrt(running_var + eps) and s = beta - running_mean f, training computes

        y = norm(op(x; Q(w f) / f) + b) + Q(b f + s) - (b f + s);

    evaluation, training with frozen statistics (`freeze_batch_norm`) and the chip compute  y = op(x; Q(w f)) + Q(b f + s).
    If each channel of a weight has its own scale s, and the scale may be any number, s follows f: the quantizer stores
    s' = s / max(|f|, 1e-3), and Q(w f; s' |f|) / f = Q(w; s') does not change with the statistics.  Otherwise a channel
    with |f| < 1e-3 trains on its float weight.  So gamma = 0 trains on every chip.  Tensors have the names and values of
    the float model.  A BatchNorm is folded as by `FoldBatchNorm` unless it is, in each of its calls, the only reader of a
    conv, transposed conv or linear.  Steps with a `FusionStep.fold` and parameters that train are refused.

    Source: Jacob et al., arXiv:1712.05877, section 3.2; Krishnamoorthi, arXiv:1806.08342, section 3.2.2.

    >>> import qfunc
    >>> net = nn.Sequential(nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4))
    >>> quantized = qfunc.quantize(qfunc.targets.onnxruntime, batch_norm=TrainBatchNorm())(net)
    >>> [name for name, _ in quantized.named_parameters()]
    ['0.weight', '1.weight', '1.bias']
    """

    def training(self, network: fx.GraphModule) -> Set[str]:
        """Return the paths of the BatchNorms that may train: the leaves of torch.nn."""
        return {str(node.target) for node in network.graph.nodes if node.op == "call_module" and kind_of(node) == "batch_norm"}

    def trained(self, folded: fx.GraphModule, before: fx.GraphModule) -> tuple[TrainedBatchNorm, ...]:
        """Return the BatchNorms that stay.

        Raises:
            CaptureError: the model is a program that was exported in evaluation mode.
        """
        require_both_modes(before, "quantize, batch_norm=TrainBatchNorm()")
        return trained_batch_norms(folded, before)


def require_no_trained_steps(folded: fx.GraphModule, before: fx.GraphModule, target: Target) -> None:
    """Raise if a step that a fusion of the target folds has parameters that train.

    Raises:
        SpecError: names the op.
    """
    names, context = {n.name for n in folded.graph.nodes}, Context(before, target.ops)
    steps = [step for fusion in target.fusions for step in fusion.then if step.fold is not None]
    constant = computable(before.graph) if steps else set()
    for node in before.graph.nodes if steps else ():
        step = None if node.name in names else next((s for s in steps if matches(s.op, node, context)), None)
        if step is None or not any(p.requires_grad for p in _parameters(before, node, constant)):
            continue
        where = f"quantize, batch_norm=TrainBatchNorm(), op {context.fact(node).path!r}"
        found = f"parameters that train, which {getattr(step.fold, '__name__', step.fold)} folds for good"
        wanted = "a step without parameters that train"
        do = (
            "Use batch_norm=qfunc.FoldBatchNorm(), with which the folded weight and bias train, "
            "or call .requires_grad_(False) on the parameters."
        )
        raise SpecError(where=where, found=found, wanted=wanted, do=do)


def _parameters(network: fx.GraphModule, node: fx.Node, constant: set[fx.Node]) -> list[torch.Tensor]:
    # The parameters of a node's module, and the tensors from which its constants are computed.
    found: list[torch.Tensor] = list(network.get_submodule(str(node.target)).parameters()) if node.op == "call_module" else []
    pending = [n for n in node.all_input_nodes if n in constant]
    while pending:
        current = pending.pop()
        pending += current.all_input_nodes
        found += [read_attr(network, current)] if current.op == "get_attr" else []
    return found


def require_batch_norm(value: Any) -> None:
    """Raise if a value is neither FoldBatchNorm nor TrainBatchNorm.

    Raises:
        SpecError: it is neither.
    """
    if not isinstance(value, FoldBatchNorm | TrainBatchNorm):
        found = value.__name__ if isinstance(value, type) else repr(value)
        wanted, do = "qfunc.FoldBatchNorm() or qfunc.TrainBatchNorm()", "Write batch_norm=qfunc.TrainBatchNorm()."
        raise SpecError(where="quantize, batch_norm", found=found, wanted=wanted, do=do)


def warn_of_folded(model: Any, simulated: nn.Module) -> None:
    """Warn if BatchNorms of a float model that are in training mode are folded in its simulation."""
    kept = {path for path, m in simulated.named_modules() if isinstance(m, _NORMS)}
    modules = unwrap(model).named_modules() if isinstance(model, nn.Module) else ()
    folded = [path for path, m in modules if isinstance(m, _NORMS) and m.training and m.running_mean is not None]
    if folded := [path for path in folded if path not in kept]:
        more = f" and {len(folded) - 1} more" if len(folded) > 1 else ""
        warn_caller(
            f"quantize: found BatchNorms in training mode ({folded[0]!r}{more}), which are folded and no longer train, wanted "
            "BatchNorms in evaluation mode. Call model.eval() first, or train them with batch_norm=qfunc.TrainBatchNorm()."
        )


def freeze_batch_norm(model: nn.Module, after: int = 0, optimizer: Optimizer | None = None) -> nn.Module:
    """Make BatchNorms that train normalise by their running statistics, from now on or after some steps.

    This is what `.eval()` of a BatchNorm of torch.nn does, but a later `.train()` of the model keeps them frozen.  Their
    statistics are no longer updated, while gamma and beta still train.  The state_dict stores which BatchNorms are
    frozen.  A model that loads it continues with the same bits, whether this function is called before
    `load_state_dict` or after it.

    Args:
        model: From `quantize(target, batch_norm=TrainBatchNorm())`; it is changed, as by an optimizer.
        after: The number of batches, since the model was quantized, after which a BatchNorm freezes.  The state_dict
            stores the count, so a resumed run continues it.  A number above 0 is checked after each step of `optimizer`
            and when a state_dict is loaded: an earlier state unfreezes BatchNorms that froze later.
        optimizer: Any optimizer; required if `after` is above 0.
    Returns:
        The model.
    Raises:
        CalibrationError: no BatchNorm of the model trains, or one trains that quantize did not create.
        SpecError: `after` without an optimizer.

    >>> import qfunc
    >>> net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))
    >>> quantized = qfunc.quantize(qfunc.targets.onnxruntime, batch_norm=TrainBatchNorm())(net)
    >>> freeze_batch_norm(quantized).get_submodule("1").frozen
    True
    """
    norms = trained_norms(model)
    if not norms:
        do = (
            "Quantize with batch_norm=qfunc.TrainBatchNorm(). It still folds BatchNorms that are not the only reader of a "
            "conv or linear; reconstruct, correct_bias and fold_batch_norm fold all."
        )
        raise CalibrationError(where="freeze_batch_norm", found="no BatchNorm that trains", wanted="at least one", do=do)
    foreign = next((type(n).__name__ for n in norms if not hasattr(n, "first_batch")), None)
    if foreign is not None:
        do = "Convert the float model, nn.SyncBatchNorm.convert_sync_batchnorm(model), before it is quantized."
        raise CalibrationError(
            where="freeze_batch_norm", found=f"a {foreign}", wanted="only BatchNorms that quantize created", do=do
        )
    if type(after) is not int or after < 0 or (after > 0) != (optimizer is not None):
        found, do = f"after={after!r}, optimizer={type(optimizer).__name__}", "Write freeze_batch_norm(model, 1000, optimizer)."
        raise SpecError(
            where="freeze_batch_norm", found=found, wanted="a number of batches and an optimizer, or neither", do=do
        )

    def freeze_all(*_: Any) -> None:
        for norm in norms:
            freeze(norm, after)

    freeze_all()
    if optimizer is not None:
        optimizer.register_step_post_hook(freeze_all)
    return model


def fold_batch_norm() -> Callable[[fx.GraphModule], fx.GraphModule]:
    """Return a transform of a quantized model that folds BatchNorms, trained with `TrainBatchNorm`, into the weights.

    The result computes the same bits as the model in evaluation; a model without such BatchNorms is copied.

    Raises:
        CalibrationError: the model is not quantized.

    >>> import qfunc
    >>> net = nn.Sequential(nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4))
    >>> quantized = qfunc.quantize(qfunc.targets.onnxruntime, batch_norm=TrainBatchNorm())(net)
    >>> [name for name, _ in fold_batch_norm()(quantized).named_parameters()]
    ['0.weight', '0.bias']
    """
    return Transform(fold_batch_norm, {}, _folded)


def _folded(model: fx.GraphModule) -> fx.GraphModule:
    require_stage(model, "quantized", "fold_batch_norm")
    with torch.inference_mode(False):
        folded = evaluation_form(model)
        if folded is model:
            return copy.deepcopy(model)
        result = copy_user_attributes(copy.deepcopy(folded), model)
        for quantizer in find_quantizers(result):
            if quantizer.module.norm:
                quantizer.module.stop_following()
        return result

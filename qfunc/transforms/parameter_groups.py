"""The parameters that quantizers learn: in groups for an optimizer, and as modules for FSDP."""

from __future__ import annotations

from typing import Any

from torch import fx, nn

from qfunc.errors import CalibrationError, SpecError, a_or_an
from qfunc.execution.batches import warn_caller
from qfunc.graph.evaluation_form import trained_norms
from qfunc.graph.record import record_of
from qfunc.quantizers.fake_quantize import FakeQuantize


def parameter_groups(
    model: nn.Module, *, lr: float, weight_decay: float = 0.0, quantizer_lr: float | None = None
) -> list[dict[str, Any]]:
    """Return two groups for a torch.optim optimizer: the network's parameters, and the quantizers' without weight decay.

    Weight decay would pull a scale, a threshold or a bound towards 0, which is not a sensible prior.  A parameter that
    tied quantizers share appears once.  If the quantizers have no parameters (`recipes.dorefa()`), there is one group.

    If BatchNorms are folded, training usually diverges at the learning rates of the float network. One warning names the
    cure.

    Args:
        model: A quantized model, or a module with quantized submodules.
        lr: Learning rate of weights, biases and BatchNorms.
        weight_decay: Weight decay of the same parameters.  PACT decays its bounds, too: set the second group's
            "weight_decay" for it.
        quantizer_lr: Learning rate of the quantizers' parameters; None for `lr`.
    Raises:
        CalibrationError: nothing in the model is quantized.
        SpecError: a rate or decay is negative or not a number.

    >>> import qfunc
    >>> from qfunc import recipes, targets
    >>> quantized = qfunc.quantize(recipes.lsq()(targets.onnxruntime))(nn.Linear(3, 2))
    >>> [(len(g["params"]), g["lr"], g["weight_decay"]) for g in parameter_groups(quantized, lr=0.1, weight_decay=1e-4)]
    [(2, 0.1, 0.0001), (2, 0.1, 0.0)]
    """
    given = {"lr": lr, "weight_decay": weight_decay, "quantizer_lr": lr if quantizer_lr is None else quantizer_lr}
    for name, value in given.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
            where = f"parameter_groups, {name}"
            raise SpecError(where=where, found=repr(value), wanted="a non-negative finite number", do="Pass such a number.")
    learned = {id(p): p for m in _quantizers(model, "parameter_groups") for p in m.parameters()}
    if (text := _folded_norms(model)) is not None:
        warn_caller(text)
    rest = [p for p in model.parameters() if id(p) not in learned]
    network = {"params": rest, "lr": lr, "weight_decay": weight_decay}
    if not learned:
        return [network]
    return [network, {"params": list(learned.values()), "lr": given["quantizer_lr"], "weight_decay": 0.0}]


def learned_quantizers(model: nn.Module) -> list[nn.Module]:
    """Return the quantizers of a quantized model that have parameters, in order: a group for `fully_shard`.

    All parameters of a group of `torch.distributed.fsdp.fully_shard` have one dtype, and the `param_dtype` of a
    `MixedPrecisionPolicy` rounds all of them. The scales of quantizers are float32, and stay so in a group of their own.

    Raises:
        CalibrationError: nothing in the model is quantized.

    >>> import qfunc
    >>> from qfunc import recipes, targets
    >>> quantized = qfunc.quantize(recipes.lsq()(targets.onnxruntime))(nn.Linear(3, 2))
    >>> [q.site.name for q in learned_quantizers(quantized)]
    ['weight', 'linear']
    """
    return [q for q in _quantizers(model, "learned_quantizers") if any(True for _ in q.parameters())]


def _quantizers(model: nn.Module, step: str) -> list[FakeQuantize]:
    quantizers = [m for m in model.modules() if isinstance(m, FakeQuantize)]
    if not quantizers:
        do = "Quantize it first, and pass the quantized model; or pass model.parameters() to the optimizer."
        found = f"{a_or_an(type(model))} without quantizers"
        raise CalibrationError(where=step, found=found, wanted="a quantized model", do=do)
    return quantizers


def _folded_norms(model: nn.Module) -> str | None:
    # Return a warning about a model that has folded BatchNorms and none that trains, or None.
    records = (record_of(graph) for graph in model.modules() if isinstance(graph, fx.GraphModule))
    count = sum(record.folded for record in records if record is not None)
    if not count or trained_norms(model):
        return None
    return (
        f"parameter_groups: found {count} folded BatchNorm{'s' * (count > 1)}, wanted BatchNorms that train, without which "
        "training usually diverges at the learning rates of the float network. Write qfunc.quantize(target, "
        "batch_norm=qfunc.TrainBatchNorm())(model), for few bits with qfunc.recipes.lsq()(target), or use small rates."
    )

"""parameter_groups: parameter groups of a quantized model for an optimizer."""

from __future__ import annotations

from typing import Any

from torch import fx, nn

from qfunc.errors import CalibrationError, SpecError, a_or_an
from qfunc.execution.batches import warn_caller
from qfunc.graph.record import record_of
from qfunc.quantizers.fake_quantize import FakeQuantize
from qfunc.specs import Int


def parameter_groups(
    model: nn.Module, *, lr: float, weight_decay: float = 0.0, quantizer_lr: float | None = None
) -> list[dict[str, Any]]:
    """Return two groups for a torch.optim optimizer: the network's parameters, and the quantizers' without weight decay.

    Weight decay would pull a scale, a threshold or a bound towards 0, which is not a sensible prior.  A parameter that
    tied quantizers share appears once.  If the quantizers have no parameters (`recipes.dorefa()`), there is one group.

    With codes of 4 bits or fewer and BatchNorms that are folded, training usually diverges at the learning rates of the
    float network. One warning names the cure.

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
    quantizers = [m for m in model.modules() if isinstance(m, FakeQuantize)]
    learned = {id(p): p for m in quantizers for p in m.parameters()}
    if not quantizers:
        do = "Quantize it first, and pass the quantized model; or pass model.parameters() to the optimizer."
        found = f"{a_or_an(type(model))} without quantizers"
        raise CalibrationError(where="parameter_groups", found=found, wanted="a quantized model", do=do)
    if (text := _few_bits_without_norms(model)) is not None:
        warn_caller(text)
    rest = [p for p in model.parameters() if id(p) not in learned]
    network = {"params": rest, "lr": lr, "weight_decay": weight_decay}
    if not learned:
        return [network]
    return [network, {"params": list(learned.values()), "lr": given["quantizer_lr"], "weight_decay": 0.0}]


_FEW = 4


def _few_bits_without_norms(model: nn.Module) -> str | None:
    # Return a warning about a model with few bits whose BatchNorms do not train.
    for graph in model.modules():
        record = record_of(graph) if isinstance(graph, fx.GraphModule) else None
        if record is None or not record.folded:
            continue
        formats = [m.site.scheme.format for m in graph.modules() if isinstance(m, FakeQuantize)]
        bits = min((f.bits for f in formats if isinstance(f, Int)), default=_FEW + 1)
        if bits <= _FEW:
            norms = f"{record.folded} folded BatchNorm{'s' * (record.folded > 1)}"
            return (
                f"parameter_groups: found codes of {bits} bits and {norms}, wanted BatchNorms that train, without which "
                "training usually diverges. Write qfunc.quantize(recipes.lsq()(target), "
                "batch_norm=qfunc.TrainBatchNorm())(model), or keep the learning rates small."
            )
    return None


__all__ = ["parameter_groups"]

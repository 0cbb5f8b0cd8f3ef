"""Warn of weights that are 0 everywhere, as the last layer of an adapter: their values do not show a scale."""

from __future__ import annotations

from torch import Tensor, fx, nn

from qfunc.execution.batches import warn_caller
from qfunc.graph.constants import read_attr
from qfunc.graph.submodules import require_submodules
from qfunc.graph.view import QuantizedModel
from qfunc.specs import Scheme


def warn_of_zero_weights(simulated: nn.Module) -> None:
    """Warn once if weights that train are 0 everywhere, so that their scale is the one of the range [0, 0]."""
    parts = require_submodules(simulated, "quantized", "quantize").values()
    found = [text for part in parts for text in _zero_weights(part)]
    if found:
        more = f" and {len(found) - 1} more" if len(found) > 1 else ""
        warn_caller(
            f"quantize: found weights of zeros only ({found[0]}{more}), wanted values that show the scale that training needs. "
            "Train the float model first; or initialize them, by torch.nn.init.normal_(weight, std=0.1) for instance, and "
            "write qfunc.quantize(qfunc.recipes.lsq()(target))."
        )


def _zero_weights(model: fx.GraphModule) -> list[str]:
    # The names and scales of such weights; the quantized values of a BatchNorm that trains follow another weight.
    found = []
    for quantizer in QuantizedModel(model).quantizers:
        module, (node,) = quantizer.module, model.graph.find_nodes(op="call_module", target=quantizer.path)
        source = node.all_input_nodes[0] if node.all_input_nodes else node
        if module.site.slot != "weight" or not isinstance(module.site.value, Scheme) or source.op != "get_attr":
            continue
        value = read_attr(model, source)
        if value.requires_grad and not value.is_meta and value.numel() and _is_zero(value.detach()):
            found.append(f"{module.site.name!r}, with scale {float(module.qparams().scale.max()):g}")
    return found


def _is_zero(value: Tensor) -> bool:
    start = value.flatten()[:1024]  # a short look at most weights
    return not bool(start.any()) and not bool(value.any())

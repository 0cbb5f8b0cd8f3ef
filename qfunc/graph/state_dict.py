"""What a state_dict tells of the model that it is of, and what the model into which it is loaded says where it differs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, fx

from qfunc.quantizers.fake_quantize import FakeQuantize

_KEY = "qfunc"
"""Where in a state_dict's metadata the quantizers are told."""


def write_metadata(model: Any, state: Any, prefix: str, metadata: dict[str, Any]) -> None:
    """Writes into the metadata of a state_dict what quantizes each tensor; a hook of `register_state_dict_post_hook`."""
    metadata[_KEY] = {path: _made_by(module) for path, module in _quantizers(model).items()}


def mismatches(model: fx.GraphModule, state: Mapping[str, Any], prefix: str, metadata: Mapping[str, Any]) -> list[str]:
    """What is to be said of a state_dict that loads into a quantized model, or not, and means something else.

    Args:
        state: Of the model or of one around it.
        prefix: Of the model's keys.
        metadata: The model's, of the state_dict; a plain dict of tensors has none, and is not asked how it was quantized.
    """
    return [*_norms(model, state, prefix), *_lost(model, state, prefix), *_made_otherwise(model, metadata.get(_KEY, {}))]


def _norms(model: fx.GraphModule, state: Mapping[str, Any], prefix: str) -> list[str]:
    own = [path for path, module in model.named_modules() if {"first_batch", "stands"} <= module._buffers.keys()]
    ends = (k.removesuffix(".stands") for k in state if k.startswith(prefix) and k.endswith(".stands"))
    given = [k.removeprefix(prefix) for k in ends if f"{k}.first_batch" in state]
    quantized = any(k.startswith(f"{prefix}quantizers.") for k in state)
    if given and not own:
        do = "Quantize with batch_norm=qfunc.TrainBatchNorm(), load the state, and fold it: qfunc.fold_batch_norm(model)."
        return [f"found a state whose BatchNorms train ({_listed(given)}), wanted one where they are folded. {do}"]
    if own and not given and quantized:
        do = "Quantize with batch_norm=qfunc.FoldBatchNorm(), as the model that the state is of."
        return [f"found a state whose BatchNorms are folded, wanted one where they train ({_listed(own)}). {do}"]
    return []


def _lost(model: fx.GraphModule, state: Mapping[str, Any], prefix: str) -> list[str]:
    lost = []
    for path, module in _quantizers(model).items():
        tensors = [state.get(f"{prefix}{path}.{name}") for name in (*module._parameters, *module._buffers)]
        if module.ready and any(isinstance(t, Tensor) and bool(t.isnan().any()) for t in tensors):
            lost.append(module.site.name)
    do = "Load the state of a calibrated model, or calibrate again."
    text = f"found a state without the qparams of {_listed(lost)}, which this model had, wanted one with qparams. {do}"
    return [text] if lost else []


def _made_otherwise(model: fx.GraphModule, told: Mapping[str, str]) -> list[str]:
    other = {m.site.name: path for path, m in _quantizers(model).items() if told.get(path, _made_by(m)) != _made_by(m)}
    if not other:
        return []
    path = next(iter(other.values()))
    found, wanted = told[path], _made_by(_quantizers(model)[path])
    do = "Quantize with the target that the state was made with; else values and training may differ."
    return [f"found a state of {found}, wanted one of {wanted} ({_listed(list(other))}). {do}"]


def _quantizers(model: fx.GraphModule) -> dict[str, FakeQuantize]:
    return {path: m for path, m in model.named_modules(remove_duplicate=False) if isinstance(m, FakeQuantize)}


def _made_by(module: FakeQuantize) -> str:
    # By the names of classes: the numbers of a function may change between runs, the arithmetic does not.
    names, function = [], module.site.function
    while function is not None:
        names.append(type(function).__name__)
        function = getattr(function, "inner", None)  # type: ignore[assignment]
    return f"{' of '.join(names)} in {module.site.scheme.format!r}"


def _listed(names: list[str]) -> str:
    rest = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(map(repr, names[:3])) + rest


__all__ = ["write_metadata", "mismatches"]

"""Metadata in a state_dict that identifies its model, warnings when another model loads it, and a load in linear time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, fx, nn

from qfunc.quantizers.fake_quantize import FakeQuantize

_KEY = "qfunc"
"""The key of the quantizers in a state_dict's metadata."""


def write_metadata(model: Any, state: Any, prefix: str, metadata: dict[str, Any]) -> None:
    """Record the quantizer of each tensor in the metadata of a state_dict; a hook for `register_state_dict_post_hook`."""
    metadata[_KEY] = {path: _description(module) for path, module in _quantizers(model).items()}


def mismatches(model: fx.GraphModule, state: Mapping[str, Any], prefix: str, metadata: Mapping[str, Any]) -> list[str]:
    """Return the warnings for a state_dict that was saved from a model with other quantizers or BatchNorms.

    Args:
        model: The model that loads the state_dict.
        state: The state_dict of the model or of an outer module.
        prefix: The prefix of the model's keys.
        metadata: The model's metadata in the state_dict; a plain dict of tensors has none, and quantizers are not compared.
    """
    return [
        *_batch_norm_mismatches(model, state, prefix),
        *_missing_qparams(model, state, prefix),
        *_quantizer_mismatches(model, saved if isinstance(saved := metadata.get(_KEY), dict) else {}),
    ]


def load_state(model: nn.Module, state: Mapping[str, Tensor], prefix: str = "") -> None:
    """Load a state_dict as `load_state_dict` does, in time proportional to its tensors: torch filters them for each child.

    Raises:
        RuntimeError: a tensor is missing, left over or of another shape.
    """
    problems: list[str] = []
    _load_into(model, dict(state), prefix, problems)
    if problems:
        raise RuntimeError(f"load_state_dict: {'; '.join(problems)}")


def _load_into(module: nn.Module, state: dict[str, Any], prefix: str, problems: list[str]) -> None:
    missing: list[str] = []
    unexpected: list[str] = []
    module._load_from_state_dict(state, prefix, {}, True, missing, unexpected, problems)
    problems += [f"{key} is missing" for key in missing] + [f"{key} is left over" for key in unexpected]
    of_child: dict[str, dict[str, Any]] = {}
    for key, tensor in state.items():
        of_child.setdefault(key[len(prefix) :].partition(".")[0], {})[key] = tensor
    for name, child in module._modules.items():
        if child is not None:
            _load_into(child, of_child.get(name, {}), f"{prefix}{name}.", problems)


def _batch_norm_mismatches(model: fx.GraphModule, state: Mapping[str, Any], prefix: str) -> list[str]:
    in_model = [path for path, module in model.named_modules() if {"first_batch", "is_frozen"} <= module._buffers.keys()]
    ends = (k.removesuffix(".is_frozen") for k in state if k.startswith(prefix) and k.endswith(".is_frozen"))
    in_state = [k.removeprefix(prefix) for k in ends if f"{k}.first_batch" in state]
    quantized = any(k.startswith(f"{prefix}quantizers.") for k in state)
    if in_state and not in_model:
        do = "Quantize with batch_norm=qfunc.TrainBatchNorm(), load the state, and fold it: qfunc.fold_batch_norm()(model)."
        return [f"found a state with BatchNorms that train ({_listed(in_state)}), wanted one with folded BatchNorms. {do}"]
    if in_model and not in_state and quantized:
        do = "Quantize with batch_norm=qfunc.FoldBatchNorm(), as the saved model was."
        return [f"found a state with folded BatchNorms, wanted one with BatchNorms that train ({_listed(in_model)}). {do}"]
    return []


def _missing_qparams(model: fx.GraphModule, state: Mapping[str, Any], prefix: str) -> list[str]:
    sites = []
    for path, module in _quantizers(model).items():
        tensors = [state.get(f"{prefix}{path}.{name}") for name in (*module._parameters, *module._buffers)]
        if module.ready and any(isinstance(t, Tensor) and bool(t.isnan().any()) for t in tensors):
            sites.append(module.site.name)
    do = "Load the state of a calibrated model, or calibrate again."
    text = f"found a state without the qparams of {_listed(sites)}, which this model had, wanted one with qparams. {do}"
    return [text] if sites else []


def _quantizer_mismatches(model: fx.GraphModule, saved: Mapping[str, str]) -> list[str]:
    different = {
        m.site.name: path for path, m in _quantizers(model).items() if saved.get(path, _description(m)) != _description(m)
    }
    if not different:
        return []
    path = next(iter(different.values()))
    found, wanted = saved[path], _description(_quantizers(model)[path])
    do = "Quantize with the target of the saved model; otherwise values and training may differ."
    return [f"found a state of {found}, wanted one of {wanted} ({_listed(list(different))}). {do}"]


def _quantizers(model: fx.GraphModule) -> dict[str, FakeQuantize]:
    return {path: m for path, m in model.named_modules(remove_duplicate=False) if isinstance(m, FakeQuantize)}


def _description(module: FakeQuantize) -> str:
    # Compare class names only: the parameters of a function may change between runs, the arithmetic does not.
    names, function = [], module.site.function
    while function is not None:
        names.append(type(function).__name__)
        function = getattr(function, "inner", None)  # type: ignore[assignment]
    return f"{' of '.join(names)} in {module.site.scheme.format!r}"


def _listed(names: list[str]) -> str:
    rest = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(map(repr, names[:3])) + rest

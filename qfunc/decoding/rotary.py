"""Rotary embeddings of `transformers` whose frequencies depend on the number of tokens, with the frequencies of short texts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import nn

from qfunc.errors import CaptureError


def with_fixed_frequencies(model: nn.Module, length: int, where: str) -> nn.Module:
    """Return the model, in which no frequency of a rotary embedding depends on positions; it takes the place of its argument.

    The scalings "longrope" and "dynamic" have one set of frequencies up to L tokens, and others if the largest position of any
    row is L or more.  The first set is kept for a cache of `length` <= L tokens.  A longer cache would hold keys of both sets,
    and a row would depend on the rows beside it.

    Args:
        model: A model that the caller owns.
        length: The number of tokens that the cache holds.
        where: The step, for the message.
    Raises:
        CaptureError: the length is above L.
    Source: transformers 5.23, modeling_rope_utils.py, dynamic_rope_update.
    """
    for path, module in model.named_modules():
        for layers, kind in _scalings(module):
            limit = _limit(module, layers, kind)
            if length > limit:
                found = f"a length of {length} with the rotary scaling {kind!r} in {path!r}, whose frequencies change there"
                do = f"Write qfunc.decoder({limit})(model)."
                raise CaptureError(where=where, found=found, wanted=f"at most {limit}", do=do)
            _fix(module, layers)
    return model


def _fix(module: Any, layers: str) -> None:
    prefix = f"{layers}_" if layers else ""
    setattr(module, f"{prefix}inv_freq", getattr(module, f"{prefix}original_inv_freq").clone())
    module.rope_type = {**module.rope_type, layers: "default"} if layers else "default"


def _scalings(module: Any) -> Iterator[tuple[str, str]]:
    # (type of layers, scaling): one for all layers, whose type is "", or one for each type.
    found = getattr(module, "rope_type", None)
    kinds = {"": found} if isinstance(found, str) else dict(found) if isinstance(found, dict) else {}
    for layers, kind in kinds.items():
        if (kind == "longrope" or "dynamic" in kind) and hasattr(module, f"{layers}_original_inv_freq".removeprefix("_")):
            yield layers, kind


def _limit(module: Any, layers: str, kind: str) -> int:
    if kind != "longrope":
        return int(module.original_max_seq_len)
    parameters = module.config.rope_parameters
    return int((parameters[layers] if layers else parameters)["original_max_position_embeddings"])

"""Arguments of a call: their tensors, and the form around them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from attrs import frozen
from torch import Tensor

from qfunc.errors import CaptureError, a_or_an


@frozen
class Slot:
    """The place of a tensor in a form."""

    index: int


def form_of(value: Any, tensors: list[Tensor], where: str) -> Any:
    """Return a value with slots in the places of its tensors, which are added to a list, each once.

    Raises:
        CaptureError: a value that is no tensor, number, text or None, or a container of them.

    >>> form_of((1, {"x": None}), [], "here")
    (1, {'x': None})
    """
    if isinstance(value, Tensor):
        found = next((i for i, t in enumerate(tensors) if t is value), None)
        if found is None:
            tensors.append(value)
        return Slot(len(tensors) - 1 if found is None else found)
    if isinstance(value, dict):
        return {key: form_of(entry, tensors, where) for key, entry in value.items()}
    if isinstance(value, tuple | list):
        return tuple(form_of(entry, tensors, where) for entry in value)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    do = "Build the model without a cache: config.use_cache = False."
    raise CaptureError(where=where, found=a_or_an(type(value)), wanted="tensors, numbers and None", do=do)


def fill_slots(form: Any, tensors: Sequence[Tensor]) -> Any:
    """Return the value of a form.

    >>> fill_slots((Slot(0), 1), ["x"])
    ('x', 1)
    """
    if isinstance(form, Slot):
        return tensors[form.index]
    if isinstance(form, dict):
        return {key: fill_slots(entry, tensors) for key, entry in form.items()}
    return tuple(fill_slots(entry, tensors) for entry in form) if isinstance(form, tuple) else form

"""The record of an op: its kind, callable, signature, spellings, slots, traits, an example and its ONNX text."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from inspect import Parameter, Signature
from types import MappingProxyType
from typing import Any

from attrs import field, frozen
from torch import Tensor

from qfunc.ops.traits import NONE, Trait

EMPTY = Parameter.empty

Call = tuple[Callable[..., Any], tuple[Any, ...]]
"""A canonical callable and all its arguments by position."""


@frozen
class Op:
    """One canonical op.  After capture it is a `call_function` of `call`, every parameter given by position.

    Attributes:
        kind: The name by which selectors and tables refer to it.  Several records may share a kind.
        call: The canonical callable.
        signature: Its parameters with their defaults.
        spellings: Short names of functions, methods and aten ops whose arguments bind as they are.
        rewrites: Short names whose arguments need code: name -> function of (record, args, kwargs).
        ignored: Arguments after the canonical ones that select an implementation or write in place.
        inplace_at: Spelling -> position of the argument `inplace`.
        slots: Parameter -> "input", "weight", "bias"; or "operand", which is a weight if it is constant, else an input.
        weight_axis: The axis of the weight that runs over output channels.
        spatial: The number of axes along which the op slides, or None.
        results: The number of results; None if it depends on the arguments.
        neutral: The number y for which op(x, y) = x, or None.
        traits: Properties that it has for all arguments.
        example: One call, a function of a tensor of shape [2, 3, 5, 6].
        onnx: Its ONNX text (`qfunc.lowering.onnx.formula`); None if a function of qfunc.lowering.onnx writes it.
    """

    kind: str
    call: Callable[..., Any]
    signature: Signature
    spellings: tuple[str, ...] = ()
    rewrites: Mapping[str, Rewrite] = field(factory=dict, hash=False)
    ignored: tuple[str, ...] = ()
    inplace_at: Mapping[str, int] = field(factory=dict, hash=False)
    slots: Mapping[str, str] = field(factory=dict, hash=False)
    weight_axis: int = 0
    spatial: int | None = None
    results: int | None = 1
    neutral: float | None = None
    traits: Trait = NONE
    example: Callable[[Tensor], Any] | None = None
    onnx: str | None = None

    parameters: tuple[str, ...] = field(init=False, eq=False, repr=False)
    """The canonical parameter names, in order."""

    def __attrs_post_init__(self) -> None:
        object.__setattr__(self, "parameters", tuple(self.signature.parameters))

    @property
    def names(self) -> tuple[str, ...]:
        """All short names that spell it."""
        return (*self.spellings, *self.rewrites)


Rewrite = Callable[[Op, tuple[Any, ...], dict[str, Any]], Call | None]
"""(record, args, kwargs of a spelling) -> the canonical call, or None; it may change the dict."""

_SLOTS = {
    **dict.fromkeys(("input", "other", "tensors", "query", "key", "value"), "input"),
    **dict.fromkeys(("weight", "weight_ih", "weight_hh"), "weight"),
    "bias": "bias",
}


def op(
    kind: str,
    call: Callable[..., Any],
    parameters: str,
    *spellings: str,
    rewrites: Mapping[str, Rewrite] | None = None,
    ignored: tuple[str, ...] = (),
    inplace_at: Mapping[str, int] | None = None,
    slots: Mapping[str, str] | None = None,
    weight_axis: int = 0,
    spatial: int | None = None,
    results: int | None = 1,
    neutral: float | None = None,
    traits: Trait = NONE,
    example: Callable[[Tensor], Any] | None = None,
    onnx: str | None = None,
) -> Op:
    """Return a record from its text form, "input negative_slope=0.01"; slots follow from parameter names unless given.

    >>> op("leaky_relu", len, "input negative_slope=0.01", "leaky_relu", ignored=("inplace",)).inplace_at["leaky_relu"]
    2
    """
    listed = []
    for word in parameters.split():
        name, given, default = word.partition("=")
        value = ast.literal_eval(default) if given else EMPTY
        listed.append(Parameter(name, Parameter.POSITIONAL_OR_KEYWORD, default=value))
    signature = Signature(listed)
    positions = dict.fromkeys(spellings, len(listed)) if "inplace" in ignored else {}
    if slots is None:
        slots = {name: _SLOTS[name] for name in signature.parameters if name in _SLOTS}
    return Op(
        kind,
        call,
        signature,
        spellings,
        MappingProxyType(dict(rewrites or {})),
        ignored,
        MappingProxyType({**positions, **(inplace_at or {})}),
        MappingProxyType(dict(slots)),
        weight_axis,
        spatial,
        results,
        neutral,
        traits,
        example or call,
        onnx,
    )


__all__ = ["EMPTY", "NONE", "Call", "Op", "Rewrite", "Trait", "op"]

"""The error for a tensor that two rules quantize in two formats, with the edits that give all its ops one scheme."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from qfunc.errors import SpecError
from qfunc.specs import FixedQParams, Format


def format_of(value: Any) -> Format:
    """Return the format of the codes that a rule requires, by a scheme or by fixed qparams.

    >>> from qfunc.specs import Int, Scheme
    >>> format_of(FixedQParams(Scheme(Int(16)), 1.0))
    Int(16)
    """
    return value.scheme.format if isinstance(value, FixedQParams) else value.format


def conflict_error(
    where: str, producer: tuple[str, int, Any], reader: tuple[str, int, Any], readers: Mapping[str, Any]
) -> SpecError:
    """Return the error for a producer and a reader whose rules require different formats.

    The earlier rule has its way, because edits put their rules in front.

    Args:
        where: The target and the tensor.
        producer, reader: The path of the op, the index of its rule and the value that the rule requires.
        readers: The values that the rules of all readers require, by the path of the op.

    >>> from qfunc.specs import Int, Scheme
    >>> byte, word = Scheme(Int(8)), Scheme(Int(16))
    >>> conflict_error("tensor 'a'", ("a", 1, byte), ("b", 0, word), {"b": word, "c": byte}).do
    "Use edit.outputs(edit.name('a'), Scheme(Int(16))) and edit.inputs(edit.name('c'), Scheme(Int(16)))."
    """
    value = min(producer, reader, key=lambda end: end[1])[2]
    edits = [] if value is producer[2] else [f"edit.outputs(edit.name({producer[0]!r}), {value!r})"]
    edits += [
        f"edit.inputs(edit.name({path!r}), {value!r})" for path, read in readers.items() if format_of(read) != format_of(value)
    ]
    return SpecError(
        where=where,
        found=f"{format_of(producer[2])} by its producer's rule and {format_of(reader[2])} by the rule of {reader[0]!r}",
        wanted="one format, because no tensor has two quantizers in series",
        do=f"Use {' and '.join(edits)}.",
    )

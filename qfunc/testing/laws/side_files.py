"""The law of side files: the qparams in an artifact's side files are those of its tensors."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from qfunc.graph.sites import quantizer_nodes
from qfunc.lowering.artifact import REPORT
from qfunc.specs import Log
from qfunc.testing.pipeline import Pipeline

SIDE = (".json", ".txt", ".scale")
"""The suffixes of files with qparams."""

_SEPARATOR = re.compile(r"[\s,;=]+|:\s+")


def side_files_hold_the_qparams(trial: Pipeline) -> None:
    """Check that each entry of a side file under an activation's name agrees with the activation's qparams.

    An entry is the value of a JSON object's key, an object with a "name", or a row of a text (`text_rows`).
    One of its numbers must equal, up to 2^-20, the scale of the activation or of an input of the node with this name, or
    the scale times one of: the smallest or largest code, with or without the zero point; the number of steps or codes,
    or half of it.  For logarithms it may be the largest magnitude.
    """
    if trial.artifact is None:
        return
    expected = _expected_numbers(trial)
    reads = dict(_reads(trial))
    for file, content in trial.artifact.files.items():
        if file == REPORT or not file.endswith(SIDE):
            continue
        entries = _entries(json.loads(content)) if file.endswith(".json") else text_rows(content.decode())
        for name, value in entries:
            numbers = [abs(v) for v in _numbers(value) if v]
            if name not in expected or not numbers:
                continue
            wanted = [v for n in (name, *reads.get(name, ())) for v in expected.get(n, ())]
            near = any(abs(v - w) <= 2**-20 * w for v in numbers for w in wanted)
            assert near, f"{file!r} has {numbers[:4]} for {name!r}, whose scale is {expected[name][0]:.9g}"


def _expected_numbers(trial: Pipeline) -> dict[str, tuple[float, ...]]:
    # Tensor -> the numbers that can express its qparams, the scale first.
    assert trial.artifact is not None
    formats = {s.module.site.name: s.module.site.scheme.format for s in quantizer_nodes(trial.calibrated)}
    numbers: dict[str, tuple[float, ...]] = {}
    for site in trial.artifact.report["tensors"]:
        if site["role"] != "activation" or len(site["scale"]) != 1:
            continue
        (scale,), (zero,), low, high = site["scale"], site["zero_point"], site["low"], site["high"]
        fmt: Any = formats.get(site["name"])
        if isinstance(fmt, Log):
            factors = [1.0, 2.0 ** (((1 << fmt.magnitude_bits) - 1) / fmt.steps_per_octave)]
        else:
            whole = high - low
            factors = [1, high, low, high - zero, low - zero, whole, whole + 1, whole / 2, (whole + 1) / 2]
        numbers |= dict.fromkeys(site["tensors"], tuple(scale * abs(f) for f in factors if f))
    return numbers


def _reads(trial: Pipeline) -> Iterator[tuple[str, list[str]]]:
    # onnx is imported lazily.
    import onnx

    assert trial.artifact is not None
    for file, content in trial.artifact.files.items():
        if file.endswith(".onnx"):
            yield from ((n.name, list(n.input)) for n in onnx.load_from_string(content).graph.node)


def _entries(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        yield from value.items()
        for entry in value.values():
            yield from _entries(entry)
    elif isinstance(value, list):
        for entry in value:
            if isinstance(entry, dict) and isinstance(entry.get("name"), str):
                yield entry["name"], entry
            yield from _entries(entry)


def text_rows(text: str) -> Iterator[tuple[str, list[float]]]:
    """Yield the rows of a text as (name, numbers); comments, titles and sentences are not rows.

    After its name a row has only numbers, each with at most one word before it: "conv 0.5 0", "conv: scale=0.5".

    >>> list(text_rows("# of qfunc\\nname, scale\\nconv, 0.5\\nadd: scale=2 zero=-1\\nThe model has 3 outputs."))
    [('conv', [0.5]), ('add', [2.0, -1.0])]
    """
    for line in text.splitlines():
        name, *words = _SEPARATOR.split(line.strip())
        values = [_number(word) for word in words]
        named = all(v is not None or w is not None for v, w in pairwise(values))
        if name and not name.startswith("#") and named and values and values[-1] is not None:
            yield name.removesuffix(":"), [v for v in values if v is not None]


def _number(word: str) -> float | None:
    try:
        return float(word)
    except ValueError:
        return None


def _numbers(value: Any) -> Iterator[float]:
    if isinstance(value, dict | list):
        for entry in value.values() if isinstance(value, dict) else value:
            yield from _numbers(entry)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield float(value)

"""Read and check the layers of a .param file, and the sizes of its inputs."""

from __future__ import annotations

import re

from attrs import frozen

from qfunc.files.json_text import damage_error

__all__ = ["MAGIC", "Line", "input_shapes", "read_param", "split_axis", "with_axis"]

MAGIC = 7767517
"""The first line of a .param."""
_NUMBER = r"-?\d{1,20}(\.\d{1,20})?(e[+-]\d{1,3})?"
_PARAMETER = re.compile(rf"-?\d{{1,6}}={_NUMBER}(,{_NUMBER})*")
_SIZES = ("2", "11", "1", "0")  # channels, depth, height, width


@frozen
class Line:
    """One layer: its kind and name, the names of its blobs, and the texts of its parameters by number."""

    kind: str
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    parameters: dict[str, str]


def read_param(content: bytes, file: str) -> list[Line]:
    """Return the layers of a .param file.

    Raises:
        FileError: another magic number, counts that differ from the lines and names, a blob without an earlier layer that
            computes it, or a parameter that is not a number.
    """
    try:
        lines = content.decode().splitlines()
    except UnicodeDecodeError as e:
        raise damage_error(file, "", "bytes that are not UTF-8", "UTF-8 text") from e
    if lines[:1] != [str(MAGIC)]:
        raise damage_error(file, "line 1", repr("".join(lines[:1])[:60]), str(MAGIC))
    layers = [_line(text, file, number) for number, text in enumerate(lines[2:], 3)]
    names: set[str] = set()
    for number, layer in enumerate(layers, 3):
        if missing := next((blob for blob in layer.inputs if blob not in names), None):
            raise damage_error(file, f"line {number}", f"the input {missing[:60]!r}", "a blob that a layer before makes")
        names.update(layer.outputs)
    if (blobs := sum(len(layer.outputs) for layer in layers)) > len(names):
        raise damage_error(file, "", "two blobs of one name", "each name once")
    counts = f"{len(layers)} {blobs}"
    if lines[1:2] != [counts]:
        raise damage_error(file, "line 2", repr("".join(lines[1:2])[:60]), f"{counts!r}, as there are layers and blobs")
    return layers


def _line(text: str, file: str, number: int) -> Line:
    words = text.split()
    counts = [int(word) if re.fullmatch(r"\d{1,6}", word) else -1 for word in words[2:4]]
    first, last = 4 + counts[0] if counts else 0, 4 + sum(counts)
    if len(counts) < 2 or min(counts) < 0 or len(words) < last:
        raise damage_error(file, f"line {number}", repr(text[:60]), "a kind, a name, two counts and as many blobs")
    parameters: dict[str, str] = {}
    for word in words[last:]:
        key, _, value = word.partition("=")
        values = value.split(",")
        listed = int(key) <= -23300 if _PARAMETER.fullmatch(word) else False
        if not _PARAMETER.fullmatch(word) or key in parameters or (listed and values[0] != str(len(values) - 1)):
            raise damage_error(file, f"line {number}", f"the parameter {word[:60]!r}", "NUMBER=VALUE, each number once")
        parameters[key] = value
    return Line(words[0], words[1], tuple(words[4:first]), tuple(words[first:last]), parameters)


def input_shapes(layers: list[Line]) -> dict[str, tuple[int, ...]]:
    """Return the shape of an example of each input, from the outermost axis in; without those that are not in the file."""
    shapes = {layer.name: tuple(int(layer.parameters.get(k, 0)) for k in _SIZES) for layer in layers if layer.kind == "Input"}
    return {name: tuple(n for n in shape if n) for name, shape in shapes.items() if any(shape)}


def with_axis(name: str, axis: int, several: bool) -> str:
    """Return the name of a blob of codes whose examples are along another axis than the first.

    Args:
        name: The tensor.
        axis: The axis of its examples.
        several: True if that axis has several entries for each example, so that the blob has it, too.

    >>> with_axis("a.codes", 1, False), split_axis("a.codes@1"), split_axis("a.codes")
    ('a.codes@1', ('a.codes', 1, False), ('a.codes', 0, False))
    """
    return f"{name}@{axis}{'+' * several}"


def split_axis(blob: str) -> tuple[str, int, bool]:
    """Return the arguments that `with_axis` was given for the name of a blob."""
    found = re.fullmatch(r"(.*)@(\d{1,2})(\+?)", blob)
    return (found[1], int(found[2]), bool(found[3])) if found else (blob, 0, False)

"""Read and check the layers of a .param file, and the sizes of its inputs."""

from __future__ import annotations

import re
from collections.abc import Mapping

from attrs import frozen

from qfunc.files.json_text import damage_error

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


def with_blob_names(content: bytes, renamed: Mapping[str, str]) -> bytes:
    """Return a .param file with other names of blobs; a blob that has a new name already is "NAME.inner" in the result.

    >>> text = b"7767517\\n2 2\\nInput in0 0 1 in0 0=4\\nNoop out0 1 1 in0 out0\\n"
    >>> with_blob_names(text, {"in0": "x"}).decode().splitlines()[2:]
    ['Input in0 0 1 x 0=4', 'Noop out0 1 1 x out0']
    """
    head, lines = content.decode().splitlines()[:2], content.decode().splitlines()[2:]
    blobs = {blob for line in lines for blob in _blobs(line)}
    names = dict(renamed)
    for new in renamed.values():
        if new in blobs and new not in renamed:
            names[new] = next(n for n in (f"{new}{'.inner' * k}" for k in range(1, 99)) if n not in blobs)
    return ("\n".join([*head, *(_with_names(line, names) for line in lines)]) + "\n").encode()


def _blobs(line: str) -> list[str]:
    words = line.split()
    return words[4 : 4 + int(words[2]) + int(words[3])]


def _with_names(line: str, names: Mapping[str, str]) -> str:
    # The first four words are the kind, the name and two counts; spaces between them align the columns.
    begin = re.match(r"\S+\s+\S+\s+\d+\s+\d+", line)
    assert begin is not None
    blobs = _blobs(line)
    rest = line[begin.end() :].split()[len(blobs) :]
    return " ".join([begin[0], *(names.get(b, b) for b in blobs), *rest])


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

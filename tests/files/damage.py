"""Damage to files: bits, lengths, and the values, keys and nesting of JSON."""

from __future__ import annotations

import copy
import io
import json
import random
import zipfile
from collections.abc import Callable
from typing import Any

Damage = Callable[[random.Random, bytes], bytes]

_DEEP, _TWICE, _HUGE, _LONG = ("@deep@", "@twice@", "@huge@", "@long@")
VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2, 7, 255, 2**31, 2**53 + 1, 2**63, 10**30, -(10**18), 0.5, -0.0, 1e308, float("nan"),
    float("inf"), float("-inf"), "", "x", "scale", "\ud800", "\0", "../../outside", "/etc/passwd", "x" * 5000, [], {}, [[]],
    [None], [1, "x"], {"x": 1}, {"is": "Int"}, {"is": "Target"}, {"is number": "inf"}, {"is function": "Int"}, {"is": ["Int"]},
    _DEEP, _HUGE, _LONG,
)  # fmt: skip
"""What takes the place of a value; the words between @ stand for texts that `json.dumps` does not write."""
_WRITTEN = {_DEEP: "[" * 100_000 + "]" * 100_000, _HUGE: "9" * 5000, _LONG: f"[{'0,' * 5000}0]"}


def damage_bytes(draw: random.Random, content: bytes) -> bytes:
    """Return the bytes after one to three changes: flipped bits, a cut, an insertion, a repeated or overwritten part."""
    data = bytearray(content)
    for _ in range(draw.choice((1, 1, 1, 2, 3))):
        change, place = draw.randrange(7), draw.randrange(len(data) + 1)
        end = min(len(data), place + draw.choice((1, 2, 4, 8, 64)))
        if change < 3 and data:
            data[place % len(data)] ^= 1 << draw.randrange(8)
        elif change == 3:
            del data[place : draw.choice((end, len(data)))]
        elif change == 4:
            data[place:place] = bytes(draw.randrange(256) for _ in range(draw.choice((1, 4, 32))))
        elif change == 5:
            data[place:place] = data[place:end]
        else:
            data[place:end] = bytes([draw.choice((0, 255, 127, 128))]) * (end - place)
    return bytes(data)


def damage_archive(draw: random.Random, content: bytes) -> bytes:
    """Return a zip file after a change of its bytes, or of one entry, whose checksum is right."""
    if draw.random() < 0.3:
        return damage_bytes(draw, content)
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        entries = {name: archive.read(name) for name in archive.namelist()}
    changed = draw.choice(sorted(entries))
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w") as archive:
        for name, data in entries.items():
            renamed = draw.choice((name, name, name, "../outside", "/etc/outside")) if name == changed else name
            archive.writestr(renamed, _damage_entry(draw, data) if name == changed else data)
    return written.getvalue()


def _damage_entry(draw: random.Random, data: bytes) -> bytes:
    # A NumPy array with another shape in its header, or damaged bytes.
    shape = data[data.find(b"(") : data.find(b")") + 1] if data.startswith(b"\x93NUMPY") else b""
    if shape and draw.random() < 0.3:
        return data.replace(shape, draw.choice(_SHAPES))
    return damage_bytes(draw, data)


_SHAPES = (
    b"(6,-4)", b"(99999999999999,4)", b"(9999999999,)", b"(6,'a')", b"[6, 4]", b"(True,24)", b"(2**62,4)", b"(6.0,4)",
    b"(" * 900, b"(0, 4)", b"(6, 4),", b"x", b"(1e5,)",
)  # fmt: skip


def damage_json(draw: random.Random, content: bytes) -> bytes:
    """Return the JSON text after one or two changes of its tree: a value, a key, a length, a key that is there twice."""
    tree = json.loads(content)
    for _ in range(draw.choice((1, 1, 1, 2))):
        tree = _change(draw, tree)
    text = json.dumps(tree)
    for word, written in _WRITTEN.items():
        text = text.replace(f'"{word}"', written)
    while _TWICE in text:
        before, _, after = text.partition(_TWICE)
        name, _, rest = after.partition('"')
        text = f'{before}{name}"{rest}'
    return text.encode()


def _change(draw: random.Random, tree: Any) -> Any:
    # Walk down to a random place; places near the root are as likely as the many far from it.
    parent, key, value = None, None, tree
    while isinstance(value, dict | list) and value and draw.random() < 0.88:
        parent, key = value, draw.choice(list(value)) if isinstance(value, dict) else draw.randrange(len(value))
        value = parent[key]
    if parent is None:
        return _sample(draw)
    change = draw.randrange(8)
    if change == 0:
        del parent[key]
    elif change == 1 and isinstance(parent, dict):
        parent[f"{_TWICE}{key}"] = draw.choice((value, _sample(draw)))
    elif change == 1:
        parent.insert(key, value)
    elif change == 2 and isinstance(parent, dict):
        parent[draw.choice(("x", "", "is", "is number", "is function", f"{key}s"))] = parent.pop(key)
    elif change == 3 and isinstance(value, int | float):
        parent[key] = draw.choice((-value, value * 2, value + 1, float(value), str(value), [value], bool(value), value * 10**9))
    elif change == 3:
        parent[key] = [value]
    elif change == 4 and len(parent) > 1:
        other = draw.choice(list(parent)) if isinstance(parent, dict) else draw.randrange(len(parent))
        parent[key], parent[other] = parent[other], parent[key]
    else:
        parent[key] = _sample(draw)
    return tree


def _sample(draw: random.Random) -> Any:
    return copy.deepcopy(draw.choice(VALUES))


def either(one: Damage, other: Damage) -> Damage:
    """Return the damage that does the one or the other, three times of four the other."""
    return lambda draw, content: (one if draw.random() < 0.25 else other)(draw, content)


JSON = either(damage_bytes, damage_json)


def damage_safetensors(draw: random.Random, content: bytes) -> bytes:
    """Return the file after a change of its header's tree, whose length stays true, or of its bytes."""
    if draw.random() < 0.4:
        return damage_bytes(draw, content)
    size = int.from_bytes(content[:8], "little")
    header = damage_json(draw, content[8 : 8 + size])
    return len(header).to_bytes(8, "little") + header + content[8 + size :]

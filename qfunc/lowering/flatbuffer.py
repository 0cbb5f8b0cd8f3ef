"""Flatbuffers from tables described as data, and back."""

from __future__ import annotations

import importlib
import struct
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from attrs import frozen

from qfunc.errors import FileError, first_line
from qfunc.files.json_text import damage_error

Fields = tuple[tuple[str, str], ...]
Schema = Mapping[str, Fields]
"""Table -> its fields in the order of the .fbs file, each with its kind.

A kind is one of SCALARS, "str", "[str]", "bytes", "[scalar]", the name of a table, "[table]", or "a|b|c": a union of tables,
which takes two slots, as in the file.  "" is a removed field.  The value of "bytes" may be a list of parts.
"""

SCALARS = {"i8": "Int8", "u8": "Uint8", "i16": "Int16", "i32": "Int32", "u32": "Uint32", "i64": "Int64", "u64": "Uint64",
           "f32": "Float32"}  # fmt: skip
_ALIGNED = 16  # the alignment of bytes


@frozen(eq=False)
class Table:
    """A table of one kind; absent fields have the defaults of the format."""

    kind: str
    fields: Mapping[str, Any]

    def __getitem__(self, name: str) -> Any:
        if name not in self.fields:
            raise damage_error(self.kind, name, "no such field", "a table with it")
        return self.fields[name]


@frozen(eq=False)
class Content:
    """Bytes that are made when they are written."""

    size: int
    make: Callable[[], bytes]

    def __len__(self) -> int:
        return self.size


def table(kind: str, **fields: Any) -> Table:
    """Return a table with these fields."""
    return Table(kind, fields)


def serialize(schema: Schema, root: Table, identifier: str) -> bytes:
    """Return the bytes of a flatbuffer."""
    flatbuffers: Any = importlib.import_module("flatbuffers")
    builder = flatbuffers.Builder(_size_of_bytes(root) + (1 << 12))  # growing would copy it
    builder.Finish(_write_table(builder, schema, root), identifier.encode())
    return bytes(memoryview(builder.Bytes)[builder.Head() :])


def _size_of_bytes(value: Any) -> int:
    if isinstance(value, Table):
        return sum(map(_size_of_bytes, value.fields.values()))
    if isinstance(value, list):
        return sum(map(_size_of_bytes, value))
    return len(value) + _ALIGNED if isinstance(value, bytes | Content) else 0


def _slots(schema: Schema, kind: str) -> list[tuple[str, str, int]]:
    # (field, kind, slot); the slot before a union's holds the number of its table.
    places, slot = [], 0
    for name, kind_of in schema[kind]:
        slot += "|" in kind_of
        places.append((name, kind_of, slot))
        slot += 1
    return places


def _write_table(builder: Any, schema: Schema, value: Table) -> int:
    places = [p for p in _slots(schema, value.kind) if value.fields.get(p[0]) is not None]
    offsets = {name: _write_value(builder, schema, kind, value[name]) for name, kind, _ in places if kind not in SCALARS}
    builder.StartObject(max((slot for *_, slot in _slots(schema, value.kind)), default=-1) + 1)
    for name, kind, slot in places:
        if kind in SCALARS:
            getattr(builder, f"Prepend{SCALARS[kind]}Slot")(slot, value[name], None)
            continue
        if "|" in kind:
            builder.PrependUint8Slot(slot - 1, kind.split("|").index(value[name].kind) + 1, None)
        builder.PrependUOffsetTRelativeSlot(slot, offsets[name], 0)
    return int(builder.EndObject())


def _write_value(builder: Any, schema: Schema, kind: str, value: Any) -> int:
    if kind == "str":
        return int(builder.CreateString(value))
    if kind == "bytes":
        parts = [value] if isinstance(value, bytes) else value
        size = sum(map(len, parts))
        builder.StartVector(1, size, _ALIGNED)
        start = builder.head = builder.Head() - size
        for part in parts:
            builder.Bytes[start : start + len(part)] = part.make() if isinstance(part, Content) else part
            start += len(part)
        return int(builder.EndVector())
    if isinstance(value, Table):
        return _write_table(builder, schema, value)
    inner = kind[1:-1]
    if inner in SCALARS:
        return int(builder.CreateNumpyVector(np.asarray(value, SCALARS[inner].lower())))
    made = [builder.CreateString(v) if inner == "str" else _write_table(builder, schema, v) for v in value]
    builder.StartVector(4, len(made), 4)
    for offset in reversed(made):
        builder.PrependUOffsetTRelative(offset)
    return int(builder.EndVector())


def parse(schema: Schema, kind: str, data: bytes) -> Table:
    """Return the root table of a flatbuffer, with all tables in it.

    Raises:
        FileError: an offset or a length beyond the data, a text that is not UTF-8, or more content than the data can hold.
    """
    module: Any = importlib.import_module("flatbuffers.table")
    try:
        return _read(schema, kind, module.Table(bytearray(data), int.from_bytes(data[:4], "little")), _Budget(len(data)))
    except (struct.error, LookupError, TypeError, UnicodeDecodeError, ValueError) as e:
        if isinstance(e, FileError):
            raise
        raise damage_error(f"flatbuffer {kind}", "", first_line(e), "offsets inside the data") from e


class _Budget:
    """The bytes that may still be read: offsets that share their content could stand for more than a file holds."""

    def __init__(self, size: int) -> None:
        self.size = self.left = size

    def spend(self, count: int, size: int = 1) -> int:
        """Return a number of items of some bytes each, after taking them off."""
        self.left -= count * size
        if self.left < 0:
            raise damage_error("flatbuffer", "", f"content of more than {self.size:,} bytes", "as much as the file holds")
        return count


def _read(schema: Schema, kind: str, reader: Any, budget: _Budget) -> Table:
    types: Any = importlib.import_module("flatbuffers.number_types")
    budget.spend(4)
    found: dict[str, Any] = {}
    for name, inner, slot in _slots(schema, kind):
        offset = reader.Offset(4 + 2 * slot)
        if not offset or not inner:
            continue
        at = reader.Pos + offset
        if inner in SCALARS:
            found[name] = reader.Get(getattr(types, f"{SCALARS[inner]}Flags"), at)
        elif inner == "str":
            found[name] = _text(reader, at, budget)
        elif inner == "bytes" or inner[1:-1] in SCALARS:
            size = np.dtype("uint8" if inner == "bytes" else SCALARS[inner[1:-1]].lower())
            count = budget.spend(reader.VectorLen(offset), size.itemsize)
            values = np.frombuffer(reader.Bytes, size, count, reader.Vector(offset))
            found[name] = values.tobytes() if inner == "bytes" else values.tolist()
        elif inner[0] == "[":
            places = [reader.Vector(offset) + 4 * i for i in range(budget.spend(reader.VectorLen(offset), 4))]
            if inner == "[str]":
                found[name] = [_text(reader, p, budget) for p in places]
                continue
            found[name] = [_read(schema, inner[1:-1], type(reader)(reader.Bytes, reader.Indirect(p)), budget) for p in places]
        else:
            if "|" in inner:
                number = reader.Get(types.Uint8Flags, reader.Pos + reader.Offset(4 + 2 * (slot - 1)))
                if not 0 < number <= len(inner.split("|")):
                    raise damage_error(kind, name, f"the table {number} of a union", f"1 to {len(inner.split('|'))}")
                inner = inner.split("|")[number - 1]
            found[name] = _read(schema, inner, type(reader)(reader.Bytes, reader.Indirect(at)), budget)
    return Table(kind, found)


def _text(reader: Any, offset: int, budget: _Budget) -> str:
    text: bytes = reader.String(offset)
    budget.spend(len(text))
    return text.decode()

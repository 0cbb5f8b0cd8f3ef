"""Give the inputs and outputs of a .tosa file the names of the model."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from qfunc.graph.constants import UniqueNames
from qfunc.lowering.flatbuffer import Table
from qfunc.targets.tosa.schema import block_of, serialize_block

_LISTS = ("inputs", "outputs")


def with_tensor_names(file: bytes, values: bytes, inputs: Sequence[str], outputs: Sequence[str]) -> tuple[bytes, bytes]:
    """Return the file and its model.values.json with other names of inputs and outputs.

    An input that the model quantizes in two ways keeps the names of its codes, and so does an output with the name "".
    A tensor inside the file that has a new name already becomes "NAME.inner".
    """
    entries, block = json.loads(values), block_of(file)
    given = [*entries["inputs"], *entries.get("indices", ())]
    uses = Counter(e["input"] for e in given)
    pairs: list[tuple[str, str]] = [(e["tensor"], inputs[int(e["input"])]) for e in given if uses[e["input"]] == 1]
    pairs += [(e["tensor"], name) for e, name in zip(entries["outputs"], outputs, strict=True) if name]
    renamed: dict[str, str] = dict(pairs)
    tensors = {t["name"] for t in (*block["tensors"], *block["shapes"])}
    taken = UniqueNames(tensors | set(renamed.values()))
    renamed |= {n: taken.fresh(f"{n}.inner") for n in renamed.values() if n in tensors and n not in renamed}
    new = serialize_block(_renamed(block, renamed))
    for entry in (*given, *entries["outputs"], *entries["tensors"].values()):
        entry["tensor"] = renamed.get(entry["tensor"], entry["tensor"])
    return new, json.dumps(entries, indent=1).encode()


def _renamed(block: Table, names: Mapping[str, str]) -> Table:
    def named(each: Table) -> Table:
        return Table(each.kind, {**each.fields, **_lists(each, names), **_name(each, names)})

    parts = {key: [named(t) for t in block[key]] for key in ("operators", "tensors", "shapes")}
    return Table(block.kind, {**block.fields, **parts, **_lists(block, names)})


def _lists(each: Table, names: Mapping[str, str]) -> dict[str, Any]:
    return {key: [names.get(n, n) for n in each.fields[key]] for key in _LISTS if each.fields.get(key) is not None}


def _name(each: Table, names: Mapping[str, str]) -> dict[str, Any]:
    return {"name": names.get(each.fields["name"], each.fields["name"])} if "name" in each.fields else {}

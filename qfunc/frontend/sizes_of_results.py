"""Read sizes from the results of ops that keep them, so that a size does not separate an op from what is fused with it."""

from __future__ import annotations

from torch import fx

from qfunc.ops.definition import Trait
from qfunc.ops.node import has, kind_of


def read_sizes_of_results(captured: fx.GraphModule) -> fx.GraphModule:
    """Read each size of a value from the last result of the same shape, in place, and return the module.

    `y = conv(x); relu(y).view(y.size(0), -1)` reads y twice.  Its relu has the shape of y.
    """
    for size in [n for n in captured.graph.nodes if kind_of(n) == "size"]:
        while (result := _same_shape(size.args[0])) is not None and _read_from(size, result):
            pass
    captured.recompile()
    return captured


def _same_shape(value: fx.Node) -> fx.Node | None:
    # The result of the only op that reads a computed value, if its shape is that of the value.
    readers = [n for n in value.users if kind_of(n) != "size"]
    if value.op == "placeholder" or len(readers) != 1 or readers[0].op == "output":
        return None
    (reader,) = readers
    others = [n for n in reader.all_input_nodes if n is not value and n.op != "get_attr"]
    alone = reader.all_input_nodes == [value] and has(reader, Trait.ELEMENTWISE)
    return reader if not others and (alone or has(reader, Trait.NORM)) else None


def _read_from(size: fx.Node, result: fx.Node) -> bool:
    # Move a size and the numbers that it computes after the result; return False if the result depends on it.
    found, moved = {size}, [size]
    for node in moved:
        for reader in node.users:
            if reader is result:
                return False
            if reader not in found and reader < result:
                found.add(reader)
                moved.append(reader)
    size.args = (result, *size.args[1:])
    anchor = result
    for node in sorted(n for n in moved if n < result):
        anchor.append(node)
        anchor = node
    return True

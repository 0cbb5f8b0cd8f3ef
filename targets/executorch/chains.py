"""Short chains of elementwise nodes: at the tenth, XNNPACK of ExecuTorch 1.5.1 ends the process when it loads the file.

XNNPACK replaces elementwise nodes that compute one function of a tensor of codes by a table of 256 entries.  It copies them
into an array of ten nodes, and reserves one more in it, which reallocates memory that it does not own.  A copy ends a chain.

Source: XNNPACK, src/subgraph.c, xnn_subgraph_fuse_unary_quantized_into_lut and rewrite_dequant_bmm_at.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence, Set

from qfunc.lowering.flatbuffer import Table

LONGEST = 9
_ELEMENTWISE = frozenset(
    f"XNN{kind}"
    for kind in (
        "Abs", "Add", "Ceiling", "Clamp", "Convert", "Cos", "Div", "ELU", "Exp", "Floor", "Gelu", "Hardswish", "LeakyReLU",
        "Log", "Maximum", "Minimum", "Multiply", "Negate", "PReLU", "ReciprocalSquareRoot", "Sigmoid", "Sin", "Square",
        "SquareRoot", "Subtract", "Tanh",
    )
)  # fmt: skip
_INPUTS = ("input_id", "input1_id", "input2_id")


def with_short_chains(
    nodes: Sequence[Table], constants: Set[int], codes: Set[int], outputs: Set[int], copied: Callable[[int], Table]
) -> list[Table]:
    """Return the nodes, with copies in chains of more than nine.

    Args:
        nodes: The nodes of a graph, in their order.
        constants: The numbers of the values that are constants.
        codes: The numbers of the values of 8 bits.
        outputs: The numbers of the graph's outputs.
        copied: Returns a node that copies a value to a new one.
    """
    made, copies, readers = list(nodes), dict[int, Table](), defaultdict[int, list[int]](list)
    for place, node in enumerate(nodes):
        for value in _computed(node, constants):
            readers[value].append(place)
    for place in range(len(nodes)):
        values, length = _computed(made[place], constants), 0
        if len(values) != 1 or not values <= codes or not _is_elementwise(made[place]):
            continue
        while True:
            result, length = _output(made[place]), length + _count(made[place])
            values.add(result)
            if len(readers[result]) != 1 or result in outputs:
                break
            (following,) = readers[result]
            node = made[following]
            if not _is_elementwise(node) or not _computed(node, constants) <= values:
                break
            if length + _count(node) > LONGEST:
                copies[following] = copied(result)
                made[following] = _reading(node, result, _output(copies[following]))
                readers[_output(copies[following])], readers[result] = [following], []
                break
            place = following
    return [each for place, node in enumerate(made) for each in (copies.get(place), node) if each is not None]


def _count(node: Table) -> int:
    return 1 + (node["output_min_max"] is not None)  # a clip is a node of its own


def _is_elementwise(node: Table) -> bool:
    return node["xnode_union"].kind in _ELEMENTWISE


def _output(node: Table) -> int:
    number: int = node["xnode_union"]["output_id"]
    return number


def _computed(node: Table, constants: Set[int]) -> set[int]:
    fields = node["xnode_union"].fields
    named = {fields[name] for name in fields if name.endswith("_id") and name != "output_id"}
    return named - constants


def _reading(node: Table, old: int, new: int) -> Table:
    union = node["xnode_union"]
    fields = {name: new if name in _INPUTS and value == old else value for name, value in union.fields.items()}
    return Table(node.kind, {**node.fields, "xnode_union": Table(union.kind, fields)})

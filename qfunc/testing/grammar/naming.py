"""Names that meet: layers, buffers, inputs and values with each other's names, or with names that a library gives."""

from __future__ import annotations

import ast
import random
from collections.abc import Mapping

from attrs import evolve

from qfunc.testing.grammar.program import Input, Program
from qfunc.testing.grammar.pruning import attribute_of, names_assigned

COMMON = (
    "input", "output", "x", "weight", "bias", "add", "mul", "relu", "conv", "conv2d", "linear", "matmul", "scale", "zero_point",
    "codes", "x_codes", "x_acc", "x_real", "x_output", "x_weight", "input_1", "input_0", "output_0", "state_0", "getitem",
    "getitem_1", "quantizers", "batch_norm", "mean", "softmax", "cat", "query", "value", "args", "values", "x_1", "tensor",
    "_tensor_constant0", "lifted_tensor_0", "p_weight", "b_table", "arg0_1", "l_x_", "node", "graph", "relu_1", "add_1",
    "BN", "convA", "X", "Y", "Linear", "größe",
)  # fmt: skip
"""Names of ops, tensors and parts, as authors and tools write them."""
SUFFIXES = ("_1", "_0", "_codes", "_acc", "_real", "_output", "_weight", "_bias", "_quantized", "_scale")
"""What a library may append to a name."""
TAKEN = ("self", "torch", "nn", "F", "math", "n", "float", "tuple", "slice", "training")
"""Names that a program uses itself."""


def rename_parts(program: Program, source: random.Random) -> Program:
    """Return the program with some names replaced by those of other parts; it computes the same.

    Attributes of `self` are one scope, inputs and values the other.  A name may be in both scopes, and in neither twice.

    >>> one = Program((Input("x", "torch.randn(n, 3)"),), ("self.fc1 = nn.Linear(3, 3)",), ("y2 = self.fc1(x)",), ("y2",))
    >>> rename_parts(one, random.Random(5)).steps
    ('y2 = self.x(fc1)',)
    """
    attributes = [attribute_of(s) for s in program.layers]
    inputs = [i.name for i in program.inputs]
    values = inputs + [name for s in program.steps for name in names_assigned(s)]
    names: dict[str, str] = {}
    used = {*attributes, *values, *TAKEN, *(f"self.{name}" for name in TAKEN)}
    for _ in range(source.choice((1, 2, 3))):
        of_self = bool(attributes) and source.random() < 0.6
        old = source.choice(attributes if of_self else source.choice((inputs, values)))
        others = values if of_self else [a.removeprefix("self.") for a in attributes] or values
        new = source.choice(source.choice((inputs, others, others, COMMON)))
        new += source.choice(SUFFIXES) if source.random() < 0.25 else ""
        new = f"self.{new}" if of_self else new
        if old not in names and new not in used:
            names[old] = new
            used.add(new)
    return _with_names(program, names)


def substitute(code: str, names: Mapping[str, str]) -> str:
    """Return a statement with its variables, and the attributes of its variables, replaced; keywords and text stay.

    >>> substitute("y = F.pad(self.y(y), (1, 1), value=y)", {"y": "z", "self.y": "self.fc"})
    'z = F.pad(self.fc(z), (1, 1), value=z)'
    """
    places = []
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Name | ast.Attribute) and (new := names.get(ast.unparse(node))) is not None:
            places.append((node.col_offset, node.end_col_offset, new))
    for start, end, new in sorted(places, reverse=True):
        code = code[:start] + new + code[end:]
    return code


def _with_names(program: Program, names: Mapping[str, str]) -> Program:
    def codes(texts: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(substitute(s, names) for s in texts)

    def layer(code: str) -> str:
        # A buffer has its name as a text.
        old = attribute_of(code)
        if code.startswith("self.register_buffer"):
            return code.replace(f'"{old.removeprefix("self.")}"', f'"{names.get(old, old).removeprefix("self.")}"', 1)
        return substitute(code, names)

    of_model = {old.replace("self.", "model.", 1): new.replace("self.", "model.", 1) for old, new in names.items()}
    return evolve(
        program,
        inputs=tuple(Input(names.get(i.name, i.name), i.code) for i in program.inputs),
        layers=tuple(map(layer, program.layers)),
        steps=codes(program.steps),
        outputs=codes(program.outputs),
        changes=tuple(substitute(s, of_model) for s in program.changes),
    )

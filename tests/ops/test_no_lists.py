"""What an op is stands in its record: no other file lists kinds of ops, but for the differences given here with reasons."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from qfunc.ops.opset import MODULE_KINDS, OPS

ROOT = Path(__file__).parents[2]
KINDS = {op.kind for op in OPS} | set(MODULE_KINDS.values())
ALLOWED = {
    "qfunc/analysis/operations/multiply_accumulates.py": "the products of each recurrent layer",
    "qfunc/arithmetic": "the kinds that each arithmetic computes",
    "qfunc/corrections/expected_means.py": "a formula of its own for each",
    "qfunc/corrections/rotation/streams.py": "ops that commute with rotations, and those that write and read what is rotated",
    "qfunc/emulation/error_bounds.py": "a bound for the formula of each",
    "qfunc/emulation/moment_bounds.py": "a bound for the formula of each",
    "qfunc/emulation/norm_bounds.py": "a bound for the formula of each",
    "qfunc/emulation/sum_bounds.py": "a bound for the formula of each",
    "qfunc/emulation/writer.py": "where ONNX Runtime keeps its blocked layout",
    "qfunc/execution/tensor_ranges/parts.py": "ops that keep all values, and ops that put parts together",
    "qfunc/frontend/export": "names of aten ops",
    "qfunc/graph/data_movement.py": "ops that differ in training only",
    "qfunc/graph/examples.py": "where each op that moves entries puts the examples",
    "qfunc/lowering": "tables of writers",
    "targets": "tables of writers, and what runtimes lack",
    "qfunc/numerics": "names of roundings, and tables of kernels",
    "qfunc/passes/fuse_norms.py": "the spellings of a mean in a norm",
    "qfunc/passes/match_epsilon_guards.py": "ops with a pole or an infinite slope at 0",
    "qfunc/placement/mixtures.py": "the ops of which shares of experts are made",
    "qfunc/placement/shift_limits.py": "names of limits",
    "qfunc/testing": "names of roundings, and networks to draw",
    "qfunc/estimators": "names of roundings",
}


def listed(source: str) -> list[int]:
    """The lines of tuples, sets and dicts of which two entries or more, and half of all, are kinds of ops.

    >>> listed('A = ("relu", "clip")')
    [1]
    """
    found = []
    for node in ast.walk(ast.parse(source)):
        entries = node.elts if isinstance(node, ast.Tuple | ast.Set) else node.keys if isinstance(node, ast.Dict) else []
        words = [e.value for e in entries if isinstance(e, ast.Constant) and isinstance(e.value, str)]
        kinds = [w for w in words if w in KINDS]
        if len(kinds) >= 2 and 2 * len(kinds) >= len(words):
            found.append(node.lineno)
    return found


@pytest.mark.thorough
def test_no_list_of_kinds_outside_the_records() -> None:
    engine = [p for p in (ROOT / "qfunc").rglob("*.py") if p.parent.name != "ops" and "targets" not in p.parts]
    outside = engine + [p for p in (ROOT / "targets").rglob("*/*.py") if not p.stem.endswith("target")]
    found = {p.relative_to(ROOT).as_posix(): lines for p in outside if (lines := listed(p.read_text()))}
    assert found
    strange = {path: lines for path, lines in found.items() if not any(path.startswith(a) for a in ALLOWED)}
    assert not strange, "an op's trait belongs in its record; else write the difference and its reason here"


def test_each_exception_is_needed() -> None:
    files = {a: [ROOT / a] if a.endswith(".py") else list((ROOT / a).rglob("*.py")) for a in ALLOWED}
    assert [a for a, paths in files.items() if not any(listed(p.read_text()) for p in paths)] == []

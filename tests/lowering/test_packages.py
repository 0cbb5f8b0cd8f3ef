"""The packages of the runtimes: the same kind of thing has the same file name in each of them."""

import ast
from collections import Counter
from pathlib import Path

import pytest

import qfunc.lowering
from qfunc.lowering.onnx import ops
from qfunc.ops.opset import OPS

ROOT = Path(qfunc.lowering.__file__).parent
PACKAGES = sorted(p for p in ROOT.iterdir() if p.is_dir() and p.name != "__pycache__")
RUNTIMES = [p for p in PACKAGES if p.name != "toolchains"]
"""toolchains/ has a file for each closed toolchain: a lowering with the constraints of its format."""
HOMES = {"LEGALITY": "constraints", "require_site": "constraints"}
FAMILIES = (
    "attention", "creation", "elementwise", "image", "indexing", "linear", "normalization", "pooling", "recurrent", "reduction",
    "shape",
)  # fmt: skip


def home(name: str) -> str | None:
    """The only file of a runtime's package that may define a name; None if any may."""
    if name.endswith("Lowering"):
        return "lowering"
    return "runner" if name.endswith("Runner") else HOMES.get(name)


def misplaced(module: str, source: str) -> list[str]:
    """The definitions of a module that belong into another file of its package."""
    found = []
    for node in ast.parse(source).body:
        targets = [node.target] if isinstance(node, ast.AnnAssign) else getattr(node, "targets", [])
        names = [t.id for t in targets if isinstance(t, ast.Name)]
        names += [node.name] if isinstance(node, ast.ClassDef | ast.FunctionDef) else []
        found += [name for name in names if home(name) not in (None, module)]
    return found


def test_a_misplaced_definition_is_found():
    assert misplaced("ops", "class XLowering: ...\nLEGALITY: int = 1\ndef require_site(): ...") == [
        "XLowering", "LEGALITY", "require_site",
    ]  # fmt: skip
    assert misplaced("constraints", "LEGALITY = ()") == []


@pytest.mark.parametrize("package", RUNTIMES, ids=lambda p: p.name)
def test_every_thing_is_in_the_file_of_its_name(package):
    assert {p.stem: wrong for p in package.glob("*.py") if (wrong := misplaced(p.stem, p.read_text()))} == {}


@pytest.mark.parametrize("package", RUNTIMES, ids=lambda p: p.name)
def test_a_package_of_writers_has_its_table_in_ops(package):
    """The families of lowering/onnx have tables of their own, which ops.py joins."""
    tables = {p.stem for p in package.glob("*.py") if "\nWRITERS:" in p.read_text()}
    families = set(FAMILIES) if package.name == "onnx" else set()
    assert tables <= {"ops"} | families


def test_no_kind_is_in_the_tables_of_two_families():
    modules = [getattr(ops, family) for family in FAMILIES]
    kinds = Counter(kind for module in modules for kind in module.WRITERS)
    kinds.update({op.kind for op in OPS if op.onnx is not None})  # the text of a record is a writer, too
    assert [kind for kind, count in kinds.items() if count > 1] == []
    assert set(kinds) == set(ops.WRITERS)


@pytest.mark.parametrize("package", PACKAGES, ids=lambda p: p.name)
def test_a_package_has_three_files_and_none_repeats_its_name(package):
    modules = [p.stem for p in package.glob("*.py")]
    assert len(modules) >= 3
    assert [m for m in modules if package.name in m] == []

"""Every class and every field of the specs is read by code outside of them: no word of a target does nothing."""

from __future__ import annotations

import ast
import inspect
from functools import lru_cache
from pathlib import Path

import attrs

import qfunc.specs
from qfunc.specs import Unknown
from tests.each import failures

ROOT = Path(qfunc.__file__).parent
ENGINE = sorted(p for p in ROOT.rglob("*.py") if not {"specs", "targets"} & {*p.relative_to(ROOT).parts})
OUTSIDE = [*ENGINE, *(p for p in sorted((ROOT / "targets").resolve().rglob("*/*.py")) if not p.stem.endswith("target"))]
"""The engine, and the chips without the files that describe them."""
CLASSES = {
    name: kind
    for module in (qfunc.specs, qfunc.targets.arithmetics)
    for name in module.__all__
    if isinstance(kind := getattr(module, name), type) and attrs.has(kind) and not hasattr(kind, "form")
}
FOR_READERS = {
    ("Target", "source"): "printed: the documents that a description follows",
    ("Runtime", "version"): "printed: the versions whose arithmetic is described",
    ("Build", "replaces"): "printed: what edit.cpu replaces in the kernels",
    ("Runtime", "kernels"): "printed: the library whose arithmetic is described",
}
"""Fields that only people read, with what they are for."""


@lru_cache(None)
def reads(path: Path) -> tuple[frozenset[str], frozenset[tuple[str, str | int]], frozenset[str]]:
    """The attributes that a file reads, the fields of classes that its patterns bind, and the names that it mentions."""
    attributes, patterns, names = set[str](), set[tuple[str, str | int]](), set[str]()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            attributes.add(node.attr)
            names.add(node.attr)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            names.add(node.id)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.isidentifier():
            attributes.add(node.value)  # getattr(arithmetic, "rounding")
        elif isinstance(node, ast.MatchClass):
            kind = node.cls.attr if isinstance(node.cls, ast.Attribute) else node.cls.id  # type: ignore[attr-defined]
            bound = [(i, p) for i, p in enumerate(node.patterns)] + list(zip(node.kwd_attrs, node.kwd_patterns, strict=True))
            patterns |= {(kind, at) for at, p in bound if not (isinstance(p, ast.MatchAs) and p.name is None)}
    return frozenset(attributes), frozenset(patterns), frozenset(names)


def computes(kind: type) -> bool:
    """Return True for an arithmetic that has its computation as a method."""
    return any(callable(getattr(kind, method, None)) for method in ("kernel", "codes", "reals"))


def is_read(kind: type, index: int, name: str) -> bool:
    """Return True if a file reads the field: as an attribute, or by a pattern of the class.

    An arithmetic reads its fields in its own file.
    """
    if computes(kind) and kind is not Unknown:
        return name in reads(Path(inspect.getfile(kind)))[0]
    for path in OUTSIDE:
        attributes, patterns, _ = reads(path)
        if (kind.__name__, index) in patterns or (kind.__name__, name) in patterns:
            return True
        if name in attributes:
            return True
    return False


MARKERS = [n for n, kind in CLASSES.items() if not attrs.fields(kind) and n not in ("SaturatesAtEnd",) and not computes(kind)]
"""Classes that hold no values and compute nothing: code must ask for them by name; `SaturatesAtEnd` is the rest after two."""


def test_code_reads_each_class() -> None:
    assert failures(is_read_as_a_class, MARKERS) == {}


def is_read_as_a_class(name: str) -> None:
    assert any(name in reads(path)[2] for path in OUTSIDE), f"no code reads specs.{name}"


FIELDS = [(name, i, f.name) for name, kind in CLASSES.items() for i, f in enumerate(attrs.fields(kind)) if f.init]


def test_code_reads_each_field() -> None:
    assert failures(is_read_as_a_field, FIELDS) == {}


def is_read_as_a_field(name: str, index: int, field: str) -> None:
    assert is_read(CLASSES[name], index, field) or (name, field) in FOR_READERS, f"no code reads {name}.{field}"


def test_the_printed_fields_are_printed() -> None:
    for (name, field), reason in FOR_READERS.items():
        assert reason.startswith("printed: ")
        assert field in (Path(qfunc.specs.__file__).parent / "text" / "datasheet.py").read_text(), (name, field)

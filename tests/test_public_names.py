"""Names that users see: no two public classes share one."""

from __future__ import annotations

from collections import defaultdict
from importlib import import_module
from typing import Any

import pytest

import qfunc
from qfunc import corrections, estimators, functions, lowering, reconstruction, specs, targets, testing
from qfunc.errors import QfuncError

MODULES = (
    qfunc, specs, specs.edit, specs.formats, corrections, estimators, functions, lowering, reconstruction, targets, testing,
    qfunc.errors, qfunc.recipes,
)  # fmt: skip


def public_classes(module: Any) -> dict[str, type]:
    """Return the public classes of a module by name."""
    names = getattr(module, "__all__", None) or [n for n in vars(module) if not n.startswith("_")]
    return {name: value for name in names if isinstance(value := getattr(module, name), type)}


def shared_names(modules: tuple[Any, ...]) -> dict[str, set[type]]:
    """Return the names that stand for more than one class."""
    classes = defaultdict(set)
    for module in modules:
        for name, value in public_classes(module).items():
            classes[name].add(value)
    return {name: found for name, found in classes.items() if len(found) > 1}


def test_no_two_public_classes_share_a_name() -> None:
    assert shared_names(MODULES) == {}


def test_a_shared_name_is_found() -> None:
    class Module:
        Int = int

    assert shared_names((specs, Module)) == {"Int": {specs.Int, int}}


def test_a_public_class_has_its_public_name() -> None:
    """The name in a repr and in JSON is the one that users import."""
    wrong = [(m.__name__, n) for m in MODULES for n, c in public_classes(m).items() if c.__name__ != n]
    assert wrong == []


@pytest.mark.parametrize(
    "module", [corrections, estimators, functions, reconstruction, specs.formats], ids=lambda m: m.__name__
)
def test_dir_lists_the_public_names(module: Any) -> None:
    assert dir(module) == sorted(module.__all__)


FORMER = {
    "qfunc": {n: f"qfunc.corrections.{n}" for n in corrections.__all__ if n not in qfunc.__all__},
    "qfunc.specs": {n: f"qfunc.specs.formats.{n}" for n in specs.formats.__all__},
}


@pytest.mark.parametrize("module", FORMER)
def test_a_former_name_names_the_new_one(module: str) -> None:
    assert FORMER[module]
    for old, new in FORMER[module].items():
        message = f"{module}.{old}: found a former name, wanted {new}. Write {new}."
        for use in (f"from {module} import {old}", f"import qfunc; {module}.{old}"):
            with pytest.raises(QfuncError) as caught:
                exec(use, {})
            assert str(caught.value) == message
        parent, _, name = new.rpartition(".")
        assert hasattr(import_module(parent), name)


@pytest.mark.parametrize("module", FORMER)
def test_former_names_are_not_listed(module: str) -> None:
    names: dict[str, Any] = {}
    exec(f"from {module} import *", names)
    assert not FORMER[module].keys() & {*names, *dir(import_module(module))}
    with pytest.raises(AttributeError, match=f"module '{module}' has no attribute 'absent'"):
        import_module(module).absent  # noqa: B018

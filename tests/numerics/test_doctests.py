"""The examples in the docstrings are true."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

PACKAGES = ("qfunc.numerics", "qfunc.estimators", "qfunc.functions", "qfunc.testing")


def modules() -> list[str]:
    found = []
    for name in PACKAGES:
        found += [name, *(m.name for m in pkgutil.iter_modules(importlib.import_module(name).__path__, f"{name}."))]
    return found


@pytest.mark.parametrize("name", modules())
def test_examples(name: str) -> None:
    """Every example of the module gives what it shows."""
    result = doctest.testmod(importlib.import_module(name))

    assert result.failed == 0


def test_examples_exist() -> None:
    """The list of modules is not empty by mistake: the numerics alone have dozens of examples."""
    finder = doctest.DocTestFinder()
    found = [t for n in modules() if n.startswith("qfunc.numerics.") for t in finder.find(importlib.import_module(n))]

    assert sum(len(t.examples) for t in found) >= 20

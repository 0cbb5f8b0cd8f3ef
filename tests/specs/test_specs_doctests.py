"""Every example in the docstrings of qfunc.specs, and that every public class shows one or says what it is for."""

import doctest
import importlib
import pkgutil

import pytest

from qfunc import specs

MODULES = sorted(m.name for m in pkgutil.walk_packages(specs.__path__, "qfunc.specs."))


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_are_true(name):
    module = importlib.import_module(name)
    assert doctest.testmod(module).failed == 0


def test_there_are_many_examples():
    modules = [importlib.import_module(name) for name in MODULES]
    assert sum(len(t.examples) for m in modules for t in doctest.DocTestFinder().find(m)) > 50

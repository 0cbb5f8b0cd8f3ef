"""The functions of `specs.edit` that return selectors."""

from __future__ import annotations

from collections.abc import Callable

from qfunc.errors import SpecError
from qfunc.specs.selectors import AnyOf, ModuleType, Name, NodeName, Op, Selector, Where


def name(*globs: str) -> Selector:
    """Select ops and tensors whose path matches any of these patterns: `name("layer4.*", "head")`.

    Args:
        globs: Shell-style patterns of paths in the model, as in `fnmatch`.
    Raises:
        SpecError: no pattern, or one that is not a str.

    >>> ~name("head.*")
    Not(Name('head.*'))
    >>> name("layer4.*", "head")
    AnyOf((Name('layer4.*'), Name('head')))
    """
    if not globs:
        do = 'Write e.g. edit.name("layer4.*").'
        raise SpecError(where="edit.name", found="no pattern", wanted="at least one non-empty str", do=do)
    names = tuple(map(Name, globs))
    return names[0] if len(names) == 1 else AnyOf(names)


def node(*globs: str) -> Selector:
    """Select ops and tensors by the names of their nodes in the captured graph: `node("add_1", "relu_*")`.

    Use it for ops that share a path, such as two additions in one module. The names are those in
    `print(qfunc.capture()(model).graph)`, captured with the arguments of `quantize`.

    Args:
        globs: Shell-style patterns of names of nodes, as in `fnmatch`.
    Raises:
        SpecError: no pattern, or one that is not a str.

    >>> node("add_1") | op("mul")
    AnyOf((NodeName('add_1'), Op('mul')))
    """
    if not globs:
        do = 'Write e.g. edit.node("add_1").'
        raise SpecError(where="edit.node", found="no pattern", wanted="at least one non-empty str", do=do)
    names = tuple(map(NodeName, globs))
    return names[0] if len(names) == 1 else AnyOf(names)


def op(*kinds: str) -> Selector:
    """Select ops of these kinds: `op("conv", "linear")`.

    Args:
        kinds: Names of the op vocabulary, or of the target's own `OpKind` values.
    Raises:
        SpecError: no kind, or one that is not a str.

    >>> op("conv", "linear") | name("stem")
    AnyOf((Op(('conv', 'linear')), Name('stem')))
    """
    return Op(kinds)


def module(class_name: str) -> Selector:
    """Select ops inside modules of this class: `module("Bottleneck")`.

    Args:
        class_name: The name of the class, bare or with its module.
    Raises:
        SpecError: no name, or one that is not a str.

    >>> module("Bottleneck")
    ModuleType('Bottleneck')
    """
    return ModuleType(class_name)


def where(predicate: Callable[..., bool]) -> Selector:
    """Select ops for which a predicate returns True.

    Args:
        predicate: A module-level function or a frozen callable value. It receives an op as `specs.Where` describes.
    Raises:
        SpecError: a lambda, a local function, a class or a value that can change.

    >>> where(op)  # any function at the top of its module
    Where(op)
    """
    return Where(predicate)

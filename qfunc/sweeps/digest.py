"""A digest of a value that is the same in each process: of functions by their code, of objects by what pickle would write."""

from __future__ import annotations

import dis
import functools
import hashlib
import site
import sys
import sysconfig
import types
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from qfunc.errors import a_or_an
from qfunc.execution.batches import sample

_PLAIN = (type(None), bool, int, float, complex, str, bytes, range, slice, type(...), torch.dtype, torch.device)
_LIBRARY = (sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"))
_PACKAGES = (*_LIBRARY, *site.getsitepackages(), site.getusersitepackages())
"""The folders of installed modules."""


class UnstableError(Exception):
    """A value has no form that another process could recognise; the text names it."""


def digest(value: Any) -> str:
    """Return a digest of a value.

    A function counts by its code, its defaults, the values that it closes over, and the global values that it reads; one
    of an installed package by its name.  A `DataLoader` counts by its batches.

    Raises:
        UnstableError: a value in it cannot be pickled, such as a lock or a generator.

    >>> scale = lambda factor: lambda x: factor * x
    >>> digest(scale(2)) == digest(scale(2)), digest(scale(2)) == digest(scale(3))
    (True, False)
    """
    return _Digest(_whole)(value).hex()


def digest_of_batches(batches: Iterable[Any]) -> str:
    """Return a digest of all batches in order: of tensors by samples, of other values as `digest` does.

    Raises:
        UnstableError: as for `digest`.
    """
    found = hashlib.sha256()
    for batch in batches:
        found.update(_Digest(sample)(batch))
    return found.hexdigest()


class _Digest:
    def __init__(self, tensor: Callable[[Tensor], bytes]) -> None:
        self.tensor = tensor
        self.found: dict[int, tuple[bytes, Any]] = {}  # with the values, so that no other value takes their ids
        self.open: list[int] = []

    def __call__(self, value: Any) -> bytes:
        if isinstance(value, _PLAIN):
            return _joined(type(value).__name__.encode(), repr(value).encode())
        if id(value) in self.open:  # a value inside itself
            return _joined(b"cycle", str(len(self.open) - self.open.index(id(value))).encode())
        if id(value) not in self.found:
            self.open.append(id(value))
            self.found[id(value)] = _joined(*self._parts(value)), value
            self.open.pop()
        return self.found[id(value)][0]

    def _parts(self, value: Any) -> Iterable[bytes]:
        kind = type(value).__qualname__.encode()
        if isinstance(value, Tensor):
            try:
                return kind, self.tensor(value)
            except (RuntimeError, TypeError) as e:  # of a sparse one, or one without elements in memory
                raise UnstableError(f"a {value.layout} tensor on {value.device}") from e
        if isinstance(value, Mapping):
            return kind, *(self(part) for pair in value.items() for part in pair)
        if isinstance(value, tuple | list):
            return kind, *map(self, value)
        if isinstance(value, set | frozenset):
            return kind, *sorted(map(self, value))
        if isinstance(value, DataLoader):
            return kind, digest_of_batches(value).encode()
        if isinstance(value, types.CodeType):
            return kind, *map(self, (value.co_code, value.co_consts, value.co_names, value.co_varnames, value.co_freevars))
        if isinstance(value, types.FunctionType | type):
            name = f"{value.__module__} {value.__qualname__}".encode()
            inner = () if _has_a_name(value) else self._members(value) if isinstance(value, type) else self._function(value)
            return kind, name, *inner
        if isinstance(value, types.MethodType):
            return kind, self(value.__func__), self(value.__self__)
        if isinstance(value, types.ModuleType):
            return kind, value.__name__.encode()
        return kind, *self._object(value)

    def _function(self, function: types.FunctionType) -> Iterable[bytes]:
        yield from map(self, (function.__code__, function.__defaults__, function.__kwdefaults__))
        for cell in function.__closure__ or ():
            try:
                yield self(cell.cell_contents)
            except ValueError:  # it has no value yet
                yield b"empty"
        if _is_installed(function.__globals__.get("__name__", "")):
            return
        for name, value in sorted(_globals(function).items()):
            yield _joined(name.encode(), self(value))

    def _members(self, cls: type) -> Iterable[bytes]:
        # The functions and the plain values of a class, and its bases.
        for name, value in vars(cls).items():
            inner = getattr(value, "__func__", getattr(value, "fget", getattr(value, "func", value)))
            written = isinstance(inner, types.FunctionType) and not inner.__code__.co_filename.startswith("<attrs generated")
            if written or (isinstance(value, _PLAIN) and not name.startswith("__")):
                yield _joined(name.encode(), self(inner))
        yield from map(self, cls.__bases__)

    def _object(self, value: Any) -> Iterable[bytes]:
        try:
            reduced = value.__reduce_ex__(4)
        except Exception as e:
            raise UnstableError(a_or_an(type(value))) from e
        if isinstance(reduced, str):  # the name of a global value
            wrapped = getattr(value, "__wrapped__", None)  # of functools.lru_cache
            return f"{getattr(value, '__module__', '')} {reduced}".encode(), self(wrapped)
        made, arguments, state, entries, items = (*reduced, None, None, None)[:5]
        return tuple(map(self, (made, arguments, state, tuple(entries or ()), tuple(items or ()))))


def _globals(function: types.FunctionType) -> dict[str, Any]:
    # The global values that a function and the functions inside read; of the modules of the user, also what they read there.
    codes, known = [function.__code__], function.__globals__
    for code in codes:
        codes += [c for c in code.co_consts if isinstance(c, types.CodeType)]
    read = {i.argval for code in codes for i in dis.get_instructions(code) if i.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    found = {name: known[name] for name in read if name in known}
    modules = {n: m for n, m in found.items() if isinstance(m, types.ModuleType) and not _is_installed(m.__name__)}
    attributes = {name for code in codes for name in code.co_names}
    return found | {f"{n}.{a}": vars(m)[a] for n, m in modules.items() for a in attributes if a in vars(m)}


def _has_a_name(value: Any) -> bool:
    # True if it is found by its name in an installed module, and not made by a call.
    if not _is_installed(value.__module__):
        return False
    try:
        return functools.reduce(getattr, value.__qualname__.split("."), sys.modules[value.__module__]) is value
    except AttributeError:
        return False


def _is_installed(name: Any) -> bool:
    if name == "__main__" or name not in sys.modules:
        return False
    file = getattr(sys.modules[name], "__file__", None)
    return file is None or name.partition(".")[0] == "qfunc" or any(Path(file).is_relative_to(folder) for folder in _PACKAGES)


def _joined(*parts: bytes) -> bytes:
    found = hashlib.sha256()
    for part in parts:
        found.update(len(part).to_bytes(8, "little") + part)
    return found.digest()


def _whole(tensor: Tensor) -> bytes:
    value = tensor.detach().cpu().contiguous()
    return f"{value.dtype} {tuple(value.shape)}".encode() + value.flatten().view(torch.uint8).numpy().tobytes()

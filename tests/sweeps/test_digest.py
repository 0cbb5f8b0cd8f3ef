"""Digests: equal in every process, and other ones for every change that can change a number."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import pytest
import torch
from attrs import frozen
from torch import Tensor, nn
from torch.utils.data import DataLoader

import qfunc
from qfunc import targets
from qfunc.specs import edit
from qfunc.sweeps.digest import UnstableError, digest, digest_of_batches

ZERO = torch.zeros(3)


def compiled(text: str, **known: Any) -> Any:
    """Return the function `f` of a program, as of a module of the user."""
    found: dict[str, Any] = {"__name__": "users", "torch": torch, **known}
    exec(text, found)
    return found["f"]


CHANGES = {
    "constant": ("def f(o, b): return o[0] * 2", "def f(o, b): return o[0] * 3"),
    "type of a constant": ("def f(o, b): return o[0] * 1", "def f(o, b): return o[0] * 1.0"),
    "operator": ("def f(o, b): return o[0] + b", "def f(o, b): return o[0] - b"),
    "attribute": ("def f(o, b): return o.argmax(1)", "def f(o, b): return o.argmin(1)"),
    "function inside": ("def f(o, b): return (lambda x: x + 1)(o)", "def f(o, b): return (lambda x: x + 2)(o)"),
    "set": ("def f(o, b): return o in {1, 2}", "def f(o, b): return o in {1, 3}"),
    "default": ("def f(o, b=1): return b", "def f(o, b=2): return b"),
    "keyword default": ("def f(o, *, b=1): return b", "def f(o, *, b=2): return b"),
    "helper": ("def g(o): return 1\ndef f(o, b): return g(o)", "def g(o): return 2\ndef f(o, b): return g(o)"),
    "global": ("limit = 1\ndef f(o, b): return o > limit", "limit = 2\ndef f(o, b): return o > limit"),
    "recursion": ("def f(o, b): return f(o, 1)", "def f(o, b): return f(o, 2)"),
    "closed over": ("def g(n): return lambda o, b: n\nf = g(1)", "def g(n): return lambda o, b: n\nf = g(2)"),
    "cached": (
        "from functools import lru_cache\n@lru_cache\ndef f(o): return 1",
        "from functools import lru_cache\n@lru_cache\ndef f(o): return 2",
    ),
    "method": (
        "class F:\n  def __call__(self, o, b): return 1\nf = F()",
        "class F:\n  def __call__(self, o, b): return 2\nf = F()",
    ),
    "attribute of an object": (
        "class F:\n  def __init__(self): self.a = 1\n  def __call__(self): pass\nf = F()",
        "class F:\n  def __init__(self): self.a = 2\n  def __call__(self): pass\nf = F()",
    ),
    "name that is read": ("def f(o, b): return torch.relu(o)", "def f(o, b): return torch.sigmoid(o)"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_of_a_function_changes_its_digest(change: str) -> None:
    before, after = CHANGES[change]
    assert digest(compiled(before)) == digest(compiled(before))
    assert digest(compiled(before)) != digest(compiled(after))
    assert digest(partial(compiled(before), 1)) != digest(partial(compiled(after), 1))


def test_a_place_in_a_file_does_not_change_a_digest() -> None:
    text = "def f(o, b): return o[0] * 2"
    assert digest(compiled(text)) == digest(compiled(f"\n\n# A comment.\n{text}"))


def test_every_element_of_a_tensor_that_a_function_closes_over_counts() -> None:
    def reading(value: Tensor) -> Callable[[], Tensor]:
        return lambda: value

    weights = torch.zeros(50_000)
    wanted = digest(reading(weights.clone()))
    assert digest(reading(weights)) == wanted
    weights[12_345] = 1
    assert digest(reading(weights)) != wanted
    assert digest(reading(weights.double())) != digest(reading(weights))


def top1(outputs: list[Tensor], batch: Any) -> Tensor:
    """A metric that reads a global value."""
    return outputs[0].argmax(1) == batch[1] + ZERO


@lru_cache
def cached(x: int) -> int:
    """A function with a cache."""
    return x


@frozen
class Scaled:
    """A frozen callable."""

    factor: float
    names: frozenset[str] = frozenset({"a", "b", "c", "d"})

    def __call__(self, model: Any) -> Any:
        """Return the model."""
        return model


class Loader:
    """Batches of a class of the user."""

    def __init__(self) -> None:
        self.data = [ZERO, ZERO + 1]


def values() -> list[Any]:
    """What users pass to sweep."""
    torch.manual_seed(0)
    images = [torch.randn(4, 3, 8, 8) for _ in range(2)]
    loader = DataLoader(images, 1)  # type: ignore[arg-type]
    transforms = (qfunc.correct_bias(loader, progress=False), qfunc.correct_bias(images), qfunc.emulate, edit.weights(bits=4))
    functions = (top1, partial(top1, batch=ZERO), cached, Scaled(2.0), Scaled(1.0).__call__, torch.no_grad()(top1))
    known = [t for t in map(partial(getattr, targets), dir(targets)) if isinstance(t, qfunc.specs.Target)]
    return [*transforms, *functions, Loader(), nn.Linear(2, 2), {"a", "b", "c"}, *known]


@pytest.mark.thorough
def test_other_processes_have_the_same_digests() -> None:
    here = [digest(value) for value in values()]
    assert len(here) > 25
    assert len(set(here)) == len(here)
    text = "import test_digest as t; print(*map(t.digest, t.values()))"
    for seed in ("1", "2"):  # of Python's hashes, by which sets are ordered
        paths = os.pathsep.join([str(Path(__file__).parent), *filter(None, sys.path)])
        env = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": paths}
        out = subprocess.run([sys.executable, "-c", text], env=env, capture_output=True, text=True, check=True).stdout
        assert out.split() == here


def test_values_that_no_other_process_can_recognise() -> None:
    lock = threading.Lock()
    with pytest.raises(UnstableError, match=r"^a lock$"):
        digest(lambda outputs, batch: lock)
    with pytest.raises(UnstableError, match=r"^a generator$"):
        digest(partial(len, (i for i in ())))
    with pytest.raises(UnstableError, match=r"^a torch.strided tensor on meta$"):
        digest([torch.zeros(2, device="meta")])
    with pytest.raises(UnstableError, match=r"^a torch.sparse_coo tensor on cpu$"):
        digest_of_batches([torch.zeros(2, 2).to_sparse()])


def test_batches_count_by_number_order_and_labels() -> None:
    x, y = torch.zeros(2, 3), torch.ones(2, 3)
    sets = [[x], [x, x], [x, y], [y, x], [(x, y)], [(x, "a")], [(x, "b")], [{"x": x}], [{"y": x}], [x[:1], x[1:]], []]
    found = [digest_of_batches(batches) for batches in sets]
    assert len(set(found)) == len(found)
    assert found == [digest_of_batches(batches) for batches in sets]
    assert digest(DataLoader([1, 2], 1)) != digest(DataLoader([1, 3], 1))  # type: ignore[arg-type]


def test_code_is_that_of_the_running_function() -> None:
    def specialised(x: float) -> float:
        return x + 1

    wanted = digest(specialised)
    for _ in range(200):  # Python replaces instructions of functions that run often
        specialised(1.0)
    assert digest(specialised) == wanted

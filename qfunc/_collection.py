"""Garbage collection is paused while a graph is built."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def paused_collection() -> Iterator[None]:
    """Pause Python's cyclic garbage collector; reference counting goes on. It serves as a decorator, too.

    A transform makes many small objects that live to its end. The collector walks over all of them, again and again as
    they grow: a quarter of the time of `quantize` for 1,000 layers and more for deeper networks. If the collector is off
    already, it stays off.

    >>> import gc
    >>> with paused_collection():
    ...     gc.isenabled()
    False
    >>> gc.isenabled()
    True
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


__all__ = ["paused_collection"]

"""Runners of artifacts that fail: one lies, one raises, one ends its process, one hangs."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import Any

from attrs import frozen

from qfunc.targets.runtimes import OnnxRuntimeRunner


@frozen
class Liar:
    """ONNX Runtime, with 10 added to the first output."""

    def run(self, artifact: Any, inputs: Sequence[Any]) -> list[Any]:
        """The outputs but for the first."""
        first, *others = OnnxRuntimeRunner().run(artifact, inputs)
        return [first + 10, *others]


@frozen
class Raiser:
    """A runtime that refuses every file."""

    def run(self, artifact: Any, inputs: Sequence[Any]) -> list[Any]:
        """Raises."""
        raise RuntimeError("node 3 (PAD) failed to prepare")


@frozen
class Crasher:
    """A runtime that ends its process by a signal, after a line on standard error."""

    def run(self, artifact: Any, inputs: Sequence[Any]) -> list[Any]:
        """Aborts."""
        os.write(2, b"double free or corruption\n")
        os.abort()


@frozen
class Sleeper:
    """A runtime that does not return."""

    def run(self, artifact: Any, inputs: Sequence[Any]) -> list[Any]:
        """Sleeps for an hour."""
        time.sleep(3600)
        return []


@frozen
class Checker:
    """A runtime that raises an error in a later run than the first."""

    calls: list[int]

    def run(self, artifact: Any, inputs: Sequence[Any]) -> list[Any]:
        """The outputs, once."""
        self.calls.append(1)
        if len(self.calls) > 1:
            raise ValueError("got shape (3, 4)")
        return OnnxRuntimeRunner().run(artifact, inputs)

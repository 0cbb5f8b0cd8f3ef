"""Shrink a failing program while the same kind of failure persists."""

from __future__ import annotations

import time
from collections.abc import Callable

from qfunc.testing.fuzz.outcome import Outcome
from qfunc.testing.fuzz.program import Program
from qfunc.testing.fuzz.reductions import smaller

Run = Callable[[Program], Outcome]


def shrunk(program: Program, outcome: Outcome, run: Run, seconds: float = 90.0) -> Program:
    """Return the smallest program found whose outcome has the same signature.

    Each accepted program is the start of the next search, until none is smaller or the time is over.

    Args:
        program: The failing program.
        outcome: Its outcome.
        run: program -> outcome.
        seconds: When the search ends.
    """
    end = time.monotonic() + seconds
    tried = {program}
    while True:
        for candidate in smaller(program):
            if time.monotonic() > end:
                return program
            if candidate in tried:
                continue
            tried.add(candidate)
            if run(candidate).signature == outcome.signature:
                program = candidate
                break
        else:
            return program


__all__ = ["Run", "shrunk"]

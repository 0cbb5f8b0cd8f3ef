"""One test of very many small cases, where a test for each case would cost more than the case."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any


def failures(check: Callable[..., None], cases: Iterable[Any]) -> dict[str, str]:
    """Return the cases that fail a check, with their messages: {} if all pass.

    A case that is a tuple is the arguments of the check.
    """
    found, count = {}, 0
    for case in cases:
        count += 1
        try:
            check(*(case if isinstance(case, tuple) else (case,)))
        except Exception as e:
            found[str(case)] = f"{type(e).__name__}: {e}".partition("\n")[0]
    assert count, "no cases"
    return found

"""Keywords of edits, refused where they mean nothing."""

from __future__ import annotations

from typing import Any

from qfunc.errors import SpecError


def require_change(where: str, *given: Any) -> None:
    """Refuses an edit that says nothing.

    Raises:
        SpecError: every value is None.
    """
    if all(v is None for v in given):
        do = "Give bits, an estimator, a function, or a property of the scheme."
        raise SpecError(where=where, found="nothing to change", wanted="at least one keyword", do=do)


def known_keys(where: str, given: dict[str, Any], known: tuple[str, ...]) -> None:
    """Refuses keywords that mean nothing.

    Raises:
        SpecError: a key of `given` that is not `known`.
    """
    if unknown := [k for k in given if k not in known]:
        raise SpecError(where=where, found=", ".join(map(str, unknown)), wanted=", ".join(known), do="Use those keywords.")


__all__ = ["known_keys", "require_change"]

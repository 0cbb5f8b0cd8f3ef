"""The methods of libraries of float functions, in the form in which a runtime computes them."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable


@runtime_checkable
class Library(Protocol):
    """A library that computes some kinds of ops in float, each in a form of its own.

    >>> from qfunc.numerics.libraries import GeluErfc
    >>> isinstance(GeluErfc(), Library)
    True
    """

    def form(self, kind: str) -> Any:
        """Return the function of the op's arguments, defined at the top of a module, or None for a kind that it lacks."""
        ...


@runtime_checkable
class CodesLibrary(Protocol):
    """A library with functions that dequantize and quantize themselves, for example of pools."""

    def form_of_codes(self, kind: str) -> Any:
        """Return such a function of a pool, or None.

        Its arguments are the codes, their scale and zero point; the arguments of the pool; the scale, the zero point, the
        lowest and the highest code of the result; the rounding, division and place of the zero point of a `FloatKernel`.
        """
        ...

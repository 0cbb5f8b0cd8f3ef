"""What a program prints, compared with the page that shows it, on any processor.

Kernels sum floats in the order that the processor's vectors and the number of threads suggest, so figures that depend on such a
sum differ in their last digits between machines.  Words and integers are equal everywhere, unless the page's test names the
figures that are not, how far they may be from the page, and why.
"""

from __future__ import annotations

import difflib
import re

from attrs import frozen

FIGURE = re.compile(r"(?<![\w.])-?\d+(?:,\d{3})*(?:\.\d+)?(?:e[+-]?\d+)?(?![\w.]*[A-Za-z_])")
"""A number in decimal or scientific notation that is no part of a name."""
SUMS = 1e-5
"""The relative difference of two float32 sums of 85 terms of one sign in other orders: 84 roundings of 2^-24 in each."""


@frozen
class About:
    """Figures that are near those of a page.

    Attributes:
        pattern: An expression for the text around a figure; its groups are the figures.
        within: The largest difference, as a part of the page's figure.
        because: Why machines differ.
    """

    pattern: str
    within: float
    because: str


def differences(printed: str, shown: str, *about: About) -> str:
    """Return what differs between the output of a program and its page, as a unified diff; "" if nothing does.

    A figure with a point or an exponent may differ by one unit of the last digit that the page shows and by `SUMS` of its
    value.  Columns are as wide as their figures, so runs of spaces and of rules count as one.
    """
    found, wanted = _pieces(printed), _pieces(shown)
    near = found[0] == wanted[0] and all(
        abs(a - b) <= allowed for a, b, allowed in zip(found[1], wanted[1], _allowed(_plain(shown), about), strict=True)
    )
    return "" if near else "".join(difflib.unified_diff(shown.splitlines(True), printed.splitlines(True), "page", "printed"))


def _plain(text: str) -> str:
    return re.sub(r" *\n", "\n", re.sub("─+", "─", re.sub(" +", " ", text)))


def _pieces(text: str) -> tuple[list[str], list[float]]:
    # The text between the figures, and the figures.
    plain = _plain(text)
    return FIGURE.split(plain), [_value(f) for f in FIGURE.findall(plain)]


def _value(figure: str) -> float:
    return float(figure.replace(",", ""))


def _allowed(shown: str, about: tuple[About, ...]) -> list[float]:
    # How far from the page each figure may be.
    named = [
        (span, one.within)
        for one in about
        for found in re.finditer(one.pattern, shown)
        for span in (found.span(group) for group in range(1, found.re.groups + 1))
    ]
    allowed = []
    for match in FIGURE.finditer(shown):
        parts = [limit for span, limit in named if span[0] <= match.start() and match.end() <= span[1]]
        allowed.append(max((_last_digit(match[0]), *(part * abs(_value(match[0])) for part in parts))))
    return allowed


def _last_digit(figure: str) -> float:
    # One unit of the last digit, and the rounding of the sum; none for an integer.
    number = re.fullmatch(r"-?[\d,]+(?:\.(\d+))?(?:e([+-]?\d+))?", figure)
    assert number is not None
    if number[1] is None and number[2] is None:
        return 0.0
    unit = 10.0 ** (int(number[2] or 0) - len(number[1] or ""))
    return unit * (1 + 1e-9) + SUMS * abs(_value(figure))


__all__ = ["SUMS", "About", "differences"]

"""The fields of a file as declared data: the kind, range and length of every value, checked before it is used."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Protocol

from attrs import evolve, field, frozen

from qfunc.files.json_text import damage_error

_MOST = 1 << 24
_FLOAT32 = 3.4028234663852886e38


@frozen
class Misfit:
    """The path of a value that is not as declared, the value in words, and what was declared."""

    path: str
    found: str
    wanted: str

    def inside(self, step: str) -> Misfit:
        """Return the same one step nearer to the root."""
        joined = step + (f".{self.path}" if self.path and self.path[0] != "[" else self.path)
        return evolve(self, path=joined)


class Kind(Protocol):
    """What a value may be."""

    def misfit(self, value: Any) -> Misfit | None:
        """Return the first value inside that does not fit, or None if all do."""


def require(kind: Kind, value: Any, file: str, path: str = "") -> Any:
    """Return a value that is as declared.

    Raises:
        FileError: names the file, the field, its value and what was declared.

    >>> require(Many(Count()), [1, 2], "mine.json", "shape")
    [1, 2]
    >>> require(JsonObject({"shape": Many(Count())}), {"shape": [1, "x"]}, "mine.json")
    Traceback (most recent call last):
    qfunc.errors.FileError: mine.json: shape[1]: found 'x', wanted an integer >= 0. Write the file again: it is damaged, \
or another program changed it.
    """
    if bad := kind.misfit(value):
        bad = bad.inside(path) if path else bad
        raise damage_error(file, bad.path, bad.found, bad.wanted)
    return value


def describe(value: Any) -> str:
    """Return a JSON value in a few words.

    >>> describe([1, 2]), describe({}), describe("x" * 99)[:12], describe(None)
    ('a list of 2', 'an object of 0 keys', "'xxxxxxxxxxx", 'null')
    """
    if isinstance(value, list):
        return f"a list of {len(value):,}"
    if isinstance(value, dict):
        return f"an object of {len(value):,} keys"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _check(fits: bool, value: Any, wanted: str) -> Misfit | None:
    return None if fits else Misfit("", describe(value), wanted)


@frozen
class Object:
    """Any object; the reader of a part of the file checks its content."""

    def misfit(self, value: Any) -> Misfit | None:
        """Return the value if it is no object."""
        return _check(isinstance(value, dict), value, "an object")


@frozen
class Flag:
    """True or false."""

    def misfit(self, value: Any) -> Misfit | None:
        """Return the value if it is no boolean."""
        return _check(isinstance(value, bool), value, "true or false")


@frozen
class Count:
    """An integer from `low` to `high`."""

    low: int = 0
    high: int = (1 << 63) - 1

    def misfit(self, value: Any) -> Misfit | None:
        """Return the value if it is no such integer."""
        most = f" and <= {self.high}" if self.high < (1 << 63) - 1 else ""
        return _check(type(value) is int and self.low <= value <= self.high, value, f"an integer >= {self.low}{most}")


@frozen
class Number:
    """A number that float32 can hold."""

    def misfit(self, value: Any) -> Misfit | None:
        """Return the value if it is no such number."""
        return _check(type(value) in (int, float) and abs(value) <= _FLOAT32, value, "a number of float32")


@frozen
class Sizes:
    """The sizes of a tensor of at most `largest` elements."""

    largest: int = 1 << 40

    def misfit(self, value: Any) -> Misfit | None:
        """Return the first size that is none, or the shape if it has too many elements."""
        bad = Many(Count(), most=64).misfit(value)
        fits = bad is not None or math.prod(value) <= self.largest
        return bad or _check(fits, value, f"a shape of at most {self.largest:,} elements")


@frozen
class Text:
    """A text of at most `longest` characters."""

    longest: int = 100_000

    def misfit(self, value: Any) -> Misfit | None:
        """Return the value if it is no such text."""
        return _check(isinstance(value, str) and len(value) <= self.longest, value, f"a text of at most {self.longest:,}")


@frozen
class Word:
    """One of some texts."""

    words: tuple[str, ...]

    def misfit(self, value: Any) -> Misfit | None:
        """Return the value if it is none of them."""
        return _check(isinstance(value, str) and value in self.words, value, f"one of {', '.join(self.words)}")


@frozen
class Nullable:
    """Null, or a value of a kind."""

    kind: Kind

    def misfit(self, value: Any) -> Misfit | None:
        """Return the first misfit of a value that is not null."""
        bad = None if value is None else self.kind.misfit(value)
        return bad if bad is None or bad.path else evolve(bad, wanted=f"{bad.wanted} or null")


@frozen
class Many:
    """A list of values of one kind; at least `least` and at most `most`."""

    kind: Kind
    least: int = 0
    most: int = _MOST

    def misfit(self, value: Any) -> Misfit | None:
        """Return the first misfit of the list or of its values."""
        if not isinstance(value, list) or not self.least <= len(value) <= self.most:
            few = f" of at least {self.least}" if self.least else ""
            return Misfit("", describe(value), f"a list{few or f' of at most {self.most:,}'}")
        return next((bad.inside(f"[{i}]") for i, v in enumerate(value) if (bad := self.kind.misfit(v))), None)


@frozen
class Keyed:
    """An object whose keys are names and whose values are of one kind."""

    kind: Kind

    def misfit(self, value: Any) -> Misfit | None:
        """Return the first misfit of the object or of its values."""
        if not isinstance(value, dict):
            return Misfit("", describe(value), "an object")
        return next((bad.inside(f"[{describe(k)}]") for k, v in value.items() if (bad := self.kind.misfit(v))), None)


@frozen
class JsonObject:
    """An object of these fields; it may lack the `optional` ones, and has no others."""

    fields: Mapping[str, Kind]
    optional: Mapping[str, Kind] = field(factory=dict)

    def misfit(self, value: Any) -> Misfit | None:
        """Return the first misfit of the object or of its fields."""
        if not isinstance(value, dict):
            return Misfit("", describe(value), "an object")
        every = {**self.fields, **self.optional}
        for name in self.fields:
            if name not in value:
                return Misfit(name, "no such field", f"the fields {', '.join(self.fields)}")
        for name, entry in value.items():
            if name not in every:
                return Misfit("", f"an unknown field {describe(name)}", f"the fields {', '.join(every)}")
            if bad := every[name].misfit(entry):
                return bad.inside(name)
        return None
